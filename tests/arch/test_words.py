"""Plain words: no phrase that reads as if translated, and first sentences that stand alone.

STYLE.md, "Plain English". `python tests/arch/test_words.py` prints everything that is left, folder by folder.
"""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import esper

ROOT = Path(__file__).parents[2]
PHRASES = {
    "whoever": r"\bwhoever\b",
    "whom": r"\bwhom\b",
    "who knows": r"\bwho knows\b",
    "the same as it": r"\bthe same as it\b",
    "as it was": r"\bas it was\b",
    "of which one comes along": r"\bcomes along\b",
    "where it has learned nothing": r"\b(?:has|have) learned nothing\b",
    "…and time": r"(?:\.\.\.|…) ?and time\b",
    "a sentence that starts with The same": r"(?:^|(?<=[.:!?] ))(?:\*\*)?The same\b",
    "a sentence that is continued elsewhere": r"^(?:\.\.\.|…)|(?<!COMMAND )(?:\.\.\.|…)$",
}
"""What is wrong, and how to find it in one paragraph."""
WEAK = ("The same", "Of", "And", "Whoever", "What", "Such", "It")
"""Words that a first sentence cannot start with: without what stands before, they say nothing."""
SOURCES = sorted(f"src/esper/{path.name}" for path in (ROOT / "src/esper").iterdir() if (path / "__init__.py").exists())
GENERATED = ("docs/cli.md", "docs/mutants.md")
"""Pages whose words come from elsewhere: the help texts of all commands, and the tables of mutants."""
FOLDERS = (
    "docs",
    "examples",
    "tests/arch",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "README.md",
    *GENERATED,
    "src/esper/__init__.py",
    *SOURCES,
)
LABEL = re.compile(r"`[^`]*`|\"[^\"]*\"")


def texts(path: Path) -> Iterator[str]:
    """The paragraphs of a page, or the docstrings of a module, those of fields included."""
    if path.suffix == ".md":
        page = path.read_text()
        if path.name != "cli.md":  # where code is what people read
            page = re.sub(r"^( *)```.*?^\1```", "", page, flags=re.DOTALL | re.MULTILINE)
        for block in page.split("\n\n"):
            rows = block.splitlines()
            yield from (cell for row in rows if row.startswith("|") for cell in row.strip("| ").split(" | "))
            yield " ".join(row for row in rows if not row.startswith("|"))
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from (" ".join(part.split()) for part in node.value.value.split("\n\n"))


def findings(folder: str) -> list[str]:
    """Every phrase in a folder that STYLE.md names as wrong."""
    place = ROOT / folder
    paths = [place] if place.is_file() else sorted(p for end in ("*.md", "*.py") for p in place.rglob(end))
    paths = [path for path in paths if folder in GENERATED or str(path.relative_to(ROOT)) not in GENERATED]
    found = []
    for path in paths:
        for text in texts(path):
            said = LABEL.sub("``", text.strip())  # code and quotations are not ours to change
            found += [
                f"{path.relative_to(ROOT)}: {what}: {text.strip()[:100]}"
                for what, pattern in PHRASES.items()
                if re.search(pattern, said, 0 if "The same" in what else re.IGNORECASE)
            ]
    return found


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_phrase_reads_as_if_translated(folder):
    assert not (found := findings(folder)), "\n".join(["", *found])


def docstrings() -> dict[str, tuple[str, str]]:
    """Each public name and public method of one, with its room and its docstring."""
    found = {}
    for name in esper.__all__:
        value = getattr(esper, name)
        if not (inspect.isclass(value) or inspect.isfunction(value)):
            continue
        room = "src/esper/" + value.__module__.split(".")[1]
        found[name] = room, inspect.getdoc(value) or ""
        for part, member in vars(value).items() if inspect.isclass(value) else ():
            call = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if not part.startswith("_") and inspect.isfunction(call) and call.__module__ == value.__module__:
                found[f"{name}.{part}"] = room, inspect.getdoc(call) or ""
    return found


def first_sentence(doc: str) -> str:
    """The first paragraph up to its first period that ends a sentence."""
    paragraph = " ".join(doc.split("\n\n")[0].split())
    return re.split(r"(?<=\.)(?<!e\.g\.)(?<!i\.e\.) (?=[A-Z`])", paragraph)[0]


def problem(doc: str) -> str:
    """Why the first sentence of a docstring does not stand alone; empty if it does."""
    sentence = first_sentence(doc)
    if not sentence:
        return "no docstring"
    if not (sentence[0].isupper() or sentence[0] == "`"):
        return "does not start with a capital"
    if len(sentence.split()) < 3:
        return "fewer than three words"
    if not sentence.endswith("."):
        return "does not end with a period"
    weak = [word for word in WEAK if re.match(rf"{word}\b", sentence)]
    return f"starts with {weak[0]!r}" if weak else ""


@pytest.mark.parametrize("room", SOURCES)
def test_first_sentences_of_public_docstrings_stand_alone(room):
    lines = [
        f"{n}: {why}: {first_sentence(doc)}"
        for n, (r, doc) in docstrings().items()
        if r == room and (why := problem(doc))
    ]
    assert not lines, "\n".join(["", *lines])


@pytest.mark.parametrize(
    ("doc", "why"),
    [
        ("Return the mean of all hosts.", ""),
        ("The same on other data.", "starts with 'The same'"),
        ("of the controller and its critic.", "does not start with a capital"),
        ("Returns it.", "fewer than three words"),
        ("Train one host", "does not end with a period"),
        ("", "no docstring"),
    ],
)
def test_weak_first_sentences_are_found(doc, why):
    assert problem(doc) == why


@pytest.mark.parametrize(
    "text",
    ["Whoever answers keeps choices.", "It stays as it was.", "Fast. The same on a GPU.", "Seconds, decisions..."],
)
def test_phrases_are_found(text, tmp_path, monkeypatch):
    (tmp_path / "page.md").write_text(f"# Page\n\n{text}\n")
    monkeypatch.setattr(importlib.import_module(__name__), "ROOT", tmp_path)
    assert len(findings("page.md")) == 1


if __name__ == "__main__":
    left = [line for folder in FOLDERS for line in findings(folder)]
    weak = [f"{name}: {why}: {first_sentence(doc)}" for name, (_, doc) in docstrings().items() if (why := problem(doc))]
    print("\n".join([*left, "", *weak, "", f"{len(left)} phrases, {len(weak)} first sentences"]))
