"""Recipes survive a JSON file, and a file that holds nonsense is refused with the place and the reason."""

import json
from dataclasses import replace

import pytest
import torch

from esper.leyline.errors import EsperError
from esper.recipes import RECIPES, Recipe, recipe
from esper.tolaria import Engine

NEED_A_GPU = ("mnist1d_gpu", "general", "further", "wider", "practice", "cifar10")


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_comes_back_as_it_was(name):
    asked = recipe(name)
    assert asked.name == name
    assert Recipe.revived(json.loads(json.dumps(asked.plain(), allow_nan=False))) == asked
    assert RECIPES[name].__doc__


@pytest.mark.parametrize("name", NEED_A_GPU)
def test_without_a_gpu_its_recipes_say_so(name):
    """When it is to be used; it can be read anywhere, as part of a colleague's run."""
    if torch.cuda.is_available():
        assert recipe(name).engine.place().type == "cuda"
    else:
        with pytest.raises(EsperError, match="device 'cuda' is not available here; use 'cpu'"):
            recipe(name).build()


def broken(**changes):
    plain = recipe("smoke").plain()
    for path, value in changes.items():
        *way, last = path.split("__")
        at = plain
        for step in way:
            at = at[int(step)] if step.isdecimal() else at[step]
        at[last] = value
    return plain


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        (broken(lern=1), "recipe has an unknown field 'lern'"),
        (broken(learn__ppo__lr="fast"), r"recipe\.learn\.ppo\.lr must be a number, not 'fast'"),
        (broken(learn__updates=2.5), r"recipe\.learn\.updates must be of type int, not 2.5"),
        (broken(learn__updates=True), r"recipe\.learn\.updates must be of type int, not True"),
        (broken(fleets=3), r"recipe\.fleets must be a list, not 3"),
        (broken(fleets=[]), "fleets must hold at least one"),
        (broken(fleets__0__train__clip=-1.0), "clip must be positive, not -1.0"),
        (broken(fleets__0__env=None), r"recipe\.fleets\[0\]\.env must be an object"),
        (broken(checkpoint_every=0), "checkpoint_every must be at least 1"),
        (broken(exam=1), "exam must be at least 2 hosts, or 0 for none, not 1"),
        (broken(learn__collect__budget="lots"), r"recipe\.learn\.collect\.budget must be a number"),
    ],
)
def test_nonsense_is_refused_with_its_place(plain, message):
    with pytest.raises(EsperError, match=message):
        Recipe.revived(plain)


def test_an_unknown_recipe_suggests_another():
    with pytest.raises(EsperError, match="unknown recipe 'smok': did you mean 'smoke'"):
        recipe("smok")


def test_groups_of_siblings_learn_at_the_rates_of_their_recipe():
    fleet = recipe("smoke").fleets[0]
    fleet = replace(fleet, hosts=12, rates=(0.5, 2.0), env=replace(fleet.env, group=4))
    built = fleet.build(Engine()).fleet
    expected = torch.tensor([0.5] * 4 + [2.0] * 4 + [0.5] * 4, dtype=torch.float64) * fleet.train.lr
    assert torch.equal(built.lr, expected)
    assert torch.equal(built.seed_lr, expected[:, None].expand_as(built.seed_lr))
    with pytest.raises(EsperError, match="rates must be positive"):
        replace(fleet, rates=(0.0,))
    with pytest.raises(EsperError, match="hosts must be at least 16, a group for each of the rates"):
        replace(fleet, rates=(0.5, 1.0, 2.0, 4.0))
