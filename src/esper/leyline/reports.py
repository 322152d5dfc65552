"""Define reports: records of what happened, without tensors, for files, plots and tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal


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
    """Floating-point operations of the epoch: training, incubation, validation and counterfactuals."""
    slots: tuple[SlotReport, ...]
    """The state of each slot, in order."""


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
    """Mean objective J of the episodes that ended, at their end; None if none ended."""
    score: float | None
    """Mean validation score of the episodes that ended, at their end; None if none ended."""
    growth: float | None
    """Mean growth of the episodes that ended, at their end; None if none ended."""
    rent: float
    """Price of growth in J at this update."""
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


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % confidence interval."""

    mean: float
    """The estimate."""
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end of the interval."""

    def __str__(self) -> str:
        return f"{self.mean:+.3f} ({self.low:+.3f} to {self.high:+.3f})"


@dataclass(frozen=True)
class ArmReport:
    """The results of one arm of an exam: a policy or baseline, over all hosts."""

    RENAMED: ClassVar = {
        "vs": "difference",
        "vs_score": "score_difference",
        "improvement": "probability_of_improvement",
        "chance": "p_value",
    }
    """Old names of fields, as they stand in files of earlier versions."""

    name: str
    """The name of the arm."""
    mean: float
    """Mean metric."""
    iqm: float
    """Interquartile mean of the metric: the mean of its middle half."""
    iqm_interval: Interval
    """The interquartile mean with its 95 % confidence interval."""
    j: float
    """Mean objective J: score minus rent on growth."""
    params: float
    """Mean number of parameters at the end."""
    growth: float
    """Mean growth at the end: parameters of all seeds divided by those of the bare host."""
    flops: float
    """Mean floating-point operations of an episode, incubation and counterfactuals included."""
    sick: float
    """Share of hosts that failed or diverged."""
    lr: float
    """Learning rate of the hosts, tuned for this arm."""
    episode: int
    """Epochs of an episode."""
    searched: int
    """Episodes spent on choosing this arm's policy, tuning of the learning rate excluded."""
    difference: Interval | None
    """Mean paired difference in J, the policy under test minus this arm; None for the policy itself."""
    probability_of_improvement: float | None
    """Probability that the policy under test has a higher J on a random host than this arm on another."""
    p_value: float | None
    """Two-sided p-value of the difference in J, Holm-corrected over all arms."""
    excess: float | None = None
    """Mean parameters minus those of the task's teacher; None if the task has no teacher."""
    regret: float | None = None
    """J of hosts of the teacher's shape minus J of this arm; None if the exam has no arm of that shape."""
    scores: tuple[float, ...] = ()
    """Score of every host in every training."""
    objectives: tuple[float, ...] = ()
    """Objective J of every host in every training, in the order of `scores`."""
    paired: bool = True
    """Whether hosts are paired with those of the policy under test, by initial weights and batches. If not,
    differences are between means."""
    seconds: float = 0.0
    """Seconds that all hosts of the first training took together."""
    score_difference: Interval | None = None
    """Mean paired difference in score, the policy under test minus this arm; None for the policy itself."""
    plan: str = ""
    """The plan that the arm follows; empty if it has none."""

    @property
    def steps(self) -> str:
        """The plan in brackets, or an empty string."""
        return f" ({self.plan})" if self.plan else ""

    @property
    def cells(self) -> dict[str, str]:
        """The cells of the arm's row in tables, by column. Differences from the policy itself are empty."""
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
            **{name: "" if value is None else str(value) for name, value in compared.items()},
            **{name: "" if value is None else f"{value:{form}}" for name, (value, form) in chances.items()},
        }

    def above(self, threshold: float) -> float:
        """Return the share of hosts with a score above a threshold: one point of the performance profile."""
        return sum(score > threshold for score in self.scores) / len(self.scores)

    @property
    def verdict(self) -> Literal["better", "worse", "level"]:
        """Whether the policy under test is better than this arm.

        "better": the interval of the difference lies above 0 and the corrected p-value is below 0.05. "worse": the
        interval lies below 0. "level": neither is shown, which does not prove that they are equal.
        """
        if self.difference is None or self.p_value is None:
            return "level"
        if self.difference.high < 0:
            return "worse"
        return "better" if self.difference.low > 0 and self.p_value < 0.05 else "level"


