"""Run a policy on all hosts of an exam, and record what it does."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils._pytree import tree_map

from esper.exam.records import Life
from esper.exam.statistics import Values
from esper.kasmina.cost import epoch_cost
from esper.leyline.actions import Head
from esper.leyline.reports import EpochReport
from esper.leyline.state import Setting, SlotState
from esper.simic.evaluation import Outcome, Tally
from esper.simic.life_reports import decision_values, epoch_report
from esper.simic.lives import Transition, episode
from esper.simic.rewards import objective
from esper.tamiyo.features import View
from esper.tamiyo.policies import ROUNDING, FixedPlan, LearnedPolicy, Policy
from esper.tolaria import FleetEnv


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
    step: float = 0.0
    """FLOPs of the dearest host's last step, on a budget: no host spends more or less by more than this."""


class ArmResult(NamedTuple):
    """What came out of one arm: a run for each of its trainings, on identical hosts."""

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

    def mean(self, field: str) -> float:
        """Return the mean of a field of the outcome."""
        return float(self.values(field).mean())


def run_arm(
    env: FleetEnv, policy: Policy, rent: float, rng_seed: int = 0, num_recorded: int = 0, name: str = ""
) -> ArmRun:
    """Evaluate a policy on all hosts of an env, and record the episodes of the first `num_recorded` of them.

    Scores are on test data if the env holds any. Envs with equal rng_seed have identical hosts. Episodes are recorded
    under the name of the arm, by default that of the policy.
    """
    tally, recorder = Tally(env), EpisodeRecorder(env, range(num_recorded), policy)
    env.fleet.lr.cpu()  # waits for work that the device has not finished
    started = time.perf_counter()
    for transition in episode(env, policy, rent, rng_seed):
        tally.add(transition)
        recorder.add(transition)
    tally.outcome.objective.cpu()  # waits for the device
    seconds = time.perf_counter() - started
    task, kind, name = env.fleet.task.name, env.fleet.spec.label, name or policy.name
    lives = [Life(task, kind, name, host, epochs) for host, epochs in enumerate(recorder.episodes())]
    return ArmRun(tally.outcome, lives, recorder.actions, recorder.final, seconds, last_step(env, recorder.final))


def last_step(env: FleetEnv, final: SlotState) -> float:
    """Return the FLOPs of one training step of the dearest host, with these slots; 0 without a budget."""
    if env.config.budget is None:
        return 0.0
    return env.fleet.config.batch_size * float(epoch_cost(env.fleet.costs, final).step.max())


class Traced(NamedTuple):
    """One episode of all hosts on a budget, decision by decision."""

    spent: Float[Tensor, "T N"]
    """Share of the budget that is spent after each decision."""
    objective: Float[Tensor, "T N"]
    """J on the validation data after each decision."""
    outcome: Outcome
    topology: SlotState
    seconds: float
    step: float = 0.0
    """FLOPs of the dearest host's last step."""

    def at(self, share: float) -> Float[Tensor, " N"]:
        """Return J when a share of the budget, at which epochs end, had been spent; −inf if the host had failed."""
        has_failed = (self.outcome.sick > 0) & (self.reached(share) == self.reached(torch.inf))
        return self._then(self.objective, share).masked_fill(has_failed, -torch.inf)

    def spent_at(self, share: float) -> Float[Tensor, " N"]:
        """Return what had been spent then, to the step, as a share of the budget."""
        return self._then(self.spent, share)

    def reached(self, share: float) -> Int[Tensor, " N"]:
        """Return the decision after which a share of the budget had been spent; the last, if it never was."""
        last = self.spent.isfinite().sum(0) - 1
        return torch.minimum((self.spent < share - ROUNDING).sum(0), last)

    def _then(self, values: Float[Tensor, "T N"], share: float) -> Float[Tensor, " N"]:
        return values.gather(0, self.reached(share)[None])[0]

    def paying(self, price: float, outcome: Outcome) -> "Traced":
        """Return the trace of hosts that pay a price throughout, and their outcome with it."""
        return self._replace(objective=self.objective - price, outcome=outcome)


