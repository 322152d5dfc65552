"""Hold exams: trained controllers against baselines on fresh hosts, each arm at its best learning rate."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache

import torch

from esper.exam.arms import Arm, admitted
from esper.exam.config import QUICK, ExamConfig
from esper.exam.derived import grown_on_tuning_hosts
from esper.exam.records import Background, ExamReport, Life
from esper.exam.runs import ArmResult
from esper.exam.sitting import Played, Sitting
from esper.exam.tuning import Choices, Tell
from esper.exam.verdicts import Circumstances, compare_arms
from esper.leyline.errors import EsperError
from esper.recipes.config import FleetConfig, Recipe
from esper.tamiyo.policies import Policy
from esper.tolaria import Engine

ROUNDING = 1e-5
"""Error of a sum of FLOPs, as a share of the budget."""


def hold_exam(
    recipe: Recipe,
    policies: Sequence[Policy],
    config: ExamConfig = QUICK,
    guests: Sequence[Policy | Arm] = (),
    fleets: Sequence[FleetConfig] = (),
) -> tuple[list[ExamReport], list[Life]]:
    """Compare trained policies with baselines on fresh hosts, and return the verdicts.

    Args:
        recipe: The recipe that the policies were trained with; its final rent and its random seed apply.
        policies: All trainings of one policy, such as `LearnedPolicy(load_controller(run))` for each run.
        config: How thorough the exam is.
        guests: Further policies that take part, or arms of one's own.
        fleets: Settings to examine in; default: those of the recipe.

    Returns:
        One report for each setting, and the episodes of the first `config.recorded` hosts.

    Raises:
        EsperError: Two arms have the same name, or a guest cannot play in one of the settings.

    Example:
        ```python
        reports, lives = hold_exam(recipe("spirals"), [LearnedPolicy(load_controller())], ExamConfig(hosts=30))
        ```
    """
    held = list(held_one_by_one(recipe, policies, config, guests, fleets))
    return [report for report, _ in held], [life for _, lives in held for life in lives]


def held_one_by_one(
    recipe: Recipe,
    policies: Sequence[Policy],
    config: ExamConfig,
    guests: Sequence[Policy | Arm] = (),
    fleets: Sequence[FleetConfig] = (),
    tell: Tell = lambda said: None,
    choices: Choices | None = None,
    background: Background = Background(),
) -> Iterator[tuple[ExamReport, list[Life]]]:
    """Yield the exam of each fleet as soon as it has ended.

    Admits all arms first. `tell` hears of every step; `choices` keeps what is tuned and searched, which takes most of
    the time, so that an interrupted exam resumes.
    """
    recipe, choices = replace(recipe, engine=within_memory(recipe.engine)), {} if choices is None else choices
    every = enumerate(fleets or recipe.fleets)
    sittings = [Sitting(recipe, fleet, config, tell, choices, f"{n}: ") for n, fleet in every]
    arms = [admitted(sitting, policies[0].name, guests) for sitting in sittings]
    for sitting, sits in zip(sittings, arms, strict=True):
        yield hold(sitting, policies, sits, background)


def hold(
    sitting: Sitting, policies: Sequence[Policy], arms: Sequence[Arm], background: Background = Background()
) -> tuple[ExamReport, list[Life]]:
    """Play all arms of one exam, and return the verdicts and some episodes."""
    tuner, others, life = sitting.tuner, dict[str, ArmResult](), sitting.hosts.example.life()
    budget = None if life is None else float(life[0])
    rivals = rivals_of(sitting, arms)
    for (name, rival), lr in zip(rivals.items(), tuner.tuned([[rival] for rival in rivals.values()]), strict=True):
        others[name] = require_equal_compute(budget, sitting.play(name, [rival], lr))
    (lr,) = tuner.tuned([policies])
    # last: the first to need a kernel waits for its compilation
    ours = require_equal_compute(budget, sitting.play(policies[0].name, policies, lr))
    played = Played(policies, ours, others, cache(lambda: grown_on_tuning_hosts(sitting, policies, ours.lr)))
    for arm in arms:
        if arm.play is not None:
            others[arm.name] = require_equal_compute(budget, arm.play(sitting, played))
    sitting.hosts.places.fleet = None  # the next fleet needs the memory
    return verdicts(sitting, arms, ours, others, background)


def rivals_of(sitting: Sitting, arms: Sequence[Arm]) -> dict[str, Policy]:
    """Return the policies of all arms that have one."""
    return {arm.name: arm.policy(sitting) for arm in arms if arm.policy is not None}


def verdicts(
    sitting: Sitting, arms: Sequence[Arm], ours: ArmResult, others: Mapping[str, ArmResult], background: Background
) -> tuple[ExamReport, list[Life]]:
    """Return the report of an exam whose arms have all been played, and episodes of those with a policy."""
    fleet, life, final = sitting.hosts.example.fleet, sitting.hosts.example.life(), sitting.config.final
    budget, data = None if life is None else float(life[0]), "test" if final else "validation"
    given = Circumstances(data, sitting.fleet.variant, sitting.unseen, sitting.tuner.grid, background, budget)
    followed = [ours, *(others[arm.name] for arm in arms if arm.policy is not None)]
    report = compare_arms(fleet, sitting.rent, ours, list(others.values()), sitting.rng_seed, given)
    return report, [life for arm in followed for life in arm.runs[0].lives]


def require_equal_compute(budget: float | None, arm: ArmResult) -> ArmResult:
    """Return an arm of an exam; on a budget, raise an error if it has spent more or less by more than a step.

    Hosts that failed have ended early, and do not count.
    """
    for run in arm.runs:
        off = (run.outcome.flops.double() - (budget or 0.0)).abs().where(run.outcome.sick == 0, 0.0)
        if budget is not None and bool((off > run.step + ROUNDING * budget).any()):
            raise EsperError(
                f"arm {arm.name!r} spent {float(off.max()) / budget:.2%} more or less than the budget on a host:"
                " arms of an exam on a budget must spend the same, to the step"
            )
    return arm


def within_memory(engine: Engine, sharing: int = 1) -> Engine:
    """Return the engine with a memory budget that leaves room on a GPU for a second fleet and for recorded programs.

    Args:
        engine: One that has no budget yet, or that is left as it is.
        sharing: Number of processes that share the GPU.
    """
    device = engine.place()
    if device.type != "cuda" or engine.memory_budget is not None:
        return engine
    return replace(engine, memory_budget=torch.cuda.get_device_properties(device).total_memory // (3 * sharing))
