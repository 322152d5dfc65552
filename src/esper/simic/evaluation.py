"""One life of every host of a fleet under any policy."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esper.leyline.rng import Purpose, key, uniform
from esper.leyline.state import Signals
from esper.simic.rewards import objective
from esper.tamiyo.features import View, empty_history, remember
from esper.tamiyo.policies import Policy, draws
from esper.tolaria import FleetEnv
from esper.tolaria.env import Step

StepCallback = Callable[[Int[Tensor, "N H"], Step], None]
"""Sees every decision and what it led to."""


class Outcome(NamedTuple):
    """How each host ended; of a sick one, its last good epoch, minus the penalty.

    If the env holds test data, score and objective are of it, and a sick host is no better than chance."""

    objective: Float[Tensor, " N"]
    score: Float[Tensor, " N"]
    metric: Float[Tensor, " N"]
    growth: Float[Tensor, " N"]
    flops: Float[Tensor, " N"]
    """Of its whole life."""
    sick: Float[Tensor, " N"]


def evaluate(
    env: FleetEnv,
    policy: Policy,
    rent: float,
    rng_seed: int = 0,
    budget: float = float("inf"),
    on_step: StepCallback = lambda actions, step: None,
) -> Outcome:
    """Fresh hosts live through one episode. All lives must begin together: a staggered env would cut some short."""
    signals = env.reset()
    hosts, device = len(signals.age), signals.age.device
    fresh = torch.ones_like(signals.sibling)
    history = remember(empty_history(hosts, device), signals, fresh)
    rents, budgets = (torch.full((hosts,), x, device=device) for x in (rent, budget))
    policy.begin(env.setting, hosts, device)
    alive, found = fresh.clone(), Outcome(*(torch.zeros(len(Outcome._fields), hosts, device=device)))
    for decision in range(env.setting.episode):
        keys = key(key(rng_seed, Purpose.ACTION, decision), torch.arange(hosts, device=device))
        action = policy.decide(
            View(signals, history, env.setting, rents, budgets), fresh, uniform(keys, draws(env.setting))
        )
        step = env.step(action)
        on_step(action, step)
        over = (step.terminated | step.truncated) & alive
        final = step.final if step.test is None else on_test(step, env)
        ended = Outcome(
            objective(final, rents) - step.penalty,
            final.score.float(),
            final.metric.float(),
            final.growth.float(),
            found.flops + final.flops.float(),
            step.terminated.float(),
        )
        running = found._replace(flops=torch.where(alive, ended.flops, found.flops))
        found = Outcome(*(torch.where(over, new, old) for new, old in zip(ended, running, strict=True)))
        alive &= ~over
        signals, fresh = step.signals, step.terminated | step.truncated
        history = remember(history, signals, fresh)
    return found


def on_test(step: Step, env: FleetEnv) -> Signals:
    """Where a life ended, with what it scores on test data; a sick host's answers are no better than guessing."""
    assert step.test is not None
    chance, guess = env.setting.chance, env.setting.guess
    score = torch.where(step.terminated, chance, step.test.score)
    metric = torch.where(step.terminated, chance if env.fleet.objective.direction == "max" else guess, step.test.metric)
    return step.final._replace(score=score.to(step.final.score), metric=metric.to(step.final.metric))
