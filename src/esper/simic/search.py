"""Search for growth plans: random and grid candidates, paired comparison, successive halving."""

import random
from collections.abc import Callable, Sequence
from itertools import chain, combinations
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from esper.leyline.actions import ALPHA_TARGETS, STYLES, TEMPOS, TWIN
from esper.leyline.errors import EsperError
from esper.leyline.state import Setting
from esper.simic.evaluation import Outcome, StepCallback, evaluate
from esper.simic.lives import side_by_side
from esper.simic.rewards import objective
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
    outcome = _evaluate_in_groups(env, policies, rent, rng_seed, on_step)
    return [Outcome(*(x.view(-1, len(policies))[:, i] for x in outcome)) for i in range(len(policies))]


def successive_halving(
    build: Callable[[int, int, int], FleetEnv],
    policies: Sequence[P],
    prices: Sequence[float],
    hosts: int = 2,
    best: int = 1,
    room: int = 512,
    on_step: StepCallback = lambda actions, step: None,
) -> tuple[list[list[P]], int]:
    """Find the best policies at each price of growth by successive halving with a factor of 4 (arXiv:1502.07943).

    Every round keeps the best quarter at each price, and evaluates all that is left on four times as many fresh hosts.
    One episode counts at all prices; of a policy that reads the rent, it counts at the price that the policy saw. Since
    the winners of all prices are chosen from the same episodes, the best plan at a higher price grows no more.

    Args:
        build: `build(hosts, group, round)` returns an env with `hosts` groups of `group` hosts, fresh in every round.
        policies: Candidates.
        prices: Prices of growth in J.
        hosts: Hosts per policy in the first round.
        best: Number of policies to return for each price.
        room: Largest number of hosts in one env; more policies are evaluated in several envs.

    Returns:
        The `best` policies of each price, the best first, and the number of episodes that the search took.
    """
    entries = [(policy, valid) for policy in policies for valid in _valid_at(policy, len(prices))]
    left = [[i for i, (_, valid) in enumerate(entries) if price in valid] for price in range(len(prices))]
    count, episodes, round = len(policies), 0, 0
    while count > best:
        playing = list(dict.fromkeys(chain.from_iterable(left)))
        at_once, means = max(room // hosts, 1), torch.full((len(prices), len(entries)), torch.nan)
        for part in (playing[i : i + at_once] for i in range(0, len(playing), at_once)):
            means[:, part] = _means(build(hosts, len(part), round), [entries[i] for i in part], prices, on_step)
        episodes += hosts * len(playing)
        count = max(-(-count // 4), best)
        left = [
            _highest(means[price], [i for i in playing if price in entries[i][1]], count)
            for price in range(len(prices))
        ]
        hosts, round = 4 * hosts, round + 1
    return [[entries[i][0] for i in those] for those in left], episodes


def pair_plans(setting: Setting, decisions: Sequence[int], count: int, rng_seed: int = 0) -> list[FixedPlan]:
    """Return a random sample of pairs of single plans in different slots."""
    singles = single_plans(setting, decisions)
    both = [
        FixedPlan([*a.plan, *b.plan])
        for a, b in combinations(singles, 2)
        if a.plan[0].action["slot"] != b.plan[0].action["slot"]
    ]
    return random.Random(rng_seed).sample(both, min(count, len(both)))


def _valid_at(policy: Policy, prices: int) -> list[range]:
    """Return, for each episode that a policy needs, the indices of the prices at which it counts."""
    reads_rent = getattr(policy, "reads_rent", True)
    return [range(i, i + 1) for i in range(prices)] if reads_rent else [range(prices)]


def _means(
    env: FleetEnv, entries: Sequence[tuple[Policy, range]], prices: Sequence[float], on_step: StepCallback
) -> Float[Tensor, "R P"]:
    """Return the mean J of each entry's episodes at each price, also where it does not count."""
    paid = [prices[valid[0]] for _, valid in entries]
    outcome = _evaluate_in_groups(env, [policy for policy, _ in entries], paid, 0, on_step)
    penalty = env.config.penalty * outcome.sick
    at_prices = [(objective(outcome, price) - penalty).view(-1, len(entries)) for price in prices]
    return Tensor([[j[:, i].mean().item() for i in range(len(entries))] for j in at_prices])


def _evaluate_in_groups(
    env: FleetEnv, policies: Sequence[Policy], rent: float | Sequence[float], rng_seed: int, on_step: StepCallback
) -> Outcome:
    """Evaluate the policies side by side, at one price of growth or one for each, and return all hosts' outcomes."""
    if env.config.group != len(policies):
        raise EsperError(f"the env's group ({env.config.group}) must equal the number of policies, {len(policies)}")
    paid = side_by_side(rent, len(policies), env.fleet.num_hosts, env.fleet.device)
    return evaluate(env, SideBySide(policies), paid, rng_seed, on_step=on_step)


def _highest(means: Float[Tensor, " P"], indices: Sequence[int], count: int) -> list[int]:
    """Return those of the indices at which the means are highest, in order."""
    order = means[list(indices)].argsort(descending=True, stable=True).tolist()
    return [indices[i] for i in order[:count]]
