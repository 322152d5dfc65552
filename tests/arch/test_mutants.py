"""Every requirement has a mutant, every mutant applies, and the runner tells killed from survived."""

import ast
import importlib.util
import subprocess
import sys
from datetime import date
from pathlib import Path
from types import ModuleType

import pytest

from esper.exam import statistics
from esper.leyline.lifecycle import TRANSITIONS, Gate

ROOT = Path(__file__).parents[2]
LAWS = 10


def _runner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutants_run", ROOT / "tests/mutants/run.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["mutants_run"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


runner = _runner()
MUTANTS = runner.load()


def test_every_mutant_applies_and_has_a_name_of_its_own():
    assert not {m.id: problem for m in MUTANTS if (problem := m.problem(ROOT))}
    assert len({m.id for m in MUTANTS}) == len(MUTANTS) >= 200
    assert all(m.rows and m.what and m.tests for m in MUTANTS)


def test_every_test_of_a_mutant_exists():
    defined: dict[str, set[str]] = {}
    for mutant in MUTANTS:
        for test in mutant.tests:
            path, _, name = test.partition("::")
            if path not in defined:
                tree = ast.parse((ROOT / path).read_text())
                defined[path] = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
            assert name.partition("[")[0] in defined[path], f"{mutant.id}: {test}"


def required() -> list[str]:
    ledger = (ROOT / "docs/findings.md").read_text()
    findings = [line.split()[1] for line in ledger.splitlines() if line[:3] in {f"| {letter}" for letter in "ABCDE"}]
    ways = [f"transition {t.source.name}-{t.target.name} {t.op.name if t.op else 'automatic'}" for t in TRANSITIONS]
    public = [name for name, x in vars(statistics).items() if getattr(x, "__module__", "") == statistics.__name__]
    return [
        *findings,
        *(f"law {n}" for n in range(1, LAWS + 1)),
        *(f"gate {gate.name}" for gate in Gate),
        *ways,
        *(f"statistic {name}" for name in public if not name.startswith("_")),
        *("governor", "checkpoint", "lock"),
    ]


def test_every_requirement_has_a_mutant():
    broken = {row for m in MUTANTS for row in m.rows}
    assert len(required()) > 100
    assert not [row for row in required() if row not in broken]


def test_every_day_has_a_sample_of_its_own():
    days = [[m.id for m in runner.sample(MUTANTS, 20, date(2026, 11, day))] for day in (1, 1, 2)]
    assert days[0] == days[1] != days[2]
    assert len(set(days[0])) == 20


TABLE = """
[[mutant]]
id = "wrong-sign"
rows = ["sums"]
what = "a sum is a difference"
file = "sums.py"
text = "a + b"
replacement = "a - b"
tests = ["tests/test_sums.py::test_a_sum"]

[[mutant]]
id = "unnoticed"
rows = ["sums"]
what = "a sum is the other way round"
file = "sums.py"
text = "a + b"
replacement = "b + a"
tests = ["tests/test_sums.py::test_a_sum"]

[[mutant]]
id = "gone"
rows = ["sums"]
what = "its text is no longer there"
file = "sums.py"
text = "a * b"
replacement = "a"
tests = ["tests/test_sums.py::test_a_sum"]

[[mutant]]
id = "does-not-run"
rows = ["sums"]
what = "the code is no code"
file = "sums.py"
text = "a + b"
replacement = "a +"
tests = ["tests/test_sums.py::test_a_sum"]
"""


@pytest.fixture
def toy(tmp_path) -> Path:
    """A project of one function, with a test for it and four mutants."""
    files = {
        "src/esper/__init__.py": "",
        "src/esper/sums.py": "def add(a, b):\n    return a + b\n",
        "tests/test_sums.py": "from esper.sums import add\n\n\ndef test_a_sum():\n    assert add(2, 3) == 5\n",
        "tests/mutants/sums.toml": TABLE,
        "page.md": f"Before\n{runner.BEGIN}\nold\n{runner.END}\nAfter\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


def test_killed_survived_and_useless_mutants_are_told_apart(toy):
    command = [sys.executable, str(ROOT / "tests/mutants/run.py"), "--root", str(toy), "--write", str(toy / "page.md")]
    done = subprocess.run([*command, "--workers", "1"], capture_output=True, text=True, check=False)
    outcomes = {line.split(":")[0].split()[-1]: line.split()[0] for line in done.stdout.splitlines()[:-1]}
    assert outcomes == {"wrong-sign": "killed", "unnoticed": "survived", "gone": "error", "does-not-run": "error"}
    assert "4 mutants: 1 killed, 1 survived, 2 error" in done.stdout
    assert done.returncode == 1
    page = (toy / "page.md").read_text()
    assert "`tests/test_sums.py::test_a_sum`" in page
    assert page.startswith("Before\n")
    assert page.endswith("\nAfter\n")
    assert "old" not in page
    assert (toy / "src/esper/sums.py").read_text().count("a + b") == 1, "the project itself is left alone"
    alone = subprocess.run([*command, "--only", "wrong-sign"], capture_output=True, text=True, check=False)
    assert alone.returncode == 0, alone.stdout
