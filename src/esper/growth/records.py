"""What happened to a model while it grew."""

import math
from dataclasses import dataclass

from torch import Tensor, nn

from esper.growth.chains import Chain
from esper.growth.snapshots import Snapshot


@dataclass(frozen=True)
class Event:
    """Something that happened to a model while it grew."""

    kind: str
    """attach, deepen, blended, undo, rollback or finish."""
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
    alpha: Tensor
    step: int
    blend: int
    """Steps from alpha 0 to 1."""
    done: bool = False
    snapshot: Snapshot | None = None
    """The model just before, while the birth is being watched."""
    usual: float = math.inf
    """Average loss just before."""
