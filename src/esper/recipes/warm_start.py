"""Warm start of a controller: take over another one's weights, search for good plans, and clone the winners."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from esper.leyline.actions import TWIN
from esper.leyline.errors import EsperError
from esper.leyline.state import Setting
from esper.leyline.tensor_files import match
from esper.recipes.config import Band, FleetConfig, Places, Recipe
from esper.simic.cloning import CloneConfig, CloneReport, clone
from esper.simic.rollout import Rollout, record_episodes
from esper.simic.search import random_plans, successive_halving
from esper.tamiyo import Controller
from esper.tamiyo.controller_files import SHIPPED, load_controller
from esper.tamiyo.policies import Doubling, Heuristic, LearnedPolicy, Never, Policy
from esper.tolaria import FleetEnv

Progress = Callable[[str, float, float], object]
"""Called with the step at hand, how many units of work are done, and how many there are."""


def unheard(step: str, done: float, total: float) -> None:
    """Ignore progress."""


class Took(NamedTuple):
    """Cost of a warm start."""

    lives: int
    decisions: int


class Shown(NamedTuple):
    """What there is to clone on one fleet."""

    best: Sequence[Policy]
    """The winners at every price of growth, price by price."""
    episodes: Rollout
    """Their recorded episodes."""
    took: Took


def begin(
    recipe: Recipe, controller: Controller, before: Controller | None = None, progress: Progress = unheard
) -> Took:
    """Give a controller its first weights, as `recipe.warm_start` says, and return what that cost.

    `before` is the controller of the stage before; without one it is loaded from `recipe.warm_start.run`, if given.
    """
    if recipe.warm_start.run:
        before = load_controller(folder_of(recipe.warm_start.run)).to(recipe.engine.place())
    if before is not None:
        source = recipe.warm_start.run or "the stage before"
        if not recipe.known:
            raise EsperError(f"known must list the fleets that {source} was trained on")
        match(source, controller.state_dict(), before.state_dict())
        controller.adopt(before)
    if not recipe.warm_start.plans:
        return Took(0, 0)
    shown, fleets = [], recipe.fleets
    for n, fleet in enumerate(fleets):
        places = Places(fleet, recipe.engine)
        shown.append(show(recipe, places, controller, before, partial(_within, progress, n, len(fleets))))
        places.fleet = None  # the next fleet may need its memory
    imitate(recipe, controller, shown, progress)
    return Took(*map(sum, zip(*(fleet.took for fleet in shown), strict=True)))


def folder_of(run: str) -> Path:
    """Return the folder of a run to continue from."""
    return SHIPPED if run == "shipped" else Path(run)


def prices_of(recipe: Recipe) -> tuple[float, ...]:
    """Return the prices of growth that the winners are searched for at: all that episodes draw from."""
    return recipe.learn.collect.prices or (recipe.learn.rent.end,)


def show(
    recipe: Recipe,
    places: Places,
    controller: Controller,
    before: Controller | None = None,
    progress: Progress = unheard,
) -> Shown:
    """Find the best policies for a fleet at every price, and record their episodes as the controller would see them.

    Where `before` was trained it is recorded itself; elsewhere it takes part in the tournament.
    """
    start, rng_seed = recipe.warm_start, recipe.learn.rng_seed
    fleet, hosts, prices = places.config, start.lives * start.best, prices_of(recipe)
    best, lives, rounds = [[LearnedPolicy(before)] if before else [] for _ in prices], 0, 0
    if tried := contestants(recipe, fleet, places.env(hosts, 1, Band.SHOW).setting, before):
        rounds = num_rounds(len(tried), start.best)
        counter = _Rounds(places, rounds, fleet.env.decisions, progress)
        best, lives = successive_halving(counter.build, tried, prices, start.hosts, start.best, on_step=counter.step)
    progress("recording episodes", rounds, rounds + 1)
    policies = [policy for winners in best for policy in winners]
    rents = [price for price, winners in zip(prices, best, strict=True) for _ in winners]
    env = places.env(hosts if len(best[0]) == 1 else start.lives, len(policies), Band.SHOW)
    episodes = record_episodes(env, policies, controller, rents, recipe.learn.reward, rng_seed)
    lives += env.fleet.num_hosts
    return Shown(policies, episodes, Took(lives, fleet.env.decisions * lives))


def contestants(recipe: Recipe, fleet: FleetConfig, setting: Setting, before: Controller | None) -> list[Policy]:
    """Return who takes part in the tournament on a fleet: nobody where `before` was trained."""
    if before and any(fleet.alike(known) for known in recipe.known):
        return []
    own = [LearnedPolicy(before)] if before else []
    doubling = [Doubling()] if setting.seed_costs is not None and TWIN in setting.space.blueprints else []
    plans = random_plans(setting, recipe.warm_start.plans, recipe.learn.rng_seed)
    return [Never(), Heuristic(), *doubling, *own, *plans]


def num_rounds(policies: int, best: int) -> int:
    """Return how many rounds a tournament takes, in each of which the better quarter stays."""
    rounds = 0
    while policies > best:
        policies, rounds = max(-(-policies // 4), best), rounds + 1
    return rounds


def imitate(
    recipe: Recipe, controller: Controller, shown: Sequence[Shown], progress: Progress = unheard
) -> CloneReport:
    """Clone the recorded episodes of all fleets together, and return the report of the last epoch."""
    config, report = clone_config(recipe), None
    progress(f"cloning, epoch 1 of {config.epochs}", 0, config.epochs)
    for report in clone(controller, [fleet.episodes for fleet in shown], config):
        done = report.epoch + 1
        progress(f"cloning, epoch {min(done + 1, config.epochs)} of {config.epochs}", done, config.epochs)
    assert report is not None
    return report


def clone_config(recipe: Recipe) -> CloneConfig:
    """Return how the winners are cloned; the critic learns returns with the discount that PPO uses.

    The episodes of a fleet at all prices are one rollout; the size of a minibatch does not depend on their number.
    """
    gamma, rng_seed = recipe.learn.ppo.gamma, recipe.learn.rng_seed
    minibatches = CloneConfig.minibatches * len(prices_of(recipe))
    return CloneConfig(epochs=recipe.warm_start.epochs, minibatches=minibatches, gamma=gamma, rng_seed=rng_seed)


def _within(progress: Progress, fleet: int, fleets: int, step: str, done: float, total: float) -> None:
    """Report the progress of one fleet as part of that of all fleets."""
    progress(f"search, fleet {fleet + 1} of {fleets}, {step}", fleet + done / total, fleets)


class _Rounds:
    """Builds the envs of a tournament, and reports its progress decision by decision."""

    def __init__(self, places: Places, rounds: int, episode: int, progress: Progress) -> None:
        self.places, self.rounds, self.episode, self.progress = places, rounds, episode, progress
        self.round = self.decisions = 0

    def build(self, hosts: int, group: int, round: int) -> FleetEnv:
        """Build an env for one round; no host takes part in two rounds."""
        if round != self.round:
            self.round, self.decisions = round, 0
        self.tell()
        return self.places.env(hosts, group, Band.SEARCH + round)

    def step(self, actions: object, step: object) -> None:
        self.decisions += 1
        self.tell()

    def tell(self) -> None:
        done = self.round + min(self.decisions / self.episode, 1.0)
        self.progress(f"round {self.round + 1} of {self.rounds}", done, self.rounds + 1)
