"""Compare the policy under test with every other arm: differences, intervals and corrected p-values."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from esper.exam.records import ArmReport, Background, ExamReport
from esper.exam.runs import ArmResult
from esper.exam.statistics import (
    gain_fraction,
    holm,
    iqm,
    iqm_interval,
    p_value,
    paired_interval,
    probability_of_improvement,
    unpaired_interval,
)
from esper.leyline.errors import EsperError
from esper.tolaria import Fleet

NEVER, ORACLE, RIGHT_SIZE = "never", "grid oracle", "right size"
"""Arms that the policy's gain, and its regret, are measured against."""


class Circumstances(NamedTuple):
    """What an exam's report says besides its numbers."""

    data: str = "test"
    """The data that scores were measured on."""
    variant: str = ""
    """Options of the task."""
    unseen: str = ""
    """What the policy was not trained on."""
    grid: Sequence[float] = ()
    """Learning rates that arms chose from."""
    background: Background = Background()
    budget: float | None = None
    """FLOPs of an episode; None if episodes are counted in epochs."""


def require_unique_names(names: Sequence[str]) -> None:
    """Raise EsperError if two arms have the same name."""
    for name in names:
        if names.count(name) > 1:
            raise EsperError(f"{names.count(name)} arms are called {name!r}: give every arm a different name")


def compare_arms(
    fleet: Fleet,
    rent: float,
    ours: ArmResult,
    others: Sequence[ArmResult],
    rng_seed: int = 0,
    given: Circumstances = Circumstances(),
) -> ExamReport:
    """Return the report of an exam: the policy under test first, then every other arm in comparison with it."""
    arms = (ours, *others)
    require_unique_names([arm.name for arm in arms])
    our_j, j_of = ours.values("objective"), {arm.name: arm.values("objective") for arm in others}
    p_values = holm({arm.name: p_value(our_j, j_of[arm.name], rng_seed, arm.paired) for arm in others})
    best = float(j_of[RIGHT_SIZE].mean()) if RIGHT_SIZE in j_of else None
    known = {NEVER, ORACLE} <= j_of.keys()
    return ExamReport(
        task=fleet.task.name,
        host=fleet.spec.label,
        metric=fleet.objective.metric_name,
        hosts=our_j.shape[1],
        trainings=our_j.shape[0],
        data=given.data,
        episode=ours.episode,
        rent=rent,
        policy=ours.name,
        right_size=fleet.task.facts.get("teacher_parameters"),
        arms=(
            ArmReport(**_results(fleet, ours, best, rng_seed), **UNCOMPARED),
            *(
                ArmReport(**_results(fleet, arm, best, rng_seed), **_compared(ours, arm, p_values[arm.name], rng_seed))
                for arm in others
            ),
        ),
        of_oracle=gain_fraction(our_j, j_of[NEVER], j_of[ORACLE], rng_seed) if known else None,
        variant=given.variant,
        unseen=given.unseen,
        at_the_edge=at_the_edge(arms, given.grid),
        budget=given.budget,
        **asdict(given.background),
    )


def _results(fleet: Fleet, arm: ArmResult, best: float | None, rng_seed: int) -> dict[str, Any]:
    """Return the fields of an arm's report that depend on the arm alone, and on J of hosts of the right size."""
    metric, objective, growth = arm.values("metric"), arm.values("objective"), arm.mean("growth")
    teacher, params = fleet.task.facts.get("teacher_parameters"), fleet.trunk.layout.num_parameters * (1 + growth)
    return {
        "name": arm.name,
        "mean": float(metric.mean()),
        "iqm": iqm(metric),
        "iqm_interval": iqm_interval(metric, rng_seed),
        "j": float(objective.mean()),
        "params": params,
        "growth": growth,
        "flops": arm.mean("flops"),
        "seconds": arm.runs[0].seconds,
        "sick": arm.mean("sick"),
        "lr": arm.lr,
        "searched": arm.searched,
        "plan": arm.plan,
        "episode": arm.episode,
        "excess": None if teacher is None else params - teacher,
        "regret": None if best is None else best - float(objective.mean()),
        "scores": tuple(arm.values("score").flatten().tolist()),
        "objectives": tuple(objective.flatten().tolist()),
        "paired": arm.paired,
    }


UNCOMPARED = dict.fromkeys(("difference", "score_difference", "probability_of_improvement", "p_value"))
"""Fields of the policy's own report that would compare it with itself."""


def _compared(ours: ArmResult, arm: ArmResult, corrected: float, rng_seed: int) -> dict[str, Any]:
    """Return the fields of an arm's report that compare it with the policy under test."""
    difference = paired_interval if arm.paired else unpaired_interval
    our_j, their_j = ours.values("objective"), arm.values("objective")
    return {
        "difference": difference(our_j, their_j, rng_seed),
        "score_difference": difference(ours.values("score"), arm.values("score"), rng_seed),
        "probability_of_improvement": probability_of_improvement(our_j, their_j),
        "p_value": corrected,
    }


def at_the_edge(arms: Sequence[ArmResult], grid: Sequence[float]) -> tuple[str, ...]:
    """Return the names of arms whose best learning rate is at an end of the grid; none if the grid has one rate."""
    ends = (grid[0], grid[-1]) if len(grid) > 1 else ()
    return tuple(arm.name for arm in arms if arm.lr in ends)
