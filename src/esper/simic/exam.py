"""The exam: policies on the same hosts, which nobody has seen, scored on data that nothing was chosen by."""

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esper.leyline.actions import Head, Op
from esper.leyline.errors import EsperError
from esper.leyline.lifecycle import Stage
from esper.leyline.reports import ArmReport, EpochReport, ExamReport, Life, SlotReport
from esper.leyline.state import NO_BLUEPRINT, Setting, SlotState
from esper.simic.evaluation import Outcome, evaluate
from esper.simic.statistics import (
    Values,
    holm,
    iqm,
    iqm_interval,
    p_value,
    paired,
    probability_of_improvement,
    share,
    unpaired,
)
from esper.tamiyo.features import View
from esper.tamiyo.policies import Policy
from esper.tolaria import Fleet, FleetEnv
from esper.tolaria.env import Step

NEVER, ORACLE = "never", "grid oracle"
"""The arms between which the policy under test is to be placed."""
RIGHT_SIZE = "right size"
"""The arm of a teacher's own shape, where a task has a teacher."""


class Sitting(NamedTuple):
    """One policy that has sat an exam: how its hosts fared, what was done to them, and what became of them."""

    outcome: Outcome
    lives: list[Life]
    """Of the first hosts."""
    actions: list[Int[Tensor, "N H"]]
    """Decision by decision."""
    topology: SlotState
    """When lives ended."""
    seconds: float
    """It took, for all hosts at once."""


class Arm(NamedTuple):
    """How one policy did: a sitting for each of its trainings, over the same hosts."""

    name: str
    sittings: Sequence[Sitting]
    episode: int
    lr: float
    searched: int = 0
    """Lives that went into choosing it."""
    paired: bool = True
    """Whether its hosts began with the weights of those of the policy under test."""
    plan: str = ""
    """What it does when, if that is written down."""

    def values(self, field: str) -> Values:
        """One number for each training and host."""
        return np.stack([getattr(sitting.outcome, field).double().cpu().numpy() for sitting in self.sittings])


def sit(env: FleetEnv, policy: Policy, rent: float, rng_seed: int = 0, told: int = 0) -> Sitting:
    """A policy on all hosts of an env, scored on its test data, if it has any; another env of the same rng_seed has the
    same hosts. The lives of the first are told, as many as asked for."""
    diary = Diary(env, range(told))
    env.fleet.lr.cpu()  # waits for what was begun before
    started = time.perf_counter()
    outcome = evaluate(env, policy, rent, rng_seed, on_step=diary.note)
    outcome.objective.cpu()  # waits for the device
    seconds = time.perf_counter() - started
    kind = described(env.fleet)
    lives = [Life(env.fleet.task.name, kind, policy.name, i, epochs) for i, epochs in enumerate(diary.lives())]
    return Sitting(outcome, lives, diary.actions, diary.final, seconds)


def described(fleet: Fleet) -> str:
    """Its kind of hosts, as people write it."""
    return f"{fleet.spec.kind} {'-'.join(map(str, fleet.spec.widths))}"


def distinct(names: Sequence[str]) -> None:
    """Refuse arms that could not be told apart."""
    for name in names:
        if names.count(name) > 1:
            raise EsperError(f"{names.count(name)} arms are called {name!r}: every arm needs a name of its own")


def verdicts(
    fleet: Fleet, rent: float, ours: Arm, others: Sequence[Arm], rng_seed: int = 0, data: str = "test"
) -> ExamReport:
    """What can be said of the first arm against each of the others."""
    j, bare = ours.values("objective"), fleet.trunk.layout.num_parameters
    right = fleet.task.facts.get("teacher_parameters")
    found = {arm.name: arm.values("objective") for arm in others}
    best = float(found[RIGHT_SIZE].mean()) if RIGHT_SIZE in found else None
    distinct([arm.name for arm in (ours, *others)])
    p_values = holm({arm.name: p_value(j, found[arm.name], rng_seed, arm.paired) for arm in others})

    def report(arm: Arm) -> ArmReport:
        metric, own = arm.values("metric"), arm is ours
        theirs, growth = j if own else found[arm.name], float(arm.values("growth").mean())
        difference = paired if arm.paired else unpaired
        return ArmReport(
            name=arm.name,
            mean=float(metric.mean()),
            iqm=iqm(metric),
            iqm_interval=iqm_interval(metric, rng_seed),
            j=float(theirs.mean()),
            params=bare * (1 + growth),
            growth=growth,
            flops=float(arm.values("flops").mean()),
            seconds=arm.sittings[0].seconds,
            sick=float(arm.values("sick").mean()),
            lr=arm.lr,
            searched=arm.searched,
            plan=arm.plan,
            episode=arm.episode,
            difference=None if own else difference(j, theirs, rng_seed),
            score_difference=None if own else difference(ours.values("score"), arm.values("score"), rng_seed),
            probability_of_improvement=None if own else probability_of_improvement(j, theirs),
            p_value=None if own else p_values[arm.name],
            excess=None if right is None else bare * (1 + growth) - right,
            regret=None if best is None else best - float(theirs.mean()),
            scores=tuple(arm.values("score").flatten().tolist()),
            objectives=tuple(theirs.flatten().tolist()),
            paired=arm.paired,
        )

    return ExamReport(
        task=fleet.task.name,
        host=described(fleet),
        metric=fleet.objective.metric_name,
        hosts=j.shape[1],
        trainings=j.shape[0],
        data=data,
        episode=ours.episode,
        rent=rent,
        policy=ours.name,
        right_size=right,
        arms=tuple(report(arm) for arm in (ours, *others)),
        of_oracle=share(j, found[NEVER], found[ORACLE], rng_seed) if {NEVER, ORACLE} <= found.keys() else None,
    )


