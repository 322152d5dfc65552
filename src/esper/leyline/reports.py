"""Define reports: records of what happened, without tensors, for files, plots and tables."""

from dataclasses import dataclass, field, replace
from typing import ClassVar


@dataclass(frozen=True)
class SlotReport:
    """The state of one slot at the end of an epoch."""

    name: str
    """The name of the slot, such as "s0"."""
    stage: str
    """The name of its `Stage`."""
    alpha: float
    """Weight of the seed's delta, from 0 to 1."""
    blueprint: str | None
    """Blueprint of the seed; None without a seed."""
    contribution: float | None
    """Validation score with the seed minus the score without it; None without a seed."""


@dataclass(frozen=True)
class EpochReport:
    """One decision of one host and the epoch that followed it."""

    epoch: int
    """Number of the epoch, from 0."""
    op: str
    """The name of the chosen op."""
    refused: bool
    """Whether the op was illegal and changed nothing."""
    train_loss: float
    """Mean training loss of the epoch."""
    validation_loss: float
    """Mean validation loss after the epoch."""
    metric: float
    """Mean validation metric after the epoch."""
    score: float
    """Validation score after the epoch, from 0 to 1."""
    parameters: int
    """Parameters of the host and all its seeds."""
    growth: float
    """Parameters of all seeds, silent ones included, divided by those of the bare host."""
    flops: int
    """Floating-point operations of the epoch: training, incubation, validation and counterfactuals; on a budget, those
    charged to it, without plain validation."""
    slots: tuple[SlotReport, ...]
    """The state of each slot, in order."""
    legal: tuple[str, ...] = ()
    """Names of the ops that were legal on some slot before the decision; empty where they were not recorded."""
    probabilities: dict[str, dict[str, float]] = field(default_factory=dict)
    """Probability of each choice by head (op, slot, blueprint, style and tempo), given the choices made for the heads
    before it; empty unless a controller decided."""


@dataclass(frozen=True)
class HeadReport:
    """Statistics of one head in one update. Means over no decisions are None, not 0."""

    RENAMED: ClassVar = {"kl": "approx_kl", "gradient": "grad_norm", "gradient_clipped": "grad_norm_clipped"}
    """Old names of fields, as they stand in files of earlier versions."""

    name: str
    """The name of the head."""
    samples: int
    """Number of decisions whose op uses this head."""
    approx_kl: float | None
    """Approximate KL divergence of the new policy from the old one."""
    clip_fraction: float | None
    """Share of decisions whose probability ratio was clipped."""
    entropy: float | None
    """Entropy over the legal choices, normalized to a range from 0 to 1."""
    ratio_min: float | None
    """Smallest ratio of new to old probability."""
    ratio_max: float | None
    """Largest ratio of new to old probability."""
    grad_norm: float
    """Gradient norm of the head's own parameters before clipping."""
    grad_norm_clipped: float
    """Gradient norm of the head's own parameters after clipping."""


@dataclass(frozen=True)
class Detail:
    """Further measurements of an update, recorded for some updates after an anomaly."""

    gradients: dict[str, float]
    """Gradient norm of every parameter in the last step, after clipping."""
    quantiles: dict[str, tuple[float, ...]]
    """Minimum, quartiles and maximum of rewards, returns, values and value errors."""


@dataclass(frozen=True)
class Anomaly:
    """A measurement of an update that deserves attention."""

    update: int
    """Number of the update."""
    kind: str
    """The kind of anomaly."""
    where: str
    """The head or other part that it is about."""
    explanation: str
    """What was measured."""
    suggestion: str
    """What to change."""


@dataclass(frozen=True)
class LifeReport:
    """The end of one host's episode during training."""

    update: int
    """The update in whose rollout the episode ended."""
    host: int
    """Index of the host, counted over all fleets."""
    objective: float
    """The objective J at the end: score minus rent on growth."""
    score: float
    """Validation score at the end."""
    growth: float
    """Parameters of all seeds divided by those of the bare host, at the end."""
    sick: bool
    """Whether the episode terminated because the host failed or diverged."""


