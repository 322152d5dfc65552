"""Define what belongs to episodes of an env: their settings, their state, and the outcome of a decision."""

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor

from esper.leyline.errors import EsperError
from esper.leyline.state import Signals, SlotState, Vitals
from esper.tolaria.governor import GovernorConfig, HealthHistory
from esper.tolaria.measuring import Measured


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """The length of episodes, the grouping of hosts, and what happens to hosts that fail.

    Raises:
        EsperError: If a value is out of range; the message names the field.

    Example:
        >>> EnvConfig(episode=20, group=4)
    """

    episode: int = 25
    """Decisions per episode: one decision, then one epoch."""
    group: int = 1
    """Hosts per group. Hosts of a group have equal initial weights and batches: only their actions differ."""
    staggered: bool = False
    """Shorten the first episodes by different amounts, so that episodes do not all end together."""
    budget: float | None = None
    """Compute of an episode, in epochs of a bare host: everything but plain validation is charged, and the episode ends
    when the budget is spent, whatever `episode` says. None: episodes are counted in epochs."""
    penalty: float = 0.1
    """Amount subtracted from the reward when a host fails, once."""
    rng_seed: int = 0
    """Seed of the hosts' weights and data order."""
    governor: GovernorConfig = GovernorConfig()
    """Thresholds at which a host counts as failed."""

    def __post_init__(self) -> None:
        for name in ("episode", "group"):
            if getattr(self, name) < 1:
                raise EsperError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not self.penalty >= 0:
            raise EsperError(f"penalty must not be negative, not {self.penalty}")
        if self.budget is not None and not 0 < self.budget < float("inf"):
            raise EsperError(f"budget must be a positive number of epochs, not {self.budget}")
        if self.budget is not None and self.staggered:
            raise EsperError("staggered does not work with budget: hosts of a fleet drift apart by themselves")

    @property
    def decisions(self) -> int:
        """Most decisions in an episode: a bare host makes that many."""
        return self.episode if self.budget is None else ceil(self.budget)


class Step(NamedTuple):
    """The result of one decision of every host."""

    signals: Signals
    """Signals for the next decision; those of the fresh host where an episode has ended."""
    final: Signals
    """Signals that this decision led to; of a failed host, those of its last good epoch."""
    penalty: Float[Tensor, " N"]
    """Amount to subtract from the reward; 0 unless the host failed."""
    refused: Bool[Tensor, " N"]
    """The action was illegal and changed nothing."""
    terminated: Bool[Tensor, " N"]
    """The host failed."""
    truncated: Bool[Tensor, " N"]
    """The episode reached its last decision."""
    test: Measured | None = None
    """Results of all hosts on test data; None without test data, or while no episode has ended."""


class Good(NamedTuple):
    """The slots and measurements of a fleet's last good epoch. Weights are not kept: failed hosts are replaced."""

    state: SlotState
    vitals: Vitals
    measured: Measured


class EnvState(NamedTuple):
    """Everything about the episodes of an env that its next decision depends on, besides the fleet."""

    age: Int[Tensor, " N"]
    """Decisions that each host has behind it."""
    sibling: Bool[Tensor, " N"]
    """Whether the host's episode began together with those of its group."""
    births: Int[Tensor, " N"]
    """Hosts born so far at each index."""
    generation: Int[Tensor, " N"]
    """Number of the episode that each host has begun with weights and batches of its group."""
    history: HealthHistory
    good: Good
