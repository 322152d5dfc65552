"""What happened: plain records without tensors, for pictures, files and people."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal


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

    RENAMED: ClassVar = {"kl": "approx_kl", "gradient": "grad_norm", "gradient_clipped": "grad_norm_clipped"}
    """Old names of fields, as they stand in files of earlier versions."""

    name: str
    samples: int
    """Decisions whose op listens to this head."""
    approx_kl: float | None
    clip_fraction: float | None
    entropy: float | None
    """From 0 to 1, of the legal choices."""
    ratio_min: float | None
    ratio_max: float | None
    grad_norm: float
    """Norm of the gradient of the head's own parameters before clipping..."""
    grad_norm_clipped: float
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
class LifeReport:
    """How one host ended in training."""

    update: int
    host: int
    """Its place, counted over all fleets."""
    objective: float
    score: float
    growth: float
    sick: bool


@dataclass(frozen=True)
class UpdateReport:
    """One rollout and what was learned from it."""

    RENAMED: ClassVar = {
        "kl": "approx_kl",
        "gradient": "grad_norm",
        "gradient_clipped": "grad_norm_clipped",
        "health": "gradient_health",
    }
    """Old names of fields, as they stand in files of earlier versions."""

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
    approx_kl: float
    """Summed over heads."""
    explained_variance: float | None
    grad_norm: float
    grad_norm_clipped: float
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
    occupancy: tuple[float, ...] = ()
    """The share of decisions at which a slot held a seed: of the first slots, of the second ones, ..."""
    memory: int | None = None
    """The most bytes that were in use on the device so far; None on a CPU."""
    gradient_health: float | None = None
    """Of gradients, from 0 to 1: the share of heads whose gradients are neither vanishing nor exploding."""
    anomalies: tuple[Anomaly, ...] = ()
    detail: Detail | None = None
    """Given after an anomaly, for some updates."""
    lives: tuple[LifeReport, ...] = ()
    """Those that ended in the rollout."""


@dataclass(frozen=True)
class Interval:
    """A mean difference, and where it lies with a confidence of 95 %."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:+.3f} ({self.low:+.3f} to {self.high:+.3f})"


@dataclass(frozen=True)
class ArmReport:
    """One policy in an exam, over all hosts."""

    RENAMED: ClassVar = {
        "vs": "difference",
        "vs_score": "score_difference",
        "improvement": "probability_of_improvement",
        "chance": "p_value",
    }
    """Old names of fields, as they stand in files of earlier versions."""

    name: str
    mean: float
    """Of the metric..."""
    iqm: float
    """...and of its middle half..."""
    iqm_interval: Interval
    """...with where that lies."""
    j: float
    params: float
    growth: float
    flops: float
    """Of a whole life, lessons in silence and counterfactuals included."""
    sick: float
    """The share that fell sick."""
    lr: float
    episode: int
    """Epochs of a life."""
    searched: int
    """Lives that went into choosing this policy, learning rates aside."""
    difference: Interval | None
    """J of the policy under test minus J of this one, host by host; None for itself."""
    probability_of_improvement: float | None
    """How likely the policy under test does better on a host than this one on any, by J."""
    p_value: float | None
    """How likely chance alone makes as large a difference in J, corrected for the number of arms (Holm)."""
    excess: float | None = None
    """Parameters beyond the teacher's, where a task has one..."""
    regret: float | None = None
    """...and how far its J lies below that of hosts of the teacher's shape."""
    scores: tuple[float, ...] = ()
    """Of every host in every training..."""
    objectives: tuple[float, ...] = ()
    """...and their J, in the same order."""
    paired: bool = True
    """Whether host n is the policy's host n, with the same weights and batches; if not, differences
    are of means, not host by host."""
    seconds: float = 0.0
    """All its hosts took together, on the exam's machine; of the first training."""
    score_difference: Interval | None = None
    """The same difference as `difference` in the score alone, without rent."""
    plan: str = ""
    """What is done when, if that was written down beforehand."""

    @property
    def steps(self) -> str:
        """Its plan, in brackets, if it has one."""
        return f" ({self.plan})" if self.plan else ""

    @property
    def cells(self) -> dict[str, str]:
        """What tables say of it, by column; nothing of itself where others are compared with it."""
        lies = self.iqm_interval
        compared = {"ahead": self.difference, "in score": self.score_difference}
        chances = {"P(better)": (self.probability_of_improvement, ".2f"), "p": (self.p_value, ".3f")}
        return {
            "metric": f"{self.mean:.3f}",
            "IQM": f"{self.iqm:.3f}",
            "IQM lies in": f"{lies.low:.3f} to {lies.high:.3f}",
            "growth": f"{self.growth:.2f}",
            "parameters": f"{self.params:,.0f}",
            "FLOPs": f"{self.flops:.1e}",
            "time": f"{self.seconds:.1f} s",
            "epochs": str(self.episode),
            "lr": f"{self.lr:g}",
            "J": f"{self.j:.3f}",
            **{name: "" if found is None else str(found) for name, found in compared.items()},
            **{name: "" if found is None else f"{found:{form}}" for name, (found, form) in chances.items()},
        }

    def above(self, threshold: float) -> float:
        """The share of hosts that score more: a point of the performance profile."""
        return sum(score > threshold for score in self.scores) / len(self.scores)

    @property
    def verdict(self) -> Literal["better", "worse", "level"]:
        """How the policy under test is against this one. Better: the interval lies above 0, and chance is unlikely for
        so many arms. Worse: the interval lies below 0. Level: neither is shown, which is no proof that they are."""
        if self.difference is None or self.p_value is None:
            return "level"
        if self.difference.high < 0:
            return "worse"
        return "better" if self.difference.low > 0 and self.p_value < 0.05 else "level"


