"""The page's own files: modules that can be joined, text that is never markup, colors that everybody can tell apart."""

import json
import re
import subprocess
import zlib
from base64 import b64encode
from collections import Counter
from hashlib import sha256
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path

import pytest

import esper
from esper.dashboard.bundle import IMPORT, modules, page, script, source
from esper.leyline.actions import Op
from esper.leyline.lifecycle import Stage, Voice

ROOT = Path(__file__).parents[2]
STATIC = Path(esper.__file__).parent / "dashboard/static"
MODULES = {path.name: path.read_text() for path in STATIC.glob("*.js") if not path.name.startswith("uPlot")}
OWN = MODULES | {name: (STATIC / name).read_text() for name in ("index.html", "style.css")}
NAME = re.compile(r"^(export )?(?:async )?(?:function|const|let|class) (\w+)", re.MULTILINE)
BANNED = (
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|srcdoc|setHTML",
    r"\beval\b|new Function|javascript:|setTimeout\(\s*[\"'`]|import\(",
    r"setAttribute\(\"(style|on)|[{,] style: |<[^>]*\s(on\w+|style)=",
    r"https?://(?!www\.w3\.org/2000/svg)",
)
"""What could make markup or code out of text, or ask for something from elsewhere."""
LEAST_APART = 10
"""CIE76 distance of two colors, as seen by anybody."""


def exported(text: str) -> set[str]:
    return {name for export, name in NAME.findall(text) if export}


def test_every_top_level_name_is_defined_once():
    """Joined, modules share one scope."""
    names = Counter(name for text in MODULES.values() for _, name in NAME.findall(text))
    assert not [name for name, count in names.items() if count > 1]
    assert len(names) > 100


def test_imports_are_of_what_is_exported():
    for module, text in MODULES.items():
        assert text.count("\nimport ") + text.startswith("import ") == len(IMPORT.findall(text)), module
        for names, path in re.findall(r'^import \{ ([^}]*) \} from "\./([\w.-]+)";$', text, re.MULTILINE):
            missing = set(names.split(", ")) - exported(MODULES[path])
            assert not missing, f"{module} imports {missing} of {path}"
            unused = [name for name in names.split(", ") if len(re.findall(rf"\b{name}\b", text)) < 2]
            assert not unused, f"{module} does not use {unused}"


def test_everything_exported_is_imported():
    wanted = {
        name
        for text in MODULES.values()
        for found in re.findall(r"import \{ ([^}]*) \}", text)
        for name in found.split(", ")
    }
    assert set().union(*map(exported, MODULES.values())) - wanted == {"chartCount"}, (
        "tests ask for the number of charts"
    )


@pytest.mark.parametrize("entry", ["main.js", "report.js"])
def test_modules_stand_behind_what_they_need(entry):
    found = list(modules(entry))
    assert found[-1] == entry
    for place, name in enumerate(found):
        assert set(IMPORT.findall(MODULES[name])) <= set(found[:place]), f"{name} is in a circle of imports"


def test_every_module_is_used():
    assert set(modules("main.js")) | set(modules("report.js")) == set(MODULES)


def test_a_joined_script_imports_and_exports_nothing():
    joined = script()
    assert not re.search(r"^\s*(import|export)\b", joined, re.MULTILINE)
    assert "</script" not in joined.lower()
    for name in ("gardenView", "runsView", "EventSource"):
        assert (name in joined) == (name == "EventSource"), "a report holds no view of a server"


@pytest.mark.parametrize("name", OWN)
def test_text_never_becomes_markup_or_code(name):
    for pattern in BANNED:
        assert not re.search(pattern, OWN[name]), pattern


@pytest.mark.parametrize("name", OWN)
def test_lines_are_short(name):
    assert not [line for line in OWN[name].splitlines() if len(line) > 120]


@pytest.mark.parametrize("name", MODULES)
def test_functions_are_short(name):
    """At most 45 lines from a function at the left edge to its closing brace; classes hold methods of that length."""
    starts = [m.start() for m in re.finditer(r"^(?:export )?(?:async )?function", MODULES[name], re.MULTILINE)]
    starts += [m.start() for m in re.finditer(r"^  (?:async |get )?\w+\([^;]*\) \{$", MODULES[name], re.MULTILINE)]
    for start in starts:
        rest = MODULES[name][start:]
        edge = "" if not rest.startswith("  ") else "  "
        assert rest[: rest.index(f"\n{edge}}}")].count("\n") <= 45, rest.splitlines()[0]


