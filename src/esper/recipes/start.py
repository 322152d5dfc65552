"""A head start: the controller begins as a clone of the best of never, the heuristic and plans written by chance."""

from functools import partial

from esper.recipes.config import Band, FleetConfig, Recipe
from esper.simic.cloning import CloneConfig, clone
from esper.simic.rollout import record_lives
from esper.simic.search import random_plans, tournament
from esper.tamiyo import Controller
from esper.tamiyo.policies import Heuristic, Never
from esper.tolaria import FleetEnv


def begin(recipe: Recipe, controller: Controller) -> int:
    """Find the best in a tournament and imitate them, on every fleet. Returns how many decisions that took."""
    start, rent, rng_seed = recipe.start, recipe.learn.rent.end, recipe.learn.rng_seed
    episodes, decisions = [], 0
    for fleet in recipe.fleets:
        build = partial(_build, recipe, fleet)
        tried = [Never(), Heuristic(), *random_plans(build(1, 1).setting, start.plans, rng_seed)]
        best, lives = tournament(build, tried, rent, start.hosts, start.best)
        shown = fleet.at_rates(fleet.build_group(recipe.engine, start.lives, len(best), Band.SHOW))
        episodes.append(record_lives(shown, best, controller, rent, recipe.learn.reward, rng_seed))
        decisions += fleet.env.episode * (lives + shown.fleet.num_hosts)
    for _ in clone(
        controller, episodes, CloneConfig(epochs=start.epochs, gamma=recipe.learn.ppo.gamma, rng_seed=rng_seed)
    ):
        pass
    return decisions


def _build(recipe: Recipe, fleet: FleetConfig, hosts: int, group: int, round: int = 0) -> FleetEnv:
    return fleet.at_rates(fleet.build_group(recipe.engine, hosts, group, Band.SEARCH + round))
