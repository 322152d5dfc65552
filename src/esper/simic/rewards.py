"""What a decision is worth: records of named terms, whose sum is the reward."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from esper.leyline.errors import EsperError, unknown
from esper.leyline.state import Signals

Family = Literal["progress", "sparse", "contribution"]


@dataclass(frozen=True, kw_only=True)
class RewardConfig:
    family: Family = "progress"
    """progress: the objective as a potential; sparse: the objective at the end of a life; contribution: what each seed
    is measured to be worth."""
    gamma: float = 0.995
    """How much the next decision counts against this one."""

    def __post_init__(self) -> None:
        if self.family not in get_args(Family):
            raise unknown("family", self.family, get_args(Family))
        if not 0 < self.gamma <= 1:
            raise EsperError(f"gamma must be above 0 and at most 1, not {self.gamma}")


@dataclass(frozen=True, kw_only=True)
class RentSchedule:
    """Rent is fixed within a life; the lives of later updates may pay more."""

    start: float = 0.0
    end: float = 0.02
    updates: int = 20
    """How many updates it takes from start to end."""

    def __post_init__(self) -> None:
        for name in ("start", "end", "updates"):
            if not getattr(self, name) >= 0:
                raise EsperError(f"{name} must not be negative, not {getattr(self, name)}")

    def at(self, update: int) -> float:
        share = min(update / self.updates, 1.0) if self.updates else 1.0
        return self.start + share * (self.end - self.start)


class Reward(NamedTuple):
    """The terms of one decision's reward."""

    progress: Float[Tensor, " N"]
    outcome: Float[Tensor, " N"]
    contribution: Float[Tensor, " N"]
    rent: Float[Tensor, " N"]
    penalty: Float[Tensor, " N"]

    @property
    def total(self) -> Float[Tensor, " N"]:
        return torch.stack(list(self)).sum(0)


def objective(signals: Signals, rent: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """J: the score, minus rent for what has grown."""
    return signals.score.float() - rent * torch.log1p(signals.growth.float())


def reward(
    before: Signals,
    after: Signals,
    rent: Float[Tensor, " N"],
    penalty: Float[Tensor, " N"],
    ended: Bool[Tensor, " N"],
    config: RewardConfig,
) -> Reward:
    """For the decision between these two. Sickness costs its penalty in every family, once."""
    zero = torch.zeros_like(rent)
    terms = Reward(zero, zero, zero, zero, -penalty.float())
    now = objective(after, rent)
    if config.family == "progress":
        return terms._replace(progress=config.gamma * now - objective(before, rent))
    if config.family == "sparse":
        return terms._replace(outcome=now.where(ended, 0.0))
    worth = after.vitals.contribution.float().nan_to_num(0.0).where(after.slots.alpha > 0, 0.0)
    return terms._replace(contribution=worth.sum(1), rent=-rent * torch.log1p(after.growth.float()))
