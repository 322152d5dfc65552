"""Pay for training out of a budget of FLOPs: how many steps a host may still make, and at which learning rate.

Training is charged step by step, with silent lessons where they are given; measuring the contribution of seeds is
charged after the epochs in which it is done, but not after the last. Plain validation is free: everyone does that.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esper.kasmina.cost import EpochCost

WARMUP, DECAY = 0.02, 0.2
"""Shares of a budget over which the learning rate rises, and falls to 0 at the end."""


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


def paced(
    budget: Float[Tensor, " N"],
    spent: Float[Tensor, " N"],
    cost: EpochCost,
    batch_size: int,
    steps: int,
    validation: Int[Tensor, " N"],
    lesson_every: int = 1,
) -> Pace:
    """Return what every host can afford in its next epoch.

    Args:
        budget: FLOPs of each host's whole life.
        spent: FLOPs spent so far.
        cost: FLOPs of one example.
        batch_size: Examples of a step.
        steps: Steps of a whole epoch.
        validation: Examples that the seeds of each host are measured on after this epoch.
        lesson_every: Steps between two silent lessons.
    """
    plain, lesson = (batch_size * x.double() for x in (cost.step - cost.lessons, cost.lessons))
    step, left = plain + lesson / lesson_every, budget - spent
    measuring = (validation * cost.counterfactuals).double()
    whole = steps * plain + -(-steps // lesson_every) * lesson + measuring
    is_last = left < whole + 0.5 * step  # not even half a step more
    taken = torch.where(is_last, (left / step).round().clamp(min=1), steps)
    lessons = (taken / lesson_every).ceil()
    charged = taken * plain + lessons * lesson + measuring.where(~is_last, 0.0)
    return Pace(taken.long(), spent / budget, step / budget, charged, is_last)
