"""What a growth is asked to do, and what happened to a model while it grew."""

import math
from dataclasses import dataclass, fields
from typing import Any

from torch import nn

from esper.growth.chains import Chain
from esper.leyline.errors import EsperError


@dataclass(frozen=True, kw_only=True)
class GrowthConfig:
    """The options of a growth, as `grow` takes them."""

    total: int | None = None
    """Budget in optimizer steps at the initial size."""
    flops: float | None = None
    """Budget in floating-point operations."""
    max_growth: float = 4.0
    """Largest number of blocks of a chain, as a multiple of what it began with."""
    max_parameters: int | None = None
    """Largest number of parameters of the whole model."""
    blend: int | None = None
    """Optimizer steps over which a twin is blended in."""
    governed: bool = True
    """Whether to roll back to before a birth if the loss diverges soon after it."""
    decisions: int = 25
    """Number of times in the budget that the model is evaluated and slots are decided about."""
    price: float = 0.0
    """What growth costs the learned controller: J = score - price * ln(1 + growth)."""
    slots: tuple[str, ...] = ()
    """Modules behind which seeds can be planted: exact names, suffixes or regular expressions."""
    seeds: tuple[str, ...] = ()
    """Blueprints that may be planted; none named: all that fit."""
    stream: str | None = None
    """What flows through the slots; None: derived from its shape."""
    rng_seed: int = 0
    """Seed of the weights of new seeds, and of sampled decisions."""

    def __post_init__(self) -> None:
        if (self.total is None) == (self.flops is None):
            raise EsperError("give one budget: total (optimizer steps at the present size), flops, or epochs")
        budget = self.total if self.flops is None else self.flops
        if budget is None or not 0 < budget < math.inf:
            raise EsperError(f"the budget must be positive, not {budget}")
        if not self.max_growth >= 1:
            raise EsperError(f"max_growth must be at least 1, not {self.max_growth}")
        for name in ("max_parameters", "blend", "decisions"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise EsperError(f"{name} must be at least 1, not {value}")

    @classmethod
    def of(cls, saved: dict[str, Any]) -> "GrowthConfig":
        """Return the options that a file holds."""
        known = {field.name for field in fields(cls)}
        options: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in saved.items() if k in known}
        return cls(**options)


@dataclass(frozen=True)
class Event:
    """Something that happened to a model while it grew."""

    kind: str
    """attach, deepen, blended, plant, prune, fossilize, undo, rollback, keep, discard or finish."""
    step: int
    progress: float
    """Share of the budget spent."""
    flops: int
    """Operations spent so far."""
    parameters: int
    loss: float | None
    depth: dict[str, int]
    """Blocks of each chain."""
    detail: str = ""


@dataclass(frozen=True)
class Measurement:
    """The loss of a growing model at one moment, for curves."""

    step: int
    flops: int
    """Operations spent so far."""
    parameters: int
    loss: float | None
    """Exponential average of the training loss."""
    metric: float | None
    """The latest validation metric, if it is new."""


@dataclass(eq=False)
class Birth:
    """Twins that were planted together."""

    chain: Chain
    twins: list[nn.Module]
    before: list[nn.Module]
    """The chain's blocks before."""
    counts: list[int]
    """Twins behind each of those blocks."""
    parameters: list[nn.Parameter]
    step: int
    blend: int
    """Steps from alpha 0 to 1."""
    done: bool = False
