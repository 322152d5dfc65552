"""Define the records of exams, without tensors: for files, plots and tables."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from esper.leyline.reports import EpochReport


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
    budget: float | None = None
    """FLOPs of every host in every arm, to the step; None if episodes are counted in epochs."""

    @property
    def setting(self) -> str:
        """The task and host of the exam, and what of them the policy was not trained on."""
        variant = f" ({self.variant})" if self.variant else ""
        return f"{self.task}{variant}, {self.host}" + (f" (unseen {self.unseen})" if self.unseen else "")

    @property
    def by_name(self) -> dict[str, ArmReport]:
        """The results of each arm, by its name."""
        return {arm.name: arm for arm in self.arms}

    @property
    def final(self) -> bool:
        """Whether the exam was held on test data."""
        return self.data == "test"


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


@dataclass(frozen=True)
class Background:
    """What an exam cannot know by itself: the cost of training the policy under test, and where the exam is held."""

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
