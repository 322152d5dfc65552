"""Rooms: imports in one direction, light ones, and each re-exports only its own names."""

import ast
import inspect
import os
import subprocess
import sys
import typing
from importlib import import_module
from pathlib import Path

import pytest
from torch import Tensor

import esper
from esper.tamiyo.policies import Policy

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
    names = imported_by("import esper; esper.build_host; esper.load_task; esper.HostTrainer")
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


WAITS = {
    "simic/rollout.py": {
        "must_be_finite": "once, before something is learned from",
        "__init__": "once for all lives",
        "_step": "only where time limits are external",
    },
    "simic/advantages.py": {"against_siblings": "once an update"},
    "simic/ppo.py": {
        "sequences": "once an update",
        "step": "once a minibatch, where there is a target_kl",
        "_broken": "once an update",
    },
    "tamiyo/heads.py": {"check": "never in a loop"},
    "tolaria/fleet.py": {"known": "once a decision", "assignment": "only where seeds are switched over on request"},
    "tolaria/network.py": {"tend": "once a decision; what follows is numpy's"},
    "tolaria/env.py": {"step": "once a decision: has any life ended?"},
    "tolaria/governor.py": {"restore": "only where a host has fallen sick"},
    "kasmina/lifecycle.py": {"problems": "only of files"},
    "kasmina/birth.py": {"_constructed": "only for modules of others"},
    "kasmina/blending.py": {},
    "kasmina/gates.py": {},
    "tamiyo/features.py": {},
    "tamiyo/masks.py": {},
    "tamiyo/network.py": {},
    "tolaria/stack.py": {},
}
"""The files in which lives are lived and learned from, and the functions there that may wait for a device."""


READS = ("item", "tolist", "cpu", "numpy")


def waits(source: str) -> set[str]:
    """The functions that read numbers from a device, by asking for the truth or the number that some call returns, too;
    or that copy new ones there, which waits as well."""
    found: set[str] = set()

    def reads(call: ast.Call) -> bool:
        if isinstance(call.func, ast.Attribute):
            return call.func.attr == "new_tensor" or (call.func.attr in READS and not call.args)
        numbers = isinstance(call.func, ast.Name) and call.func.id in ("bool", "int", "float")
        return numbers and any(isinstance(node, ast.Call) for arg in call.args for node in ast.walk(arg))

    def visit(node: ast.AST, function: str) -> None:
        if isinstance(node, ast.Call) and reads(node):
            found.add(function)
        for child in ast.iter_child_nodes(node):
            visit(child, node.name if isinstance(node, ast.FunctionDef) else function)

    visit(ast.parse(source), "")
    return found


@pytest.mark.parametrize("file", WAITS)
def test_nobody_waits_for_a_device_on_the_hot_path(file):
    """A24: numbers are read where reports are made, not where lives are lived or learned from, but for the listed."""
    assert waits(SOURCES[Path(file)]) == set(WAITS[file])


def test_protocols_have_precise_types():
    """E8."""
    for name in ("begin", "decide"):
        hints = typing.get_type_hints(getattr(Policy, name))
        assert hints.keys() == {*inspect.signature(getattr(Policy, name)).parameters, "return"} - {"self"}
        assert not {typing.Any, object} & set(hints.values())
        assert not any(hint in (Tensor, tuple, dict, list) for hint in hints.values()), "shapes and items are said, too"


def test_no_training_file_is_long():
    """D9: the loop reads as a paragraph."""
    longest = max(SOURCES, key=lambda path: len(SOURCES[path].splitlines()))
    assert len(SOURCES[longest].splitlines()) < 500, longest
