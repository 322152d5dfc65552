"""The conditions on a seed's way: one function for each gate of the lifecycle, for all slots of all hosts at once."""

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool
from torch import Tensor

from esper.leyline.errors import EsperError
from esper.leyline.lifecycle import Gate
from esper.leyline.state import NO_BLUEPRINT, SlotState, Vitals


@dataclass(frozen=True, kw_only=True)
class LifecycleConfig:
    """Ages are in epochs."""

    min_training: int = 1
    """Silent training before ADVANCE may start the blend."""
    training: int = 3
    """Silent training after which the blend starts by itself."""
    min_holding: int = 1
    """Probation at full alpha before FOSSILIZE."""
    min_contribution: float = 0.0
    """FOSSILIZE needs a measured contribution to the validation score above this."""
    min_prune_age: int = 3
    """Epochs since germination before PRUNE; a sick seed may go at any age."""
    embargo: int = 5
    """How long a slot is EMBARGOED once its seed is gone, at least one epoch; RESETTING follows for one more."""
    auto_advance: bool = True
    """Let seeds advance by themselves when they are due; otherwise only ADVANCE moves them."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.type is int and getattr(self, field.name) < 0:
                raise EsperError(f"{field.name} must not be negative, not {getattr(self, field.name)}")
        if self.training < self.min_training:
            raise EsperError(f"training ({self.training}) must be at least min_training ({self.min_training})")


GateFunction = Callable[[SlotState, Vitals, LifecycleConfig], Bool[Tensor, "N S"]]

GATES: dict[Gate, GateFunction] = {
    Gate.SANE: lambda s, v, c: v.sane[:, None].expand_as(s.stage),
    Gate.PLANTED: lambda s, v, c: (s.blueprint != NO_BLUEPRINT) & v.healthy,
    Gate.TRAINED: lambda s, v, c: (s.age >= c.min_training) & v.healthy,
    Gate.SETTLED: lambda s, v, c: s.alpha == s.alpha_target,
    Gate.WORTHY: lambda s, v, c: (s.age >= c.min_holding) & (v.contribution > c.min_contribution),
    Gate.RIPE: lambda s, v, c: (s.seed_age >= c.min_prune_age) | ~v.healthy,
    Gate.FADED: lambda s, v, c: (s.alpha == 0) | (s.ramp_elapsed >= s.ramp_epochs - 1),
    Gate.RESTED: lambda s, v, c: s.age >= c.embargo,
    Gate.OPEN: lambda s, v, c: torch.ones_like(s.stage, dtype=torch.bool),
}
