"""Recipes survive a JSON file, and a file that holds nonsense is refused with the place and the reason."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from esper.leyline.errors import EsperError
from esper.recipes import RECIPES, Recipe, recipe
from esper.recipes.config import Band, Places, PretrainConfig, WarmStartConfig
from esper.tolaria import Engine

NEED_A_GPU = ("mnist1d_gpu", "general", "cifar10")


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
        with pytest.raises(EsperError, match=r"device 'cuda' is not available on this machine; use .*--device cpu"):
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


def test_bands_are_far_apart():
    """Rounds of a tournament and trainings are counted on from a band, and a recipe's own seed is added."""
    bands = sorted(Band)
    assert min(after - before for before, after in pairwise(bands)) >= 1_000_000


def test_places_are_as_new_for_whoever_comes_next():
    (fleet,) = recipe("smoke").fleets
    env = replace(fleet.env, staggered=True, rng_seed=7, episode=5)
    places = Places(replace(fleet, hosts=8, rates=(0.5, 2.0), env=env), Engine())
    first = places.env(2, 2, Band.TUNE)
    assert first.config == replace(env, staggered=False, rng_seed=7 + Band.TUNE, group=2)
    for _ in range(2):
        assert first.fleet.lr.tolist() == pytest.approx([0.02, 0.02, 0.08, 0.08])
        first.fleet.learn_at(torch.full((4,), 9.0, dtype=torch.float64))
        first = places.env(2, 2, Band.TUNE)
    fewer = places.env(1, 3, Band.SHOW, first.test, episode=2)
    assert (fewer.fleet.num_hosts, fewer.config.episode, fewer.config.group) == (3, 2, 3)
    assert len(fewer.reset().age.unique()) == 1, "all lives begin together"


def test_groups_of_siblings_learn_at_the_rates_of_their_recipe():
    fleet = recipe("smoke").fleets[0]
    fleet = replace(fleet, hosts=12, rates=(0.5, 2.0), env=replace(fleet.env, group=4))
    built = fleet.build(Engine()).fleet
    expected = torch.tensor([0.5] * 4 + [2.0] * 4 + [0.5] * 4, dtype=torch.float64) * fleet.train.lr
    assert torch.equal(built.lr, expected)
    assert torch.equal(built.seed_lr, expected[:, None].expand_as(built.seed_lr))
    with pytest.raises(EsperError, match="rates must hold at least one number, all positive"):
        replace(fleet, rates=(0.0,))
    with pytest.raises(EsperError, match="hosts must be at least 16, one group for each of the rates"):
        replace(fleet, rates=(0.5, 1.0, 2.0, 4.0))


def test_fields_of_older_configs_are_read_under_their_name_of_today():
    plain = recipe("mnist1d").plain()
    plain["start"] = plain.pop("warm_start")
    plain["learn"]["ppo"]["anchor_coef"] = 0.1
    assert Recipe.revived(plain) == recipe("mnist1d")


def test_stages_have_random_seeds_of_their_own():
    for rng_seed, asked in ((0, recipe("general")), (5, recipe("general").seeded(5))):
        for n, stage in enumerate(asked.stages):
            assert {stage.learn.rng_seed, *(fleet.env.rng_seed for fleet in stage.fleets)} == {rng_seed + 10 * n}
    assert recipe("smoke").seeded(7).learn.rng_seed == 7


def test_the_stages_of_general_add_up():
    asked = recipe("general")
    assert asked.updates == 32 + 8 + 6 + 8
    assert [len(stage.fleets) for stage in asked.stages] == [14, 22, 30, 30]
    assert [len(stage.known) for stage in asked.stages] == [0, 14, 22, 30]
    assert [stage.controller.size for stage in asked.stages] == [True, True, False, False]
    assert all(not stage.pretrain for stage in asked.stages)
    assert len(asked.learned_from) == 30
    (only,) = recipe("smoke").stages
    assert only == recipe("smoke")


def test_a_run_to_continue_from_comes_before_the_first_stage():
    asked = replace(recipe("general"), warm_start=WarmStartConfig(run="somewhere"), known=recipe("smoke").fleets)
    assert [stage.warm_start.run for stage in asked.stages] == ["somewhere", "", "", ""]
    assert asked.stages[0].known == recipe("smoke").fleets
    assert recipe("smoke").fleets[0] in asked.learned_from


def test_impossible_stages_are_refused():
    fleets = recipe("smoke").fleets
    for changes, message in (
        ({"fleets": ()}, "pretrain.fleets must hold at least one fleet"),
        ({"warm_start": WarmStartConfig(run="somewhere")}, "pretrain.warm_start.run must be empty"),
        ({"reveal": ("sise",)}, "unknown group of features 'sise': did you mean 'size'?"),
    ):
        with pytest.raises(EsperError, match=message):
            PretrainConfig(**({"fleets": fleets} | changes))
