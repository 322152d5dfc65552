"""Implement the gates of the lifecycle, for all slots of all hosts at once."""

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from esper.leyline.actions import Graft
from esper.leyline.errors import EsperError
from esper.leyline.lifecycle import Gate, Stage
from esper.leyline.state import NO_BLUEPRINT, SlotState, Vitals


@dataclass(frozen=True, kw_only=True)
class LifecycleConfig:
    """The thresholds of the lifecycle. Ages are in epochs.

    Raises:
        EsperError: If an age is negative, or `training` is less than `min_training`.

    Example:
        >>> LifecycleConfig(training=5, embargo=2)
    """

    min_training: int = 1
    """Epochs of silent training before ADVANCE may start the blend."""
    training: int = 3
    """Epochs of silent training after which the blend starts by itself, with auto_advance. 0: without any."""
    min_holding: int = 1
    """Epochs at the alpha target before FOSSILIZE is legal."""
    min_contribution: float = 0.0
    """Contribution to the validation score that a seed must exceed before FOSSILIZE is legal."""
    min_prune_age: int = 3
    """Epochs since germination before PRUNE is legal; a seed that is not finite may be pruned at any age."""
    embargo: int = 5
    """Epochs that a slot stays EMBARGOED after its seed is removed, at least 1; RESETTING takes one more."""
    auto_advance: bool = True
    """Advance seeds automatically when they are due. Otherwise only the op ADVANCE does."""
    lesson_every: int = 1
    """Steps between two silent lessons: 1 teaches silent seeds on every batch, 4 on a quarter of them."""
    measure_every: int = 1
    """Epochs between two measurements of the contribution of seeds. 0: contributions are never measured, and no seed
    can be fossilized."""

    measure_fossilized: bool = True
    """Measure the contribution of fossilized seeds, too, though no op can change them."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.type is int and getattr(self, field.name) < 0:
                raise EsperError(f"{field.name} must be at least 0, not {getattr(self, field.name)}")
        if self.lesson_every < 1:
            raise EsperError("lesson_every must be at least 1, not 0; set training to 0 for seeds without lessons")
        if self.training < self.min_training:
            raise EsperError(f"training must be at least min_training ({self.min_training}), not {self.training}")

    def measured(self, state: SlotState) -> Bool[Tensor, "N S"]:
        """Return which seeds' contributions are measured, in the epochs in which any are."""
        is_settled = state.stage == Stage.FOSSILIZED
        return (state.blueprint != NO_BLUEPRINT) & ~(is_settled & (not self.measure_fossilized))

    def measures(self, epoch: Int[Tensor, " N"]) -> Bool[Tensor, " N"]:
        """Return whether contributions are measured in an epoch of each host's life, counted from 1."""
        return epoch % self.measure_every == 0 if self.measure_every else torch.zeros_like(epoch, dtype=torch.bool)


def needs_training(state: SlotState, config: LifecycleConfig) -> Bool[Tensor, "N S"]:
    """Return which seeds train silently before they are blended in: all but twins, unless `training` is 0."""
    return (state.graft != Graft.REPLACE) & (config.training > 0)


GateFunction = Callable[[SlotState, Vitals, LifecycleConfig], Bool[Tensor, "N S"]]

GATES: dict[Gate, GateFunction] = {
    Gate.SANE: lambda s, v, c: v.sane[:, None].expand_as(s.stage),
    Gate.PLANTED: lambda s, v, c: (s.blueprint != NO_BLUEPRINT) & v.healthy & needs_training(s, c),
    Gate.TRAINED: lambda s, v, c: (s.age >= c.min_training) & v.healthy,
    Gate.SETTLED: lambda s, v, c: s.alpha == s.alpha_target,
    Gate.WORTHY: lambda s, v, c: (s.age >= c.min_holding) & (v.contribution > c.min_contribution),
    Gate.RIPE: lambda s, v, c: (s.seed_age >= c.min_prune_age) | ~v.healthy,
    Gate.FADED: lambda s, v, c: (s.alpha == 0) | (s.ramp_elapsed >= s.ramp_epochs - 1),
    Gate.RESTED: lambda s, v, c: s.age >= c.embargo,
    Gate.OPEN: lambda s, v, c: torch.ones_like(s.stage, dtype=torch.bool),
    Gate.READY: lambda s, v, c: (s.blueprint != NO_BLUEPRINT) & v.healthy & ~needs_training(s, c),
}