class Parts(HTMLParser):
    """Scripts and styles of a page, and everything that points elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.attributes, self.links = "", {}, []
        self.found: dict[str, list[str]] = {"script": [], "style": [], "data": [], "title": []}
        self.policy = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.links += [value for name, value in attrs if name in ("src", "href", "action")]
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"]
        self.open = "data" if given.get("type") == "application/json" else tag

    def handle_endtag(self, tag):
        self.open = ""

    def handle_data(self, data):
        if self.open in self.found:
            self.found[self.open].append(data)


HOSTILE = "</script><script>x()</script><!-- \u2028 <img src=x onerror=x()> \u0000 \"' &amp;"


def test_a_page_runs_its_own_scripts_and_no_others():
    parts = Parts(page(HOSTILE, {"a": HOSTILE}))
    assert parts.links == []
    assert json.loads("".join(parts.found["data"])) == {"a": HOSTILE}
    assert "".join(parts.found["title"]) == HOSTILE
    (style,), scripts = parts.found["style"], parts.found["script"]
    assert len(scripts) == 2
    policy = dict(part.strip().split(" ", 1) for part in parts.policy.split(";"))
    assert policy["default-src"] == "'none'"
    for texts, given in ((scripts, policy["script-src"]), ([style], policy["style-src"])):
        assert given == " ".join(f"'sha256-{b64encode(sha256(t.encode()).digest()).decode()}'" for t in texts)


def test_a_report_is_small():
    assert len(page("x", {})) < 200_000


def test_the_library_comes_with_its_licence():
    assert "MIT License" in (STATIC / "uPlot.LICENSE").read_text()
    assert "uPlot (v1.6" in source("uPlot.iife.min.js")[:100]


def test_the_page_is_packed_and_the_wheel_grows_little():
    """The wheel holds every file of the package that git does not ignore; it may grow by 500 kB."""
    files = sorted(STATIC.iterdir())
    ignored = subprocess.run(["git", "check-ignore", *files], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ignored.stdout == ""
    assert sum(len(zlib.compress(path.read_bytes())) for path in files) < 150_000


# Colors: style.css holds each once, as one value or as light-dark(light, dark).

GIVEN = dict(re.findall(r"--([\w-]+): ([^;]+);", OWN["style.css"].split("\n}\n")[0]))
THEMES = ("light", "dark")


def color(name: str, theme: str) -> str:
    """The value of a color in a theme, as six hexadecimal digits."""
    value = GIVEN[name]
    if value.startswith("var(--"):
        return color(value[6:-1], theme)
    pair = re.fullmatch(r"light-dark\((#\w{6}), (#\w{6})\)", value)
    return pair[1 + THEMES.index(theme)] if pair else value


def linear(given: str) -> list[float]:
    parts = [int(given[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]


def contrast(a: str, b: str) -> float:
    """WCAG 2: (L1 + 0.05) / (L2 + 0.05)."""
    light = [sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear(x), strict=True)) for x in (a, b)]
    return (max(light) + 0.05) / (min(light) + 0.05)


STAGES = [f"stage-{stage.name[0]}" for stage in Stage if stage.voice is not Voice.EMPTY]
OPS = [f"op-{op.name[0]}" for op in Op]
SERIES, AREAS = [f"series-{i}" for i in range(6)], [f"area-{i}" for i in range(7)]
TEXTS = ["ink", "quiet", "accent", "warn"]


@pytest.mark.parametrize("theme", THEMES)
def test_contrast_is_aa(theme):
    """4.5 for text, 3 for lines and marks."""
    pairs = [(text, ground, 4.5) for text in TEXTS for ground in ("ground", "surface", "soft")]
    pairs += [(f"on-{name}", name, 4.5) for name in (*STAGES, *OPS, *AREAS, "accent")]
    pairs += [(name, "surface", 3.0) for name in (*SERIES, "accent", "warn")]
    pairs += [("ground", "ink", 4.5), ("quiet", "surface", 4.5)]
    for a, b, least in pairs:
        assert contrast(color(a, theme), color(b, theme)) >= least, f"{a} on {b}"


# Machado, Oliveira, Fernandes (2009): what people without one kind of cone see, at full severity.
SEEN = {
    "by most": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "without red": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    "without green": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    "without blue": ((1.256, -0.077, -0.179), (-0.078, 0.931, 0.148), (0.005, 0.691, 0.304)),
}
XYZ = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))


def lab(given: str, seen: str) -> tuple[float, float, float]:
    def times(matrix, vector):
        return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]

    rgb = [min(max(c, 0), 1) for c in times(SEEN[seen], linear(given))]
    x, y, z = (c / w for c, w in zip(times(XYZ, rgb), (0.9505, 1, 1.089), strict=True))
    x, y, z = (c ** (1 / 3) if c > 0.008856 else 7.787 * c + 16 / 116 for c in (x, y, z))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("group", [STAGES, OPS, SERIES], ids=["stages", "ops", "series"])
def test_everybody_can_tell_colors_apart(theme, seen, group):
    for a, b in combinations(group, 2):
        one, other = (lab(color(name, theme), seen) for name in (a, b))
        apart = sum((x - y) ** 2 for x, y in zip(one, other, strict=True)) ** 0.5
        assert apart >= LEAST_APART, f"{a} and {b}"


def test_every_stage_and_op_has_its_color_and_letter():
    """The page's own tables, against those of leyline."""
    known = OWN["series.js"]
    for word, member in [("STAGES", stage) for stage in Stage] + [("OPS", op) for op in Op]:
        table = re.search(rf"export const {word} = \{{(.*?)\}};", known, re.DOTALL)
        assert table
        assert f'{member.name}: "{member.name[0]}"' in table[1]
        assert f"{'stage' if word == 'STAGES' else 'op'}-{member.name[0]}" in GIVEN
    empty = re.search(r"export const EMPTY = new Set\(\[(.*?)\]\)", known)
    assert empty
    assert set(re.findall(r"\w", empty[1])) == {s.name[0] for s in Stage if s.voice is Voice.EMPTY}
