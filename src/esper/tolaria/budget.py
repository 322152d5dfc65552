"""Pay for training out of a budget of FLOPs: how many steps a host may still make, and at which learning rate.

Training is charged step by step, with silent lessons where they are given; measuring the contribution of seeds is
charged after the epochs in which it is done, but not after the last. Plain validation is free: everyone does that.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esper.kasmina.cost import EpochCost
from esper.kasmina.gates import LifecycleConfig

WARMUP, DECAY = 0.02, 0.2
"""Shares of a budget over which the learning rate rises, and falls to 0 at the end."""


ROUNDING = 1e-6
"""Share of a step that does not count."""


class Clock(NamedTuple):
    """What lives on a budget have in common."""

    budget: Float[Tensor, " N"]
    """FLOPs of each host's whole life."""
    batch_size: int
    """Examples of a step."""
    steps: int
    """Steps of a whole epoch."""
    lesson_every: int = 1
    """Steps between two silent lessons."""
    pauses: Float[Tensor, "P N"] | None = None
    """FLOPs at which an epoch ends early: with the step that reaches them."""


class Pace(NamedTuple):
    """What every host does in one epoch of a life with a budget."""

    steps: Int[Tensor, " N"]
    """Steps that it makes. A life's last epoch takes all steps that are left."""
    share: Float[Tensor, " N"]
    """Share of the budget that was spent before."""
    per_step: Float[Tensor, " N"]
    """Share of the budget that one step costs, lessons averaged over steps."""
    charged: Float[Tensor, " N"]
    """FLOPs of the epoch."""
    is_last: Bool[Tensor, " N"]
    """Whether nothing is left after it."""

    def running(self, count: Tensor | int) -> Bool[Tensor, " N"]:
        """Return which hosts make the step of this number, from 0."""
        return count < self.steps

    def rate(self, count: Tensor | int) -> Float[Tensor, " N"]:
        """Return the factor on each host's learning rate at a step: warm-up, stable, linear decay."""
        share = self.share + count * self.per_step
        return torch.minimum((share + self.per_step) / WARMUP, (1 - share) / DECAY).clamp(0, 1)


def epoch_flops(
    cost: EpochCost,
    batch_size: int,
    steps: int,
    validation: int,
    lifecycle: LifecycleConfig,
    is_measured: Bool[Tensor, " N"],
) -> Int[Tensor, " N"]:
    """Return the FLOPs of a whole epoch: training, incubation and evaluation.

    Args:
        cost: FLOPs of one example.
        batch_size: Examples of a step.
        steps: Steps of the epoch.
        validation: Examples of the validation data.
        lifecycle: How often lessons are given.
        is_measured: Mask of the hosts whose counterfactuals count.
    """
    untaught = steps - -(-steps // lifecycle.lesson_every)
    trained = steps * cost.step - untaught * cost.lessons
    return batch_size * trained + validation * (cost.validation + is_measured * cost.counterfactuals)


def relative_cost(
    cost: EpochCost, trained: int, validation: Int[Tensor, " N"] | int, lifecycle: LifecycleConfig
) -> Float[Tensor, " N"]:
    """Return the FLOPs of an epoch, where lessons and measurements that are not always made count on average.

    Args:
        cost: FLOPs of one example.
        trained: Examples of an epoch.
        validation: Examples that seeds are measured on.
        lifecycle: How often lessons are given and seeds are measured.
    """
    lessons = cost.lessons / lifecycle.lesson_every
    measured = validation * cost.counterfactuals / lifecycle.measure_every if lifecycle.measure_every else 0
    return trained * (cost.step - cost.lessons + lessons) + measured


def paced(clock: Clock, spent: Float[Tensor, " N"], cost: EpochCost, validation: Int[Tensor, " N"]) -> Pace:
    """Return what every host can afford in its next epoch.

    Args:
        clock: Budget, length of an epoch, and pauses.
        spent: FLOPs spent so far.
        cost: FLOPs of one example.
        validation: Examples that the seeds of each host are measured on after this epoch.
    """
    budget, batch_size, steps, lesson_every, pauses = clock
    plain, lesson = (batch_size * x.double() for x in (cost.step - cost.lessons, cost.lessons))
    step, left = plain + lesson / lesson_every, budget - spent
    measuring = (validation * cost.counterfactuals).double()
    whole = steps * plain + -(-steps // lesson_every) * lesson + measuring
    is_last = left < whole + 0.5 * step  # not even half a step more
    taken = torch.where(is_last, (left / step).round().clamp(min=1), steps)
    if pauses is not None:
        ahead = (pauses > spent + ROUNDING * step) & (pauses < budget - 0.5 * step)
        until = ((pauses.where(ahead, torch.inf).amin(0) - spent) / step - ROUNDING).ceil()
        is_last, taken = is_last & (until >= taken), torch.minimum(taken, until).clamp(min=1)
    lessons = (taken / lesson_every).ceil()
    charged = taken * plain + lessons * lesson + measuring.where(~is_last, 0.0)
    return Pace(taken.long(), spent / budget, step / budget, charged, is_last)
