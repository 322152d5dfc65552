"""What happened: plain records without tensors, for pictures, files and people."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SlotReport:
    """One slot at the end of an epoch."""

    name: str
    stage: str
    alpha: float
    blueprint: str | None
    """None without a seed."""
    contribution: float | None
    """Validation score with the seed minus the score without it; None without a seed."""


@dataclass(frozen=True)
class EpochReport:
    """One decision and the epoch that followed it, for one host."""

    epoch: int
    op: str
    refused: bool
    """The op was illegal and changed nothing."""
    train_loss: float
    validation_loss: float
    metric: float
    score: float
    parameters: int
    growth: float
    """Parameters of all seeds, silent ones too, over those of the bare host."""
    flops: int
    """Floating-point operations of the epoch: training, incubation, and measuring, counterfactuals included."""
    slots: tuple[SlotReport, ...]
