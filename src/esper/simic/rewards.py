"""The objective J, the reward of a decision as a sum of named terms, and the schedule of the rent."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, get_args, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from esper.leyline.errors import EsperError, unknown
from esper.leyline.state import Signals

Family = Literal["progress", "sparse", "contribution"]


@dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """Which reward the controller receives for a decision, in terms of J = score - rent * ln(1 + growth).

    Example:
        ```python
        reward = RewardConfig(family="sparse", gamma=0.99)
        config = LearnConfig(reward=reward, ppo=PPOConfig(gamma=0.99))  # both discounts must agree
        ```
    """

    family: Family = "progress"
    """Reward family. progress: gamma * J after the decision - J before it; sparse: J at the end of the episode;
    contribution: each active seed's measured contribution, minus rent."""
    gamma: float = 0.995
    """Discount per decision; must equal ppo.gamma."""

    def __post_init__(self) -> None:
        if self.family not in get_args(Family):
            raise unknown("family", self.family, get_args(Family))
        if not 0 < self.gamma <= 1:
            raise EsperError(f"gamma must be above 0 and at most 1, not {self.gamma}")


@dataclass(frozen=True, kw_only=True)
class RentSchedule:
    """Linear schedule of the rent, the price of growth in J, over the updates of a training.

    A host keeps the rent that its episode began with. Exams charge the final rent.

    Example:
        ```python
        RentSchedule(start=0.0, end=0.04, updates=4).at(1)  # 0.01
        ```
    """

    start: float = 0.0
    """Rent at the first update."""
    end: float = 0.02
    """Rent once the schedule has ended, and in exams."""
    updates: int = 20
    """Updates from start to end; 0 charges the final rent from the first update."""

    def __post_init__(self) -> None:
        for name in ("start", "end", "updates"):
            if not getattr(self, name) >= 0:
                raise EsperError(f"{name} must not be negative, not {getattr(self, name)}")

    def at(self, update: int) -> float:
        """Return the rent of episodes that begin during this update."""
        fraction = min(update / self.updates, 1.0) if self.updates else 1.0
        return self.start + fraction * (self.end - self.start)


class Reward(NamedTuple):
    """The terms of the reward of one decision of every host."""

    progress: Float[Tensor, " N"]
    """gamma * J after the decision - J before it."""
    outcome: Float[Tensor, " N"]
    """J at the end of the episode."""
    contribution: Float[Tensor, " N"]
    """Sum of the measured contributions of active seeds."""
    rent: Float[Tensor, " N"]
    """Rent for the growth, where no other term contains it."""
    penalty: Float[Tensor, " N"]
    """Minus the penalty of a host that failed."""

    @property
    def total(self) -> Float[Tensor, " N"]:
        return torch.stack(list(self)).sum(0)


@runtime_checkable
class Scored(Protocol):
    """The score and growth of every host, from which J follows: signals, or an outcome."""

    @property
    def score(self) -> Float[Tensor, " N"]: ...

    @property
    def growth(self) -> Float[Tensor, " N"]: ...


def objective(scored: Scored, rent: float | Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """Return J = score - rent * ln(1 + growth) of every host."""
    return scored.score.float() - rent * torch.log1p(scored.growth.float())


def reward(
    before: Signals,
    after: Signals,
    rent: Float[Tensor, " N"],
    penalty: Float[Tensor, " N"],
    ended: Bool[Tensor, " N"],
    config: RewardConfig,
) -> Reward:
    """Return the reward of the decision that led from the signals `before` to those `after`.

    Args:
        before: Signals when the decision was made.
        after: Signals one epoch later; of a host whose episode ended, its own final ones.
        rent: Rent of each host.
        penalty: Penalty of hosts that failed, 0 elsewhere; subtracted in every family.
        ended: Whether the episode ended with this decision.
        config: The reward family and its discount.
    """
    zero = torch.zeros_like(rent)
    terms = Reward(zero, zero, zero, zero, -penalty.float())
    j = objective(after, rent)
    if config.family == "progress":
        return terms._replace(progress=config.gamma * j - objective(before, rent))
    if config.family == "sparse":
        return terms._replace(outcome=j.where(ended, 0.0))
    contribution = after.vitals.contribution.float().nan_to_num(0.0).where(after.slots.alpha > 0, 0.0)
    return terms._replace(contribution=contribution.sum(1), rent=-rent * torch.log1p(after.growth.float()))
