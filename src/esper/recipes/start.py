"""A head start: the controller begins as a clone of the best of never, the heuristic and plans written by chance."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from esper.recipes.config import Band, FleetConfig, Recipe
from esper.simic.cloning import CloneConfig, CloneReport, clone
from esper.simic.rollout import Rollout, record_lives
from esper.simic.search import random_plans, tournament
from esper.tamiyo import Controller
from esper.tamiyo.policies import Heuristic, Never, Policy
from esper.tolaria import FleetEnv


class Shown(NamedTuple):
    """What there is to imitate on one fleet."""

    best: Sequence[Policy]
    episodes: Rollout
    """Their lives."""
    decisions: int
    """How many it took to find and to show them."""


def begin(recipe: Recipe, controller: Controller) -> int:
    """Find the best in a tournament and imitate them, on every fleet. Returns how many decisions that took."""
    shown = [show(recipe, fleet, controller) for fleet in recipe.fleets]
    imitate(recipe, controller, shown)
    return sum(fleet.decisions for fleet in shown)


def show(recipe: Recipe, fleet: FleetConfig, controller: Controller) -> Shown:
    """The best of a tournament on a fleet's hosts, and their lives as the controller would see them."""
    start, rent, rng_seed = recipe.start, recipe.learn.rent.end, recipe.learn.rng_seed
    build = partial(_build, recipe, fleet)
    tried = [Never(), Heuristic(), *random_plans(build(1, 1).setting, start.plans, rng_seed)]
    best, lives = tournament(build, tried, rent, start.hosts, start.best)
    env = fleet.build_group(recipe.engine, start.lives, len(best), Band.SHOW)
    episodes = record_lives(env, best, controller, rent, recipe.learn.reward, rng_seed)
    return Shown(best, episodes, fleet.env.episode * (lives + env.fleet.num_hosts))


def imitate(recipe: Recipe, controller: Controller, shown: Sequence[Shown]) -> CloneReport:
    """Learn from all fleets together. Returns what the last pass says."""
    gamma, rng_seed = recipe.learn.ppo.gamma, recipe.learn.rng_seed
    config = CloneConfig(epochs=recipe.start.epochs, gamma=gamma, rng_seed=rng_seed)
    *_, last = clone(controller, [fleet.episodes for fleet in shown], config)
    return last


def _build(recipe: Recipe, fleet: FleetConfig, hosts: int, group: int, round: int = 0) -> FleetEnv:
    return fleet.build_group(recipe.engine, hosts, group, Band.SEARCH + round)
