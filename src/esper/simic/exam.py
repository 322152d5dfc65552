"""Exams: run policies on identical fresh hosts, record what they do, and compare them statistically."""

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
    gain_fraction,
    holm,
    iqm,
    iqm_interval,
    p_value,
    paired_interval,
    probability_of_improvement,
    unpaired_interval,
)
from esper.tamiyo.features import View
from esper.tamiyo.policies import Policy
from esper.tolaria import Fleet, FleetEnv
from esper.tolaria.env import Step

NEVER, ORACLE = "never", "grid oracle"
"""Names of the arms that the policy's gain is measured against."""
RIGHT_SIZE = "right size"
"""Name of the arm with hosts of the teacher's shape, on tasks that have a teacher."""


class ArmRun(NamedTuple):
    """One training of a policy, run on all hosts of an exam: outcomes, actions and final topologies."""

    outcome: Outcome
    lives: list[Life]
    """Epoch-by-epoch records of the first hosts."""
    actions: list[Int[Tensor, "N H"]]
    """Actions of all hosts, one tensor per decision."""
    topology: SlotState
    """Slots of every host when its episode ended."""
    seconds: float
    """Wall-clock seconds, all hosts together."""


class Arm(NamedTuple):
    """One policy of an exam: a run for each of its trainings, on identical hosts."""

    name: str
    runs: Sequence[ArmRun]
    episode: int
    """Epochs per episode."""
    lr: float
    """Learning rate of the hosts."""
    searched: int = 0
    """Episodes that went into choosing the policy."""
    paired: bool = True
    """Whether its hosts have the initial weights of those of the policy under test."""
    plan: str = ""
    """The plan, if the policy follows a fixed one."""

    def values(self, field: str) -> Values:
        """Return a field of the outcome as an array (trainings, N)."""
        return np.stack([getattr(run.outcome, field).double().cpu().numpy() for run in self.runs])


def run_arm(env: FleetEnv, policy: Policy, rent: float, rng_seed: int = 0, num_recorded: int = 0) -> ArmRun:
    """Evaluate a policy on all hosts of an env, and record the episodes of the first `num_recorded` of them.

    Scores are on test data if the env holds any. Envs with equal rng_seed have identical hosts.
    """
    recorder = EpisodeRecorder(env, range(num_recorded))
    env.fleet.lr.cpu()  # waits for work that the device has not finished
    started = time.perf_counter()
    outcome = evaluate(env, policy, rent, rng_seed, on_step=recorder.record)
    outcome.objective.cpu()  # waits for the device
    seconds = time.perf_counter() - started
    kind = host_name(env.fleet)
    lives = [Life(env.fleet.task.name, kind, policy.name, i, epochs) for i, epochs in enumerate(recorder.episodes())]
    return ArmRun(outcome, lives, recorder.actions, recorder.final, seconds)


def host_name(fleet: Fleet) -> str:
    """Return the kind and widths of a fleet's hosts, such as `mlp 8-8`."""
    return f"{fleet.spec.kind} {'-'.join(map(str, fleet.spec.widths))}"


def require_unique_names(names: Sequence[str]) -> None:
    """Raise EsperError if two arms have the same name."""
    for name in names:
        if names.count(name) > 1:
            raise EsperError(f"{names.count(name)} arms are called {name!r}: give every arm a different name")


def compare_arms(
    fleet: Fleet, rent: float, ours: Arm, others: Sequence[Arm], rng_seed: int = 0, data: str = "test"
) -> ExamReport:
    """Compare the policy under test with each other arm: differences, intervals and corrected p-values."""
    our_j, bare = ours.values("objective"), fleet.trunk.layout.num_parameters
    teacher = fleet.task.facts.get("teacher_parameters")
    j_of = {arm.name: arm.values("objective") for arm in others}
    best = float(j_of[RIGHT_SIZE].mean()) if RIGHT_SIZE in j_of else None
    require_unique_names([arm.name for arm in (ours, *others)])
    p_values = holm({arm.name: p_value(our_j, j_of[arm.name], rng_seed, arm.paired) for arm in others})

    def report(arm: Arm) -> ArmReport:
        metric, own = arm.values("metric"), arm is ours
        their_j, growth = our_j if own else j_of[arm.name], float(arm.values("growth").mean())
        difference = paired_interval if arm.paired else unpaired_interval
        return ArmReport(
            name=arm.name,
            mean=float(metric.mean()),
            iqm=iqm(metric),
            iqm_interval=iqm_interval(metric, rng_seed),
            j=float(their_j.mean()),
            params=bare * (1 + growth),
            growth=growth,
            flops=float(arm.values("flops").mean()),
            seconds=arm.runs[0].seconds,
            sick=float(arm.values("sick").mean()),
            lr=arm.lr,
            searched=arm.searched,
            plan=arm.plan,
            episode=arm.episode,
            difference=None if own else difference(our_j, their_j, rng_seed),
            score_difference=None if own else difference(ours.values("score"), arm.values("score"), rng_seed),
            probability_of_improvement=None if own else probability_of_improvement(our_j, their_j),
            p_value=None if own else p_values[arm.name],
            excess=None if teacher is None else bare * (1 + growth) - teacher,
            regret=None if best is None else best - float(their_j.mean()),
            scores=tuple(arm.values("score").flatten().tolist()),
            objectives=tuple(their_j.flatten().tolist()),
            paired=arm.paired,
        )

    return ExamReport(
        task=fleet.task.name,
        host=host_name(fleet),
        metric=fleet.objective.metric_name,
        hosts=our_j.shape[1],
        trainings=our_j.shape[0],
        data=data,
        episode=ours.episode,
        rent=rent,
        policy=ours.name,
        right_size=teacher,
        arms=tuple(report(arm) for arm in (ours, *others)),
        of_oracle=gain_fraction(our_j, j_of[NEVER], j_of[ORACLE], rng_seed) if {NEVER, ORACLE} <= j_of.keys() else None,
    )