def run_traced(env: FleetEnv, policy: Policy, rent: float, rng_seed: int = 0) -> Traced:
    """Evaluate a policy on all hosts of an env with a budget, and keep J after every decision."""
    tally, recorder = Tally(env), EpisodeRecorder(env, range(0))
    started, spent, worth = time.perf_counter(), [], []
    for transition in episode(env, policy, rent, rng_seed):
        (step,), (before,) = transition.steps, transition.before
        alive, now = tally.alive.clone(), objective(step.final, before.rent)
        assert step.final.spent is not None
        spent.append(step.final.spent.where(alive, torch.inf))
        worth.append(now.where(alive, worth[-1] if worth else now))
        tally.add(transition)
        recorder.add(transition)
    seconds = time.perf_counter() - started
    step = last_step(env, recorder.final)
    return Traced(torch.stack(spent), torch.stack(worth), tally.outcome, recorder.final, seconds, step)


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


class ChosenPlan(FixedPlan):
    """The winner of a search."""

    def __init__(self, best: FixedPlan, name: str, searched: int) -> None:
        super().__init__(best.plan, name=name)
        self.searched = searched
        """Episodes that the search took."""


RECORDED_HEADS = (Head.OP, Head.SLOT, Head.BLUEPRINT, Head.STYLE, Head.TEMPO)
"""Heads whose probabilities are recorded."""


class EpisodeRecorder:
    """Recorder of all actions and final slots of an env, and of every epoch of some of its hosts.

    If the policy is a learned one, the probabilities of its choices are recorded, too.
    """

    def __init__(self, env: FleetEnv, hosts: Sequence[int], policy: Policy | None = None) -> None:
        self.setting, self.policy = env.setting, policy
        self.hosts = torch.tensor(list(hosts), dtype=torch.long, device=env.fleet.device)
        self.epochs: list[dict[str, Tensor]] = []
        self.probabilities: list[dict[Head, Tensor]] = []
        """Those of every decision: one row per host; empty where a rule decided."""
        self.actions: list[Tensor] = []
        self.final = env.fleet.state
        """Slots of every host when its first episode ended."""
        self.alive = torch.ones_like(env.fleet.everyone)

    def add(self, transition: Transition) -> None:
        """Record one decision; the host that replaces a failed one is not recorded."""
        (actions,), (step,) = transition.actions, transition.steps
        self.actions.append(actions.where(self.alive[:, None], 0))
        self.final = SlotState(
            *(torch.where(self.alive[:, None], new, old) for new, old in zip(step.final.slots, self.final, strict=True))
        )
        self.alive &= ~(step.terminated | step.truncated)
        if len(self.hosts):
            values = decision_values(transition.before[0], actions, step)
            self.epochs.append({name: value[self.hosts].cpu() for name, value in values.items()})
            self.probabilities.append(self._probabilities(actions))

    @torch.no_grad()
    def _probabilities(self, actions: Int[Tensor, "N H"]) -> dict[Head, Tensor]:
        """Return the probabilities of all choices in the last decision, given those made; none of a rule."""
        if not isinstance(self.policy, LearnedPolicy):
            return {}
        seen, memory = tree_map(lambda x: x[self.hosts], self.policy.last)
        found = self.policy.controller.probabilities(seen, memory, actions[self.hosts])
        return {head: found[head].cpu() for head in RECORDED_HEADS}

    def episodes(self) -> list[tuple[EpochReport, ...]]:
        """Return the first episode of each recorded host, epoch by epoch."""
        return [tuple(self._episode(row)) for row in range(len(self.hosts))]

    def _episode(self, row: int) -> list[EpochReport]:
        reports = []
        for epoch, recorded in enumerate(self.epochs):
            values = {name: value[row] for name, value in recorded.items()}
            probabilities = {head: p[row].tolist() for head, p in self.probabilities[epoch].items()}
            reports.append(replace(epoch_report(self.setting, epoch, values), probabilities=self._named(probabilities)))
            if bool(values["ended"]):
                break
        return reports

    def _named(self, probabilities: Mapping[Head, Sequence[float]]) -> dict[str, dict[str, float]]:
        """Return probabilities, to four decimals, by the names of heads and choices."""
        choices = self.setting.space.choices
        return {
            head.name.lower(): {name: round(p, 4) for name, p in zip(choices[head], row, strict=True)}
            for head, row in probabilities.items()
        }
