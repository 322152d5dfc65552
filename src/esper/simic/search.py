"""Plans written by chance, and policies compared host by host."""

import random
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from esper.leyline.actions import ALPHA_TARGETS, STYLES, TEMPOS
from esper.leyline.errors import EsperError
from esper.leyline.state import Setting
from esper.simic.evaluation import Outcome, StepCallback, evaluate
from esper.tamiyo.policies import FixedPlan, PlanStep, Policy, SideBySide
from esper.tolaria import FleetEnv

P = TypeVar("P", bound=Policy)


def single_plans(setting: Setting, decisions: Sequence[int]) -> list[FixedPlan]:
    """Every blueprint in every slot at each of these times, alone."""
    return [
        FixedPlan([PlanStep(decision, {"op": "GERMINATE", "slot": slot, "blueprint": name})])
        for decision in decisions
        for slot in setting.space.slots
        for name in setting.space.blueprints
    ]


def random_plans(setting: Setting, count: int, rng_seed: int = 0) -> list[FixedPlan]:
    """Seeds of any kind in some slots, from the beginning or later in the first half; half of them hurried on."""
    if count < 1:
        raise EsperError(f"count must be at least 1, not {count}")
    generator = random.Random(rng_seed)
    return [FixedPlan(_random_plan(setting, generator)) for _ in range(count)]


def _random_plan(setting: Setting, generator: random.Random) -> list[PlanStep]:
    lines = []
    for slot in generator.sample(setting.space.slots, generator.randint(1, len(setting.space.slots))):
        decision = generator.choice((0, generator.randrange(max(setting.episode // 2, 1))))
        seed = {
            "op": "GERMINATE",
            "slot": slot,
            "blueprint": generator.choice(setting.space.blueprints),
            "style": generator.choice(list(STYLES)),
            "tempo": generator.choice(list(TEMPOS)),
            "alpha_target": generator.choice(list(ALPHA_TARGETS)),
        }
        lines.append(PlanStep(decision, seed))
        if generator.random() < 0.5:
            lines.append(PlanStep(decision + 2, {"op": "ADVANCE", "slot": slot}))
    return lines


def compare(
    env: FleetEnv,
    policies: Sequence[Policy],
    rent: float,
    rng_seed: int = 0,
    on_step: StepCallback = lambda actions, step: None,
) -> list[Outcome]:
    """One life under each policy, for hosts of the same weights and batches: outcomes over groups, (N / policies)."""
    if env.config.group != len(policies):
        raise EsperError(f"the env's group ({env.config.group}) must be the number of policies, {len(policies)}")
    outcome = evaluate(env, SideBySide(policies), rent, rng_seed, on_step=on_step)
    return [Outcome(*(x.view(-1, len(policies))[:, i] for x in outcome)) for i in range(len(policies))]


def tournament(
    build: Callable[[int, int, int], FleetEnv],
    policies: Sequence[P],
    rent: float,
    hosts: int = 2,
    best: int = 1,
    room: int = 512,
    on_step: StepCallback = lambda actions, step: None,
) -> tuple[list[P], int]:
    """All meet on a few hosts, then the better quarter on four times as many fresh ones, until no more than `best` are
    left: every round costs the same. Returns those, the best first, and how many lives it took.

    `build(hosts, group, round)` makes an env for so many policies; `room` is how many hosts it may hold.
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
    """Some pairs of single plans in different slots."""
    singles = single_plans(setting, decisions)
    both = [
        FixedPlan([*a.plan, *b.plan])
        for a, b in combinations(singles, 2)
        if a.plan[0].action["slot"] != b.plan[0].action["slot"]
    ]
    return random.Random(rng_seed).sample(both, min(count, len(both)))


def _means(env: FleetEnv, policies: Sequence[Policy], rent: float, on_step: StepCallback) -> Float[Tensor, " P"]:
    return Tensor([outcome.objective.mean().item() for outcome in compare(env, policies, rent, on_step=on_step)])