@dataclass(frozen=True)
class GardenReport:
    """The slots of one fleet's hosts before each decision of a rollout, as a policy saw them."""

    fleet: int
    """Index of the fleet."""
    label: str
    """The task and the host, such as "mnist1d, cnn1d 4-4-4"."""
    slots: tuple[str, ...]
    """Names of the slots, in order."""
    hosts: int
    """Number of hosts."""
    cells: tuple[str, ...]
    """One text per decision: two characters for each slot, host by host. The first is the first letter of the name of
    the `Stage`, in lower case if the slot holds a twin; the second is alpha as a digit from 0 to 9, where 9 is 1."""
    ops: tuple[str, ...]
    """One text per decision: the first letter of each host's op."""
    scores: tuple[tuple[float, ...], ...]
    """Validation score of each host at each decision, to three decimals."""
    born: tuple[tuple[int, ...], ...]
    """Indices of the hosts whose episode began at each decision."""


@dataclass(frozen=True)
class UpdateReport:
    """One update of the controller: the rollout it was made from and the statistics of PPO."""

    RENAMED: ClassVar = {
        "kl": "approx_kl",
        "gradient": "grad_norm",
        "gradient_clipped": "grad_norm_clipped",
        "health": "gradient_health",
    }
    """Old names of fields, as they stand in files of earlier versions."""

    update: int
    """Number of the update, from 0."""
    decisions: int
    """Decisions in the rollout."""
    episodes: int
    """Episodes that ended in the rollout."""
    sick: int
    """Episodes that terminated because a host failed or diverged."""
    objective: float | None
    """Mean objective J at the end of every setting's newest episodes, over all settings; None until each has some."""
    score: float | None
    """Mean validation score of the same episodes."""
    growth: float | None
    """Mean growth of the same episodes."""
    rent: float
    """Price of growth in J at this update; the mean of its prices, if episodes draw theirs."""
    reward: float
    """Mean reward of a decision, before normalization."""
    reward_normalized: float
    """Mean reward of a decision, after normalization."""
    returns: float
    """Mean return."""
    advantage_mean: float
    """Mean advantage, before normalization."""
    advantage_std: float
    """Standard deviation of the advantages, before normalization."""
    policy_loss: float
    """Clipped surrogate loss, summed over heads."""
    value_loss: float
    """Mean value loss."""
    entropy: float
    """Mean entropy of the heads, from 0 to 1."""
    approx_kl: float
    """Approximate KL divergence of the new policy from the old one, summed over heads."""
    explained_variance: float | None
    """Share of the variance of returns that the values explain, at most 1; None if undefined."""
    grad_norm: float
    """Mean gradient norm before clipping."""
    grad_norm_clipped: float
    """Mean gradient norm after clipping."""
    epochs: int
    """Number of passes over the rollout."""
    steps: int
    """Number of optimizer steps."""
    stopped: str | None
    """Why the update stopped early; None if it did not."""
    heads: tuple[HeadReport, ...]
    """Statistics of each head."""
    ops: dict[str, int]
    """Number of decisions by op."""
    seconds: dict[str, float]
    """Seconds by phase."""
    occupancy: tuple[float, ...] = ()
    """Share of decisions at which a slot held a seed, by slot index."""
    memory: int | None = None
    """Peak memory on the device so far, in bytes; None on a CPU."""
    gradient_health: float | None = None
    """Share of heads whose gradients neither vanish nor explode, from 0 to 1."""
    anomalies: tuple[Anomaly, ...] = ()
    """Anomalies found in the update."""
    detail: Detail | None = None
    """Further measurements, recorded for some updates after an anomaly."""
    lives: tuple[LifeReport, ...] = ()
    """The episodes that ended in the rollout."""
    planted: dict[str, int] = field(default_factory=dict)
    """Number of seeds germinated in the rollout, by blueprint."""
    garden: tuple[GardenReport, ...] = ()
    """The slots of every host before each decision of the rollout, fleet by fleet."""

    def brief(self) -> "UpdateReport":
        """Return the report without its episodes and gardens, which have logs of their own."""
        return replace(self, lives=(), garden=())