@dataclass(frozen=True)
class ExamReport:
    """Policies side by side on the same fresh hosts."""

    task: str
    host: str
    metric: str
    hosts: int
    trainings: int
    """Of the policy under test."""
    data: str
    """What scores were measured on: test data in a final exam, validation data in a preliminary one."""
    episode: int
    rent: float
    policy: str
    """The one under test."""
    arms: tuple[ArmReport, ...]
    variant: str = ""
    """Of the task, if it was told to be one."""
    unseen: str = ""
    """What of this the policy was not trained on: the task, the kind of host, or both."""
    right_size: float | None = None
    """Parameters of the teacher, where a task has one."""
    at_the_edge: tuple[str, ...] = ()
    """Arms whose learning rate is an end of the grid: a wider one might serve them better."""
    settings: int = 0
    """How many it was trained in..."""
    lives: int = 0
    """...and what its trainings took, all together: lives of hosts..."""
    decisions: int = 0
    """...decisions..."""
    seconds: float = 0.0
    """...and time."""
    held: str = ""
    """When, with what, and where."""
    of_oracle: Interval | None = None
    """Its gain over never as a share of the grid oracle's, where that gains anything."""

    @property
    def setting(self) -> str:
        """Where it was held, and what of that the policy did not know."""
        variant = f" ({self.variant})" if self.variant else ""
        return f"{self.task}{variant}, {self.host}" + (f" (unseen {self.unseen})" if self.unseen else "")

    @property
    def by_name(self) -> dict[str, ArmReport]:
        return {arm.name: arm for arm in self.arms}

    def headings(self, columns: Sequence[str]) -> list[str]:
        """The names of a table's columns, which are cells of its arms."""
        named = {"metric": self.metric, "ahead": f"{self.policy} is above it by"}
        return [named.get(column, column) for column in columns]

    @property
    def final(self) -> bool:
        """Whether test data was looked at."""
        return self.data == "test"

    @property
    def about(self) -> str:
        """All that is to be said beside the table."""
        return " ".join(filter(None, (self.placed, self.size, self.cost, self.caution, self.held)))

    @property
    def placed(self) -> str:
        """How far the policy has come between never and the grid oracle, if that is known."""
        if self.of_oracle is None:
            return ""
        gain = self.of_oracle
        return f"Its gain over never is {gain.mean:.0%} ({gain.low:.0%} to {gain.high:.0%}) of the grid oracle's."

    @property
    def size(self) -> str:
        """How large the policy's hosts are beside a teacher, if there is one."""
        if self.right_size is None:
            return ""
        own = self.arms[0]
        end = f"The teacher has {self.right_size:,.0f} parameters; {self.policy} ends with {own.params:,.0f}"
        return f"{end}." if own.regret is None else f"{end}, {own.regret:.3f} in J below hosts of that shape."

    @property
    def cost(self) -> str:
        """What arms took before they were examined; nothing if none took anything."""
        searched = [f"{a.name} was chosen in {a.searched:,} lives{a.steps}." for a in self.arms if a.searched]
        return " ".join([*([self.trained] if self.decisions else []), *searched])

    @property
    def trained(self) -> str:
        """What the policy took, and how much of that could have been about this one setting."""
        trainings = "1 training" if self.trainings == 1 else f"{self.trainings} trainings"
        took = f"{trainings} of {self.policy}: {self.decisions:,} decisions in {self.seconds / 60:.0f} minutes"
        each = round(self.lives / max(self.settings * self.trainings, 1))
        setting = "setting" if self.settings < 2 else f"each of its {self.settings} settings"
        return f"{took}; {each:,} lives for each training and {setting}."

    @property
    def caution(self) -> str:
        """What to keep in mind about learning rates; nothing if all were chosen inside of the grid."""
        if not self.at_the_edge:
            return ""
        return (
            f"Learning rates at an end of the grid, where a wider one might do better: {', '.join(self.at_the_edge)}."
        )


@dataclass(frozen=True)
class Life:
    """One host of an exam, decision by decision."""

    task: str
    kind: str
    """Of hosts, with their widths."""
    arm: str
    host: int
    """Hosts of the same number began with the same weights and saw the same batches."""
    epochs: tuple[EpochReport, ...]