class Replay:
    """Policy that repeats recorded actions: host n does what host n of the recording did."""

    name = "replay"

    def __init__(self, actions: Sequence[Int[Tensor, "N H"]]) -> None:
        self.actions = actions

    def begin(self, setting: Setting, num_hosts: int, device: torch.device) -> None:
        self.decision = 0

    def decide(self, view: View, fresh: Bool[Tensor, " N"], uniform: Float[Tensor, "N A"]) -> Int[Tensor, "N H"]:
        self.decision += 1
        return self.actions[self.decision - 1]


class EpisodeRecorder:
    """Recorder of all actions and final slots of an env, and of every epoch of some of its hosts."""

    def __init__(self, env: FleetEnv, hosts: Sequence[int]) -> None:
        self.setting = env.setting
        self.hosts = torch.tensor(list(hosts), dtype=torch.long, device=env.fleet.device)
        self.epochs: list[dict[str, Tensor]] = []
        self.actions: list[Tensor] = []
        self.final = env.fleet.state
        """Slots of every host when its first episode ended."""
        self.alive = torch.ones_like(env.fleet.everyone)

    def record(self, actions: Tensor, step: Step) -> None:
        """Record one decision; the host that replaces a failed one is not recorded."""
        self.actions.append(actions.where(self.alive[:, None], 0))
        self.final = SlotState(
            *(torch.where(self.alive[:, None], new, old) for new, old in zip(step.final.slots, self.final, strict=True))
        )
        self.alive &= ~(step.terminated | step.truncated)
        if len(self.hosts):
            final, slots = step.final, step.final.slots
            values = {
                **{"op": actions[:, Head.OP], "refused": step.refused, "ended": step.terminated | step.truncated},
                **{name: getattr(final, name) for name in ("train_loss", "loss", "metric", "score", "growth", "flops")},
                **{"stage": slots.stage, "alpha": slots.alpha, "blueprint": slots.blueprint},
                **{"contribution": final.vitals.contribution},
            }
            self.epochs.append({name: value[self.hosts].cpu() for name, value in values.items()})

    def episodes(self) -> list[tuple[EpochReport, ...]]:
        """Return the first episode of each recorded host, epoch by epoch."""
        return [tuple(self._episode(row)) for row in range(len(self.hosts))]

    def _episode(self, row: int) -> list[EpochReport]:
        reports = []
        for epoch, recorded in enumerate(self.epochs):
            values = {name: value[row] for name, value in recorded.items()}
            reports.append(self._epoch(epoch, values))
            if bool(values["ended"]):
                break
        return reports

    def _epoch(self, epoch: int, values: dict[str, Tensor]) -> EpochReport:
        space = self.setting.space
        slots = []
        for s, name in enumerate(space.slots):
            blueprint = int(values["blueprint"][s])
            empty = blueprint == NO_BLUEPRINT
            slots.append(
                SlotReport(
                    name=name,
                    stage=Stage(int(values["stage"][s])).name,
                    alpha=values["alpha"][s].item(),
                    blueprint=None if empty else space.blueprints[blueprint],
                    contribution=None if empty else values["contribution"][s].item(),
                )
            )
        growth = values["growth"].item()
        return EpochReport(
            epoch=epoch,
            op=Op(int(values["op"])).name,
            refused=bool(values["refused"]),
            train_loss=values["train_loss"].item(),
            validation_loss=values["loss"].item(),
            metric=values["metric"].item(),
            score=values["score"].item(),
            parameters=round(self.setting.parameters * (1 + growth)),
            growth=growth,
            flops=int(values["flops"]),
            slots=tuple(slots),
        )
