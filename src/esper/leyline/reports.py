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


@dataclass(frozen=True)
class HeadReport:
    """One head in one update. Without a relevant decision there is nothing to say, which is None and not 0."""

    name: str
    samples: int
    """Decisions whose op listens to this head."""
    kl: float | None
    clip_fraction: float | None
    entropy: float | None
    """From 0 to 1, of the legal choices."""
    ratio_min: float | None
    ratio_max: float | None
    gradient: float
    """Norm of the gradient of the head's own parameters before clipping..."""
    gradient_clipped: float
    """...and after."""


@dataclass(frozen=True)
class Detail:
    """What is looked at more closely for a while after an anomaly."""

    gradients: dict[str, float]
    """Norm of every parameter's gradient in the last step, after clipping."""
    quantiles: dict[str, tuple[float, ...]]
    """The least, the quartiles and the largest: of rewards, returns, values and their errors."""


@dataclass(frozen=True)
class Anomaly:
    """Something in an update that deserves attention."""

    update: int
    kind: str
    where: str
    """The head, or what else it is about."""
    explanation: str
    suggestion: str


@dataclass(frozen=True)
class UpdateReport:
    """One rollout and what was learned from it."""

    update: int
    decisions: int
    episodes: int
    """Lives that ended in the rollout."""
    sick: int
    objective: float | None
    """Mean J of the lives that ended, at their end; None if none did."""
    score: float | None
    growth: float | None
    rent: float
    reward: float
    """Mean reward of a decision, as earned..."""
    reward_normalized: float
    """...and as learned from."""
    returns: float
    advantage_mean: float
    advantage_std: float
    """Before normalising."""
    policy_loss: float
    value_loss: float
    entropy: float
    kl: float
    """Summed over heads."""
    explained_variance: float | None
    gradient: float
    gradient_clipped: float
    epochs: int
    """Passes over the rollout that were made..."""
    steps: int
    """...and optimiser steps."""
    stopped: str | None
    """Why the update ended before its time; None if it did not."""
    heads: tuple[HeadReport, ...]
    ops: dict[str, int]
    """How often each op was chosen."""
    seconds: dict[str, float]
    """By phase."""
    memory: int | None = None
    """The most bytes that were in use on the device so far; None on a CPU."""
    health: float | None = None
    """Of gradients, from 0 to 1: the share of heads whose gradients are neither vanishing nor exploding."""
    anomalies: tuple[Anomaly, ...] = ()
    detail: Detail | None = None
    """Given after an anomaly, for some updates."""
