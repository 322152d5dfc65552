"""Search for growth plans: random and grid candidates, paired comparison, successive halving."""

import random
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from esper.leyline.actions import ALPHA_TARGETS, STYLES, TEMPOS, TWIN
from esper.leyline.errors import EsperError
from esper.leyline.state import Setting
from esper.simic.evaluation import Outcome, StepCallback, evaluate
from esper.tamiyo.policies import FixedPlan, PlanStep, Policy, SideBySide
from esper.tolaria import FleetEnv

P = TypeVar("P", bound=Policy)


def single_plans(setting: Setting, decisions: Sequence[int]) -> list[FixedPlan]:
    """Return one plan per blueprint, slot and decision, each of which germinates a single seed."""
    return [
        FixedPlan([PlanStep(decision, {"op": "GERMINATE", "slot": slot, "blueprint": name})])
        for decision in decisions
        for slot in setting.space.slots
        for name in setting.space.blueprints
    ]


def random_plans(setting: Setting, count: int, rng_seed: int = 0) -> list[FixedPlan]:
    """Return random plans: a seed in each of some slots, germinated within the first half of the episode.

    Half of the seeds are advanced two decisions after they germinate. Where blocks can be copied, half of the plans
    grow twins only.
    """
    if count < 1:
        raise EsperError(f"count must be at least 1, not {count}")
    generator = random.Random(rng_seed)
    return [FixedPlan(_random_plan(setting, generator)) for _ in range(count)]


def _random_plan(setting: Setting, generator: random.Random) -> list[PlanStep]:
    steps, blueprints = [], setting.space.blueprints
    if TWIN in blueprints and generator.random() < 0.5:
        blueprints = (TWIN,)
    for slot in generator.sample(setting.space.slots, generator.randint(1, len(setting.space.slots))):
        decision = generator.choice((0, generator.randrange(max(setting.episode // 2, 1))))
        action = {
            "op": "GERMINATE",
            "slot": slot,
            "blueprint": generator.choice(blueprints),
            "style": generator.choice(list(STYLES)),
            "tempo": generator.choice(list(TEMPOS)),
            "alpha_target": generator.choice(list(ALPHA_TARGETS)),
        }
        steps.append(PlanStep(decision, action))
        if generator.random() < 0.5:
            steps.append(PlanStep(decision + 2, {"op": "ADVANCE", "slot": slot}))
    return steps


def compare(
    env: FleetEnv,
    policies: Sequence[Policy],
    rent: float,
    rng_seed: int = 0,
    on_step: StepCallback = lambda actions, step: None,
) -> list[Outcome]:
    """Evaluate several policies on hosts with identical initial weights and batches.

    The env's groups must have one host per policy.

    Returns:
        For each policy, the outcomes of its hosts, one per group.
    """
    if env.config.group != len(policies):
        raise EsperError(f"the env's group ({env.config.group}) must equal the number of policies, {len(policies)}")
    outcome = evaluate(env, SideBySide(policies), rent, rng_seed, on_step=on_step)
    return [Outcome(*(x.view(-1, len(policies))[:, i] for x in outcome)) for i in range(len(policies))]


def successive_halving(
    build: Callable[[int, int, int], FleetEnv],
    policies: Sequence[P],
    rent: float,
    hosts: int = 2,
    best: int = 1,
    room: int = 512,
    on_step: StepCallback = lambda actions, step: None,
) -> tuple[list[P], int]:
    """Find the best policies by successive halving with a factor of 4 (arXiv:1502.07943).

    Every round keeps the best quarter and evaluates it on four times as many fresh hosts, so that all rounds cost
    about as much.

    Args:
        build: `build(hosts, group, round)` returns an env with `hosts` groups of `group` hosts, fresh in every round.
        policies: Candidates.
        rent: Price of growth in J.
        hosts: Hosts per policy in the first round.
        best: Number of policies to return.
        room: Largest number of hosts in one env; more policies are evaluated in several envs.

    Returns:
        The `best` policies, the best first, and the number of episodes that the search took.
    """
    left, episodes, round = list(policies), 0, 0
    while len(left) > best:
        at_once = max(room // hosts, 1)
        parts = [left[i : i + at_once] for i in range(0, len(left), at_once)]
        means = torch.cat([_means(build(hosts, len(part), round), part, rent, on_step) for part in parts])
        order = means.argsort(descending=True, stable=True).tolist()
        episodes += hosts * len(left)
        left = [left[i] for i in order[: max(-(-len(left) // 4), best)]]
        hosts, round = 4 * hosts, round + 1
    return left, episodes


def pair_plans(setting: Setting, decisions: Sequence[int], count: int, rng_seed: int = 0) -> list[FixedPlan]:
    """Return a random sample of pairs of single plans in different slots."""
    singles = single_plans(setting, decisions)
    both = [
        FixedPlan([*a.plan, *b.plan])
        for a, b in combinations(singles, 2)
        if a.plan[0].action["slot"] != b.plan[0].action["slot"]
    ]
    return random.Random(rng_seed).sample(both, min(count, len(both)))


def _means(env: FleetEnv, policies: Sequence[Policy], rent: float, on_step: StepCallback) -> Float[Tensor, " P"]:
    return Tensor([outcome.objective.mean().item() for outcome in compare(env, policies, rent, on_step=on_step)])