class Replay:
    """Does on every host what was done on the host of the same number, whatever that was good for there."""

    name = "replay"

    def __init__(self, actions: Sequence[Int[Tensor, "N H"]]) -> None:
        self.actions = actions

    def begin(self, setting: Setting, num_hosts: int, device: torch.device) -> None:
        self.decision = 0

    def decide(self, view: View, fresh: Bool[Tensor, " N"], uniform: Float[Tensor, "N A"]) -> Int[Tensor, "N H"]:
        self.decision += 1
        return self.actions[self.decision - 1]


class Diary:
    """What some hosts of an env do and what becomes of it, to be told afterwards."""

    def __init__(self, env: FleetEnv, hosts: Sequence[int]) -> None:
        self.setting = env.setting
        self.hosts = torch.tensor(list(hosts), dtype=torch.long, device=env.fleet.device)
        self.days: list[dict[str, Tensor]] = []
        self.actions: list[Tensor] = []
        self.final = env.fleet.state
        """The slots of every host when its life ended."""
        self.alive = torch.ones_like(env.fleet.everyone)

    def note(self, actions: Tensor, step: Step) -> None:
        self.actions.append(actions.where(self.alive[:, None], 0))  # of whoever came after a sick host, nothing
        self.final = SlotState(
            *(torch.where(self.alive[:, None], new, old) for new, old in zip(step.final.slots, self.final, strict=True))
        )
        self.alive &= ~(step.terminated | step.truncated)
        if len(self.hosts):
            final, slots = step.final, step.final.slots
            kept = {
                **{"op": actions[:, Head.OP], "refused": step.refused, "ended": step.terminated | step.truncated},
                **{name: getattr(final, name) for name in ("train_loss", "loss", "metric", "score", "growth", "flops")},
                **{"stage": slots.stage, "alpha": slots.alpha, "blueprint": slots.blueprint},
                **{"contribution": final.vitals.contribution},
            }
            self.days.append({name: value[self.hosts].cpu() for name, value in kept.items()})

    def lives(self) -> list[tuple[EpochReport, ...]]:
        """Of each host, its first life."""
        return [tuple(self._life(row)) for row in range(len(self.hosts))]

    def _life(self, row: int) -> list[EpochReport]:
        told = []
        for epoch, day in enumerate(self.days):
            today = {name: value[row] for name, value in day.items()}
            told.append(self._epoch(epoch, today))
            if bool(today["ended"]):
                break
        return told

    def _epoch(self, epoch: int, today: dict[str, Tensor]) -> EpochReport:
        space = self.setting.space
        slots = []
        for s, name in enumerate(space.slots):
            blueprint = int(today["blueprint"][s])
            empty = blueprint == NO_BLUEPRINT
            slots.append(
                SlotReport(
                    name=name,
                    stage=Stage(int(today["stage"][s])).name,
                    alpha=today["alpha"][s].item(),
                    blueprint=None if empty else space.blueprints[blueprint],
                    contribution=None if empty else today["contribution"][s].item(),
                )
            )
        growth = today["growth"].item()
        return EpochReport(
            epoch=epoch,
            op=Op(int(today["op"])).name,
            refused=bool(today["refused"]),
            train_loss=today["train_loss"].item(),
            validation_loss=today["loss"].item(),
            metric=today["metric"].item(),
            score=today["score"].item(),
            parameters=round(self.setting.parameters * (1 + growth)),
            growth=growth,
            flops=int(today["flops"]),
            slots=tuple(slots),
        )