@dataclass(frozen=True)
class ExamReport:
    """The results of an exam: policies and baselines compared on paired hosts that none was trained on."""

    task: str
    """The name of the task."""
    host: str
    """The kind of host, with its widths."""
    metric: str
    """The name of the metric."""
    hosts: int
    """Number of hosts per arm and training."""
    trainings: int
    """Number of independent trainings of the policy under test."""
    data: str
    """The data that scores were measured on: "test" in a final exam, validation data in a preliminary one."""
    episode: int
    """Epochs of an episode."""
    rent: float
    """Price of growth in J."""
    policy: str
    """The name of the policy under test."""
    arms: tuple[ArmReport, ...]
    """The results of each arm; the policy under test comes first."""
    variant: str = ""
    """Options of the task; empty for its defaults."""
    unseen: str = ""
    """What the policy was not trained on: the task, the kind of host, or both."""
    right_size: float | None = None
    """Parameters of the task's teacher; None if it has no teacher."""
    at_the_edge: tuple[str, ...] = ()
    """Arms whose tuned learning rate is the smallest or largest of the grid, so that a wider grid might help them."""
    settings: int = 0
    """Number of settings (tasks and hosts) that the policy was trained in."""
    lives: int = 0
    """Episodes of hosts in all trainings of the policy."""
    decisions: int = 0
    """Decisions in all trainings of the policy."""
    seconds: float = 0.0
    """Seconds that all trainings of the policy took."""
    held: str = ""
    """Date, software and machine of the exam."""
    of_oracle: Interval | None = None
    """The policy's gain over never growing as a share of the grid oracle's; None if the oracle gains nothing."""

    @property
    def setting(self) -> str:
        """The task and host of the exam, and what of them the policy was not trained on."""
        variant = f" ({self.variant})" if self.variant else ""
        return f"{self.task}{variant}, {self.host}" + (f" (unseen {self.unseen})" if self.unseen else "")

    @property
    def by_name(self) -> dict[str, ArmReport]:
        """The results of each arm, by its name."""
        return {arm.name: arm for arm in self.arms}

    def headings(self, columns: Sequence[str]) -> list[str]:
        """Return the titles of table columns, given as keys of `ArmReport.cells`."""
        named = {
            "metric": self.metric,
            "IQM lies in": "IQM, 95 % CI",
            "ahead": f"{self.policy} − arm, J",
            "in score": f"{self.policy} − arm, score",
        }
        return [named.get(column, column) for column in columns]

    @property
    def final(self) -> bool:
        """Whether the exam was held on test data."""
        return self.data == "test"

    @property
    def about(self) -> str:
        """The sentences below the table: place, size, cost, cautions, and where the exam was held."""
        return " ".join(filter(None, (self.placed, self.size, self.cost, self.caution, self.held)))

    @property
    def placed(self) -> str:
        """The policy's gain over never growing as a share of the grid oracle's, in one sentence if it is known."""
        if self.of_oracle is None:
            return ""
        share = self.of_oracle
        reached = f"{share.mean:.0%} (95 % CI {share.low:.0%} to {share.high:.0%})"
        return f"{self.policy} reaches {reached} of the grid oracle's gain over never growing."

    @property
    def size(self) -> str:
        """The size of the policy's hosts and of the task's teacher, in one sentence if there is a teacher."""
        if self.right_size is None:
            return ""
        own = self.arms[0]
        sizes = f"The teacher has {self.right_size:,.0f} parameters, hosts of {self.policy} end with {own.params:,.0f}"
        return (
            f"{sizes}."
            if own.regret is None
            else f"{sizes}. Their J is {own.regret:.3f} below that of hosts of the teacher's shape."
        )

    @property
    def cost(self) -> str:
        """The cost of training and searching the arms, in sentences; empty if there was none."""
        searched = [
            f"{a.name} was chosen by a search over {a.searched:,} episodes{a.steps}." for a in self.arms if a.searched
        ]
        return " ".join([*([self.trained] if self.decisions else []), *searched])

    @property
    def trained(self) -> str:
        """The cost of training the policy, and the episodes per training and setting, in one sentence."""
        trainings = "1 training" if self.trainings == 1 else f"{self.trainings} trainings"
        took = f"{trainings} of {self.policy} took {self.decisions:,} decisions and {self.seconds / 60:.0f} minutes"
        each = round(self.lives / max(self.settings * self.trainings, 1))
        settings = "" if self.settings < 2 else f" in each of {self.settings} settings"
        return f"{took}, with {each:,} episodes per training{settings}."

    @property
    def caution(self) -> str:
        """The arms that a wider grid of learning rates might help, in one sentence; empty if there are none."""
        if not self.at_the_edge:
            return ""
        return (
            f"Tuned to an end of the grid of learning rates, so a wider grid may help: {', '.join(self.at_the_edge)}."
        )


@dataclass(frozen=True)
class Life:
    """The episode of one host in an exam, decision by decision."""

    task: str
    """The name of the task."""
    kind: str
    """The kind of host, with its widths."""
    arm: str
    """The name of the arm."""
    host: int
    """Index of the host. In all arms, hosts of one index have equal initial weights and batches."""
    epochs: tuple[EpochReport, ...]
    """One report for each decision."""
