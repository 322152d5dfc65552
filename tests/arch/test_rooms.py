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
    assert not [
        str(path) for path, text in SOURCES.items() if "_orig_mod" in text and path != Path("growth/wrappers.py")
    ]


WAITS = {
    "simic/rollout.py": {
        "require_finite": "once, before something is learned from",
        "__init__": "once for all lives",
        "_earned": "only where time limits are external",
    },
    "simic/advantages.py": {"subtract_group_mean": "once an update"},
    "simic/ppo.py": {
        "step": "once a minibatch, where there is a target_kl",
        "_non_finite": "once an update",
    },
    "simic/sequences.py": {"sequence_indices": "once an update", "finished": "once a recording"},
    "simic/lives.py": {},
    "tamiyo/heads.py": {"check": "never in a loop"},
    "tolaria/beginning.py": {"copied": "once a decision"},
    "tolaria/budget.py": {},
    "tolaria/fleet.py": {},
    "tolaria/measuring.py": {},
    "tolaria/optimizer.py": {},
    "tolaria/schedule.py": {
        "copied": "only between decisions",
        "schedule": "only where seeds are switched over on request",
    },
    "tolaria/training.py": {"train_epoch": "once a decision, on a budget: how many steps are made"},
    "tolaria/network.py": {"tend": "once a decision; what follows is numpy's"},
    "tolaria/env.py": {"step": "once a decision: has any life ended?"},
    "tolaria/governor.py": {"restore": "only where a host has fallen sick"},
    "kasmina/lifecycle.py": {"problems": "only of files"},
    "kasmina/birth.py": {"_constructed": "only for modules of others"},
    "kasmina/blending.py": {},
    "kasmina/gates.py": {},
    "tamiyo/features.py": {},
    "envs/describing.py": {},
    "tamiyo/masks.py": {},
    "tamiyo/network.py": {},
    "tolaria/stack.py": {},
}
"""The files in which lives are lived and learned from, and the functions there that may wait for a device."""


READS = ("item", "tolist", "cpu", "numpy", "unique")


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


@pytest.mark.parametrize("room", ["tolaria", "kasmina"])
def test_files_of_the_engine_do_one_thing(room):
    """At most 250 lines each."""
    lines = {str(path): len(text.splitlines()) for path, text in SOURCES.items() if path.parts[0] == room}
    assert lines
    assert not {path: count for path, count in lines.items() if count > 250}


LOOKED_AT = [
    path for path in SOURCES if path.parts[0] in ("exam", "simic", "recipes") or path == Path("tolaria/env.py")
]
"""The files through which decisions and arms go."""


def length(function: ast.FunctionDef) -> int:
    """Lines of a function without its docstring."""
    told = function.body[0].value if isinstance(function.body[0], ast.Expr) else None
    end, start = function.end_lineno or 0, function.lineno
    documented = isinstance(told, ast.Constant) and told.end_lineno is not None
    return end - start + 1 - ((told.end_lineno - told.lineno + 1) if documented else 0)


def names_in_a_row(node: ast.AST) -> int:
    """How many things an assignment or a loop takes over from something else by their position."""
    if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Tuple):
        targets = node.targets
    elif isinstance(node, ast.For | ast.comprehension) and not (
        isinstance(node.iter, ast.Call) and isinstance(node.iter.func, ast.Name) and node.iter.func.id == "zip"
    ):
        targets = [node.target]
    else:
        return 0
    return max((len(target.elts) for target in targets if isinstance(target, ast.Tuple)), default=0)


def long_tuple(hint: ast.expr | None) -> bool:
    """Whether a type hint is a tuple of more than three."""
    found = [node.slice for node in ast.walk(hint) if isinstance(node, ast.Subscript)] if hint else []
    return any(isinstance(slice, ast.Tuple) and len(slice.elts) > 3 for slice in found)


@pytest.mark.parametrize("path", LOOKED_AT, ids=str)
def test_functions_are_short_classes_are_small_and_records_have_names(path):
    """At most 45 lines a function, 12 methods a class, and three things handed on by position."""
    for node in ast.walk(ast.parse(SOURCES[path])):
        if isinstance(node, ast.FunctionDef):
            assert length(node) <= 45, f"{node.name} has {length(node)} lines"
            assert not long_tuple(node.returns), f"{node.name} returns a long tuple"
        if isinstance(node, ast.ClassDef):
            methods = [part.name for part in node.body if isinstance(part, ast.FunctionDef)]
            assert len(methods) <= 12, f"{node.name} has {len(methods)} methods"
        assert names_in_a_row(node) <= 3, f"line {getattr(node, 'lineno', 0)} unpacks {names_in_a_row(node)} things"
