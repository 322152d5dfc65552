"""Evaluation of a policy: one episode of every host of a fleet."""

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
"""Called after every decision with the actions of all hosts and the env's step."""


class Outcome(NamedTuple):
    """Final results of every host's episode.

    A host that failed counts with its last good epoch, minus the penalty. If the env holds test data, objective, score
    and metric are measured on it, and a failed host scores at chance level.
    """

    objective: Float[Tensor, " N"]
    """J = score - rent * ln(1 + growth), minus the penalty of a failed host."""
    score: Float[Tensor, " N"]
    """Score from 0 to 1."""
    metric: Float[Tensor, " N"]
    """The task's metric, such as accuracy or loss."""
    growth: Float[Tensor, " N"]
    """Added parameters over those of the bare host."""
    flops: Float[Tensor, " N"]
    """FLOPs of the whole episode."""
    sick: Float[Tensor, " N"]
    """1 if the host failed, else 0."""


def evaluate(
    env: FleetEnv,
    policy: Policy,
    rent: float,
    rng_seed: int = 0,
    budget: float = float("inf"),
    on_step: StepCallback = lambda actions, step: None,
) -> Outcome:
    """Run one episode of every host of a fleet under a policy, and return its outcome.

    Args:
        env: Fleet to run, which is reset first. Its episodes must not be staggered: late ones would be cut short.
        policy: Controller or rule that decides, such as `LearnedPolicy(controller)`, `Heuristic()` or `Never()`.
        rent: Price of growth in J.
        rng_seed: Seed of the policy's random numbers.
        budget: Largest growth that a host may reach.
        on_step: Called after every decision with the actions and the env's step.

    Returns:
        An `Outcome` with one entry per host. Two policies are comparable host by host if their envs are built alike.

    Example:
        ```python
        outcome = evaluate(env, LearnedPolicy(controller), rent=0.02)
        print(outcome.objective.mean(), outcome.growth.mean())
        ```
    """
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
    """Return the final signals with score and metric on test data; a failed host gets those of guessing."""
    assert step.test is not None
    chance, guess = env.setting.chance, env.setting.guess
    score = torch.where(step.terminated, chance, step.test.score)
    metric = torch.where(step.terminated, chance if env.fleet.objective.direction == "max" else guess, step.test.metric)
    return step.final._replace(score=score.to(step.final.score), metric=metric.to(step.final.metric))
