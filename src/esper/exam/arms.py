"""The table of arms: what each of them does, what it needs, and when it takes part in an exam."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from esper.exam import derived, plans, probing, sizes
from esper.exam.runs import ArmResult
from esper.exam.sitting import Played, Sitting
from esper.exam.verdicts import NEVER, ORACLE, RIGHT_SIZE, require_unique_names
from esper.leyline.actions import TWIN
from esper.leyline.errors import EsperError
from esper.tamiyo.policies import (
    Doubling,
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
    """In every exam."""
    return True


def thorough(sitting: Sitting) -> bool:
    """In thorough exams."""
    return sitting.config.thorough


def at_unequal_compute(sitting: Sitting) -> bool:
    """In thorough exams whose episodes are counted in epochs: on a budget, all arms spend the same anyway."""
    return sitting.config.thorough and sitting.fleet.env.budget is None


def with_plans(sitting: Sitting) -> bool:
    """Where plans are searched for."""
    return sitting.config.plans > 0


def with_grid(sitting: Sitting) -> bool:
    """Where plans are searched for, and episodes are counted in epochs: on a budget, fixed sizes take its place."""
    return with_plans(sitting) and sitting.fleet.env.budget is None


def with_teacher(sitting: Sitting) -> bool:
    """In thorough exams, on tasks that have a teacher."""
    return sitting.config.thorough and "teacher_width" in sitting.facts


def with_twins(sitting: Sitting) -> bool:
    """On a budget, where hosts have blocks to copy."""
    return sitting.fleet.env.budget is not None and TWIN in sitting.hosts.example.setting.space.blueprints


def with_sizes(sitting: Sitting) -> bool:
    """On a budget, where the setting declares sizes to compare with."""
    return sitting.fleet.env.budget is not None and bool(sitting.fleet.sizes)


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
    _rule(RandomLegal, "takes any legal action", always),
    _rule(
        Heuristic,
        "plants the largest seed, one at a time, in the first half of an episode; keeps what contributes, prunes the"
        " rest",
        always,
    ),
    _rule(Schedule, "the heuristic's actions at even intervals"),
    _rule(Plateau, "the heuristic's actions when the score has stopped rising"),
    _rule(
        GapTrigger,
        "the heuristic's actions while training and validation loss are close; in the short episodes of the suite they"
        " always are, so this is the heuristic one epoch later",
    ),
    _rule(
        GreedyGradient,
        "the heuristic's actions in the slot where the gradient of the loss with respect to the stream is largest",
    ),
    _rule(lambda: GreedyGradient(against=True), "the heuristic's actions in the slot where that gradient is smallest"),
    _rule(Oversized, "plants in every slot at once, prunes what contributes nothing"),
    _rule(Doubling, "doubles the number of blocks at 0.3 and 0.6 of the budget, by twins", with_twins),
    Arm(
        name="best plan",
        does="the best of 50 random plans (or `--plans`); the policy has seen none of them",
        policy=plans.best_random_plan,
        when=with_plans,
    ),
    Arm(
        name=ORACLE,
        does="the best of every blueprint in every slot at two times, and of as many pairs of those",
        policy=plans.grid_oracle,
        when=with_grid,
    ),
    Arm(
        name="longer",
        does="never grows, but trains for as many epochs as the FLOPs of the policy would have paid for",
        play=derived.longer,
        needs=(NEVER,),
        when=at_unequal_compute,
    ),
    Arm(
        name="static",
        does="the topologies that the policy grew, from scratch, for as many epochs",
        play=derived.static,
        when=thorough,
    ),
    Arm(
        name="static, longer",
        does="the topologies that the policy grew, from scratch, for as many FLOPs",
        play=derived.static_longer,
        needs=("static",),
        when=at_unequal_compute,
    ),
    Arm(
        name=probing.PROBE,
        does="tries each doubling on a copy, keeps the better, and pays for both",
        play=probing.probe,
        when=probing.with_room_for_a_trial,
    ),
    Arm(name="replay", does="the actions of the policy on other hosts", play=derived.replay, when=thorough),
    Arm(
        name=RIGHT_SIZE,
        does="hosts of the teacher's shape, from scratch; excess parameters and regret are relative to these",
        play=derived.right_size,
        when=with_teacher,
    ),
)
"""All arms besides the policy under test, in the order of reports; guests with a policy come after the plans. Exams
with sizes to compare with have the arms of `sized`, too."""


def sized(sitting: Sitting) -> list[Arm]:
    """Return the arms of fixed sizes, and those that choose among them."""
    each = [
        Arm(
            name=sizes.name_of(widths),
            does="hosts of this size, from scratch, for as many FLOPs",
            play=lambda sitting, played, widths=widths: sizes.fixed(sitting, widths),
            when=with_sizes,
        )
        for widths in sitting.fleet.sizes
    ]
    best = Arm(
        name=sizes.HINDSIGHT,
        does="the fixed size that was best on other hosts",
        play=sizes.hindsight,
        needs=tuple(arm.name for arm in each),
        when=with_sizes,
    )
    halving = Arm(
        name=sizes.SWEEP,
        does="successive halving over the fixed sizes, all of which are paid for",
        play=sizes.sweep,
        when=with_sizes,
    )
    return [*each, best, halving]


def admitted(sitting: Sitting, ours: str, guests: Sequence[Policy | Arm]) -> list[Arm]:
    """Return the arms that take part: those with a policy first, then those that depend on what others did.

    Raises:
        EsperError: Two arms have the same name, an arm lacks one that it needs, or a guest cannot play here.
    """
    invited = [guest if isinstance(guest, Arm) else Arm.of(guest) for guest in guests]
    there = [arm for arm in (*ARMS, *sized(sitting), *invited) if arm.when(sitting)]
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
