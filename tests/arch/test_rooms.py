"""Rooms: imports in one direction, light ones, and each re-exports only its own names."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import esper

PACKAGE = Path(esper.__file__).parent
BIN = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
ROOMS = ("leyline", "leyline.specs", "leyline.state", "kasmina", "tasks", "tolaria", "tamiyo", "simic", "dashboard")


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def imported_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    result = run(code)
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_re_exports_only_its_own_names(room):
    module = import_module(f"esper.{room}")
    assert list(module.__all__) == sorted(
        module.__all__, key=lambda name: (not name.isupper(), name[0].islower(), name)
    )
    for name in module.__all__:
        home = getattr(getattr(module, name), "__module__", module.__name__)
        assert home.startswith(module.__name__), name


def test_imports_point_one_way():
    result = subprocess.run(["lint-imports"], capture_output=True, text=True, env=os.environ | {"PATH": BIN})
    assert result.returncode == 0, result.stdout


def test_importing_esper_imports_nothing_heavy():
    names = imported_by("import esper; esper.build_host; esper.load_task; esper.Reference")
    assert "torch" in names
    assert not names & {"sklearn", "scipy", "matplotlib", "mnist1d", "PIL", "pandas", "requests"}


def test_reading_reports_needs_no_torch():
    names = imported_by("import esper.dashboard, esper.leyline; esper.Stage")
    assert not names & {"torch", "numpy", "matplotlib"}


def test_a_misspelt_choice_is_an_error_without_a_type_checker_too():
    assert (
        "unknown optimizer 'adam': did you mean 'adamw'?"
        in run("import esper; esper.TrainConfig(optimizer='adam')").stderr
    )


def test_public_names():
    for name in ("register_host", "register_blueprint", "register_task", "build_host", "HostSpec", "load_task", "Op"):
        assert callable(getattr(esper, name))
        assert name in dir(esper)
    assert run("import esper; esper.kasmina.build_host; esper.dashboard").returncode == 0
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = esper.nothing


SOURCES = {path.relative_to(PACKAGE): path.read_text() for path in PACKAGE.rglob("*.py")}


def test_nobody_reaches_into_compiled_modules():
    """A7: the plain module is kept and looked into."""
    assert not [str(path) for path, text in SOURCES.items() if "_orig_mod" in text]


def test_nobody_reads_single_numbers_from_a_device_on_the_hot_path():
    """A24: `.item()` and `.tolist()` appear where reports are made, not where lives are lived or learned from."""
    hot = ["simic/rollout.py", "simic/advantages.py", "tamiyo/network.py", "tamiyo/heads.py", "tamiyo/masks.py",
           "tamiyo/features.py", "tolaria/fleet.py", "tolaria/network.py", "tolaria/stack.py"]  # fmt: skip
    for name in hot:
        assert ".item()" not in SOURCES[Path(name)], name


def test_protocols_have_precise_types():
    """E8."""
    source = SOURCES[Path("tamiyo/policies.py")]
    protocol = source[source.index("class Policy(Protocol)") : source.index("def draws")]
    assert "Any" not in protocol
    assert "object" not in protocol


def test_no_training_file_is_long():
    """D9: the loop reads as a paragraph."""
    longest = max(SOURCES, key=lambda path: len(SOURCES[path].splitlines()))
    assert len(SOURCES[longest].splitlines()) < 500, longest
