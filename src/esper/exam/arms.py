"""The table of arms: what each of them does, what it needs, and when it takes part in an exam."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from esper.exam import derived, plans
from esper.exam.runs import ArmResult
from esper.exam.sitting import Played, Sitting
from esper.exam.verdicts import NEVER, ORACLE, RIGHT_SIZE, require_unique_names
from esper.leyline.errors import EsperError
from esper.tamiyo.policies import (
    GapTrigger,
    GreedyGradient,
    Heuristic,
    Never,
    Oversized,
    Plateau,
    Policy,
    RandomLegal,
    Schedule,
)

When = Callable[[Sitting], bool]


def always(sitting: Sitting) -> bool:
    """Take part in every exam."""
    return True


def thorough(sitting: Sitting) -> bool:
    """Take part in thorough exams."""
    return sitting.config.thorough


def with_plans(sitting: Sitting) -> bool:
    """Take part where plans are searched for."""
    return sitting.config.plans > 0


def with_teacher(sitting: Sitting) -> bool:
    """Take part in thorough exams on tasks that have a teacher."""
    return sitting.config.thorough and "teacher_width" in sitting.facts


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One arm of an exam.

    An arm either has a policy, which is tuned and played like all others, or it is played by a function of its own once
    the policy under test has been played.

    Raises:
        EsperError: It has both a policy and a function, or neither.

    Example:
        ```python
        mine = Arm(name="mine", does="plants twins", policy=lambda sitting: MyPolicy())
        reports, lives = hold_exam(recipe("spirals"), [LearnedPolicy(load_controller())], guests=[mine])
        ```
    """

    name: str
    """Name in tables and reports; no two arms may have the same."""
    does: str
    """What it does, in a few words."""
    policy: Callable[[Sitting], Policy] | None = None
    """Makes its policy for one setting."""
    play: Callable[[Sitting, Played], ArmResult] | None = None
    """Plays it, given what has been played before."""
    needs: tuple[str, ...] = ()
    """Arms that must have been played before, by name."""
    when: When = always
    """Whether it takes part."""

    def __post_init__(self) -> None:
        if (self.policy is None) == (self.play is None):
            raise EsperError(f"arm {self.name!r} needs either policy or play: set one of them")

    @classmethod
    def of(cls, policy: Policy) -> "Arm":
        """Return the arm of a policy, under the policy's name."""
        return cls(name=policy.name, does="takes part as a guest", policy=lambda sitting: policy)


def _rule(make: Callable[[], Policy], does: str, when: When = thorough) -> Arm:
    return Arm(name=make().name, does=does, policy=lambda sitting: make(), when=when)


ARMS: tuple[Arm, ...] = (
    _rule(Never, "never grows", always),
    _rule(RandomLegal, "acts at random", always),
    _rule(Heuristic, "plants one seed at a time and keeps what contributes", always),
    _rule(Schedule, "plants at fixed times"),
    _rule(Plateau, "plants where the score stalls"),
    _rule(GapTrigger, "plants where training and validation differ"),
    _rule(GreedyGradient, "plants where the gradient is largest"),
    _rule(lambda: GreedyGradient(against=True), "plants where the gradient is smallest"),
    _rule(Oversized, "plants everywhere at once"),
    Arm(name="best plan", does="follows the best of random plans", policy=plans.best_random_plan, when=with_plans),
    Arm(name=ORACLE, does="follows the best of a grid of plans", policy=plans.grid_oracle, when=with_plans),
    Arm(name="longer", does="never grows, for as many FLOPs", play=derived.longer, needs=(NEVER,), when=thorough),
    Arm(name="static", does="trains what was grown from scratch", play=derived.static, when=thorough),
    Arm(
        name="static, longer",
        does="trains what was grown from scratch, for as many FLOPs",
        play=derived.static_longer,
        needs=("static",),
        when=thorough,
    ),
    Arm(name="replay", does="repeats the policy's actions on other hosts", play=derived.replay, when=thorough),
    Arm(name=RIGHT_SIZE, does="trains hosts of the teacher's shape", play=derived.right_size, when=with_teacher),
)
"""All arms besides the policy under test, in the order of reports; guests with a policy come after the plans."""


def admitted(sitting: Sitting, ours: str, guests: Sequence[Policy | Arm]) -> list[Arm]:
    """Return the arms that take part: those with a policy first, then those that depend on what others did.

    Raises:
        EsperError: Two arms have the same name, an arm lacks one that it needs, or a guest cannot play here.
    """
    invited = [guest if isinstance(guest, Arm) else Arm.of(guest) for guest in guests]
    there = [arm for arm in (*ARMS, *invited) if arm.when(sitting)]
    arms = sorted(there, key=lambda arm: arm.policy is None)
    require_unique_names([ours, *(arm.name for arm in arms)])
    for n, arm in enumerate(arms):
        for need in arm.needs:
            if need not in [before.name for before in arms[:n]]:
                raise EsperError(f"arm {arm.name!r} needs {need!r}, which is not played before it in this exam")
    example = sitting.hosts.example
    for arm in invited:
        if arm in arms and arm.policy is not None:
            arm.policy(sitting).begin(example.setting, 1, example.fleet.device)
    return arms
