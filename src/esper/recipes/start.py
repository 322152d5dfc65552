"""A head start: the controller begins as a clone of the best of the heuristic and plans that were written by chance."""

from esper.recipes.config import Band, Recipe
from esper.simic.cloning import CloneConfig, clone
from esper.simic.rollout import record_lives
from esper.simic.search import best_first, random_plans
from esper.tamiyo import Controller
from esper.tamiyo.policies import Heuristic


def begin(recipe: Recipe, controller: Controller) -> int:
    """Try the heuristic and some plans and imitate the best, on every fleet. Returns how many decisions that took."""
    start, rent = recipe.start, recipe.learn.rent.end
    episodes, decisions = [], 0
    for fleet in recipe.fleets:
        env = fleet.build_group(recipe.engine, start.hosts, start.plans + 1, Band.SEARCH)
        tried = [Heuristic(), *random_plans(env.setting, start.plans, recipe.learn.rng_seed)]
        best = best_first(env, tried, rent)[: start.best]
        shown = fleet.build_group(recipe.engine, start.lives, len(best), Band.SHOW)
        episodes.append(record_lives(shown, best, controller, rent, recipe.learn.reward, recipe.learn.rng_seed))
        decisions += fleet.env.episode * (env.fleet.num_hosts + shown.fleet.num_hosts)
    for _ in clone(controller, episodes, CloneConfig(epochs=start.epochs, rng_seed=recipe.learn.rng_seed)):
        pass
    return decisions
