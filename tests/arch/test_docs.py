"""Docs agree with the code, build without a warning, and are readable as sources."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import esper

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LEDGER = (DOCS / "findings.md").read_text()
SIZES = {"A": 30, "B": 6, "C": 8, "D": 12, "E": 8}
WRITTEN = sorted([*DOCS.rglob("*.md"), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"])
WITH_CODE = [
    DOCS / "index.md",
    DOCS / "api/index.md",
    DOCS / "concepts/budget.md",
    *sorted((DOCS / "guides").glob("*.md")),
]
BLOCK = re.compile(r"<!-- table: \w+ -->.*?<!-- end -->|<!-- made by make mutants -->.*", re.DOTALL)
CODE = re.compile(r"^( *)```.*?^\1```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\([^)]*\)|<https?://[^>]*>|`[^`]*`")


def test_the_tables_of_the_docs_are_the_codes():
    result = subprocess.run([sys.executable, "docs/tables.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, f"run make docs: {result.stdout}{result.stderr}"


def test_every_finding_has_its_row():
    ids = re.findall(r"^\| ([A-E]\d+)\b", LEDGER, re.MULTILINE)
    assert ids == [f"{section}{number}" for section, count in SIZES.items() for number in range(1, count + 1)]


def test_every_test_in_the_ledger_exists():
    named = re.findall(r"`(tests/[\w/.]+)::(\w+)`", LEDGER)
    assert named
    for path, test in named:
        assert f"def {test}(" in (ROOT / path).read_text(), test


def test_every_page_is_in_the_navigation():
    nav = (ROOT / "mkdocs.yml").read_text()
    for page in DOCS.rglob("*.md"):
        assert str(page.relative_to(DOCS)) in nav


def test_every_public_name_is_on_one_page_of_the_api_reference():
    pages = "\n".join(page.read_text() for page in (DOCS / "api").glob("*.md"))
    assert sorted(re.findall(r"^::: esper\.(\w+)$", pages, re.MULTILINE)) == sorted(esper.__all__)


def test_every_command_is_on_the_page_of_the_command_line():
    page = (DOCS / "cli.md").read_text()
    for command in ("train", "resume", "watch", "report", "exam", "recipes", "bench fleet", "tasks", "blueprints"):
        assert f"\n## esper {command}\n" in page


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_prose_is_wrapped_at_120_characters(page):
    prose = CODE.sub("", BLOCK.sub("", page.read_text()))
    long = [line for line in prose.splitlines() if len(LINK.sub("", line)) > 120 and not line.startswith("|")]
    assert not long


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")
@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers")
@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(DOCS)))
def test_code_of_the_guides_runs(page, tmp_path, monkeypatch):
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    names = {"__name__": "guide"}
    monkeypatch.chdir(tmp_path)
    try:
        for block in blocks:
            exec(compile(block, page.name, "exec"), names)
    finally:
        if page.name == "extend.md":
            esper.unregister_blueprint("wide", "vector")
            esper.unregister_host("two_layers")
            esper.unregister_task("rings")


def test_the_site_builds_strictly_and_needs_nothing_from_elsewhere(tmp_path):
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )
    assert built.returncode == 0, built.stderr
    pages = {page: page.read_text() for page in tmp_path.rglob("*.html")}
    assert len(pages) > 40
    for page, html in pages.items():
        assert not re.search(r'<(?:script|img|link rel="stylesheet")[^>]*(?:src|href)="(?:https?:)?//', html), page
        assert html.count("<table") == html.count('<div class="scrolls"><table'), page
    assert re.search(r"\.scrolls \{[^}]*overflow-x: auto", (tmp_path / "stylesheets/extra.css").read_text())
    assert pages[tmp_path / "exam/index.html"].count("<table") > 5
