"""The public API: one table, on which everything that shows it agrees."""

import ast
import pydoc
from pathlib import Path

import pytest

import esper

HIDDEN = ("per_head", "Voice", "Vitals", "Setting", "Step", "Gate", "Transition", "Slot", "Seed", "blueprint", "train")
NEEDED = ("Objective", "Policy", "Never", "Heuristic", "recipe", "hold_exam", "learn_offline", "grow_host")


def test_dir_all_and_star_import_agree():
    everything: dict[str, object] = {}
    exec("from esper import *", everything)
    assert {name for name in everything if not name.startswith("__")} == set(esper.__all__)
    assert set(dir(esper)) == {*esper.__all__, "__version__"}
    assert esper.__all__ == sorted(set(esper.__all__))


def test_help_names_everything_with_its_summary():
    text = pydoc.plain(pydoc.render_doc(esper))
    for name in esper.__all__:
        assert name in text, name
    assert "Train neural networks that start small" in text


def test_what_type_checkers_and_completion_see_is_the_table():
    tree = ast.parse(Path(esper.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    found = {
        node.module.removeprefix("esper."): tuple(alias.name for alias in node.names)
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module
    }
    assert {module: set(names) for module, names in found.items()} == {m: set(n) for m, n in esper._PUBLIC.items()}


@pytest.mark.parametrize("name", HIDDEN)
def test_internals_are_hidden(name):
    assert name not in esper.__all__
    with pytest.raises(AttributeError, match=f"no attribute {name!r}"):
        getattr(esper, name)


@pytest.mark.parametrize("name", NEEDED)
def test_what_users_need_is_there(name):
    assert name in esper.__all__
    assert getattr(esper, name) is not None
