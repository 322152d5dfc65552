"""A head start: the controller begins where another run has ended, or as a clone of the best of never, the heuristic
and plans written by chance, or both."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from esper.leyline.errors import EsperError
from esper.leyline.tensor_files import match
from esper.recipes.config import Band, FleetConfig, Places, Recipe
from esper.simic.cloning import CloneConfig, CloneReport, clone
from esper.simic.rollout import Rollout, record_episodes
from esper.simic.search import random_plans, successive_halving
from esper.tamiyo import Controller
from esper.tamiyo.controller_files import SHIPPED, load_controller
from esper.tamiyo.policies import Heuristic, LearnedPolicy, Never, Policy
from esper.tolaria import FleetEnv


class Took(NamedTuple):
    """What it takes to find and to show something."""

    lives: int
    decisions: int


class Shown(NamedTuple):
    """What there is to imitate on one fleet."""

    best: Sequence[Policy]
    episodes: Rollout
    """Their lives."""
    took: Took


def begin(recipe: Recipe, controller: Controller) -> Took:
    """Take over from the run that it goes on from, if there is one, and imitate the best on every fleet, if any plans
    are to be tried."""
    before = None
    if recipe.warm_start.run:
        if not recipe.known:
            raise EsperError(f"known must say what {recipe.warm_start.run} has learned from")
        before = load_controller(folder_of(recipe.warm_start.run)).to(recipe.engine.place())
        match(recipe.warm_start.run, controller.state_dict(), before.state_dict())
        controller.adopt(before)
    if not recipe.warm_start.plans:
        return Took(0, 0)
    shown = [show(recipe, fleet, controller, before) for fleet in recipe.fleets]
    imitate(recipe, controller, shown)
    return Took(*map(sum, zip(*(fleet.took for fleet in shown), strict=True)))


def folder_of(run: str) -> Path:
    """The folder of a run to go on from."""
    return SHIPPED if run == "shipped" else Path(run)


def show(recipe: Recipe, fleet: FleetConfig, controller: Controller, before: Controller | None = None) -> Shown:
    """The best on a fleet's hosts, and their lives as the controller would see them. What the one `before` has learned
    it shows itself; elsewhere a tournament decides, in which it takes part."""
    start, rent, rng_seed = recipe.warm_start, recipe.learn.rent.end, recipe.learn.rng_seed
    places, hosts = Places(fleet, recipe.engine), start.lives * start.best
    best, lives = [LearnedPolicy(before)] if before else [], 0
    if not before or not any(fleet.alike(known) for known in recipe.known):
        setting = places.env(hosts, 1, Band.SHOW).setting
        tried = [Never(), Heuristic(), *best, *random_plans(setting, start.plans, rng_seed)]
        best, lives = successive_halving(partial(_build, places), tried, rent, start.hosts, start.best)
    env = places.env(hosts if len(best) == 1 else start.lives, len(best), Band.SHOW)
    episodes = record_episodes(env, best, controller, rent, recipe.learn.reward, rng_seed)
    lives += env.fleet.num_hosts
    return Shown(best, episodes, Took(lives, fleet.env.episode * lives))


def imitate(recipe: Recipe, controller: Controller, shown: Sequence[Shown]) -> CloneReport:
    """Learn from all fleets together. Returns what the last pass says."""
    *_, last = clone(controller, [fleet.episodes for fleet in shown], clone_config(recipe))
    return last


def clone_config(recipe: Recipe) -> CloneConfig:
    """How the best are imitated: the critic expects returns as PPO will discount them."""
    gamma, rng_seed = recipe.learn.ppo.gamma, recipe.learn.rng_seed
    return CloneConfig(epochs=recipe.warm_start.epochs, gamma=gamma, rng_seed=rng_seed)


def _build(places: Places, hosts: int, group: int, round: int) -> FleetEnv:
    return places.env(hosts, group, Band.SEARCH + round)
