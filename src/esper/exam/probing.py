"""The arm that tries every doubling out before it keeps it: fork, grow the copy, train both, keep the better."""

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from esper.exam.runs import ArmResult, ArmRun, Traced, run_traced
from esper.exam.sitting import Played, Sitting
from esper.leyline.actions import TWIN, Graft
from esper.leyline.state import Signals
from esper.simic.evaluation import Outcome
from esper.tamiyo.policies import ROUNDING, Doubling, SideBySide
from esper.tolaria import FleetEnv
from esper.tolaria.env import Step
from esper.tolaria.setting import TRAIN

PROBE = "probe"
BLEND = 3
"""Epochs over which `Doubling` blends a seed in."""
SETTLING = 0.05
"""Share of the budget that a trial lasts after its last twin has been blended in."""
LATEST = 0.9
"""Share of the budget at which all trials must have been paid for."""


class Trial(NamedTuple):
    """When a doubling is tried, in shares of the budget."""

    start: float
    end: float

    @property
    def paid(self) -> float:
        """What is spent after both hosts of the trial have been paid for."""
        return 2 * self.end - self.start


def trials_for(env: FleetEnv) -> list[Trial]:
    """Return the trials for which hosts of an env have the budget.

    A trial begins when `Doubling` would double, or when the one before has been paid for; it lasts until the twins have
    been born, one per decision, and blended in, and a little longer.
    """
    setting, fleet, found, paid = env.setting, env.fleet, list[Trial](), 0.0
    assert env.config.budget is not None
    rule = Doubling()
    rule.begin(setting, 1, fleet.device)
    slots, twin = torch.arange(len(rule.due), device=fleet.device), setting.space.blueprints.index(TWIN)
    extra = fleet.costs.seeds[TRAIN, slots, twin, Graft.REPLACE] / fleet.costs.host.train
    for at in rule.at:
        born = int((rule.due.float() - at).abs().lt(1e-3).sum())
        pace = 1 + float(extra[rule.due <= at].sum())
        start = max(at, paid)
        trial = Trial(start, start + (born + BLEND) * pace / env.config.budget + SETTLING)
        if not born or trial.paid > LATEST:
            break
        found.append(trial)
        paid = trial.paid
    return found


def branches_of(trials: Sequence[Trial]) -> list[tuple[float, ...]]:
    """Return where each of several siblings doubles: every choice among the trials.

    Until they differ, they are the same host: a fork is to have grown apart.
    """
    chosen = product((False, True), repeat=len(trials))
    return [tuple(trial.start for trial, is_grown in zip(trials, grown, strict=True) if is_grown) for grown in chosen]


class ForkedEnv(FleetEnv):
    """An env in which every host pays for the trial of its fork, too, when its own trial is over."""

    def __init__(self, env: FleetEnv, trials: Sequence[Trial]) -> None:
        super().__init__(env.fleet, env.config, env.test)
        self.charges_measuring, self.trials = False, trials
        self.pause_at([share for trial in trials for share in trial])

    def reset(self) -> Signals:
        """Begin all episodes; no trial has been paid for."""
        self.paid = torch.zeros(self.fleet.num_hosts, len(self.trials), dtype=torch.bool, device=self.fleet.device)
        self.extra = torch.zeros_like(self.fleet.spent)
        """FLOPs that each host has paid for the trials of its fork."""
        return super().reset()

    def step(self, actions: Int[Tensor, "N H"]) -> Step:
        """Take a decision, and charge what is due."""
        step, budget = super().step(actions), self.fleet.budget
        assert budget is not None
        over = (step.terminated | step.truncated)[:, None]
        ends, lengths = (torch.tensor(x, device=budget.device) for x in self.ends_and_lengths)
        due = ((self.fleet.spent / budget)[:, None] >= ends - ROUNDING) & ~self.paid & ~over
        self.paid |= due | over  # of the next episode nobody asks
        charged = (due * lengths).sum(1) * budget
        self.fleet.spent, self.extra = self.fleet.spent + charged, self.extra + charged
        return step._replace(signals=step.signals._replace(spent=self.fleet.spent / budget))

    @property
    def ends_and_lengths(self) -> tuple[list[float], list[float]]:
        """Return when trials end and how long they last, in shares of the budget."""
        return [trial.end for trial in self.trials], [trial.end - trial.start for trial in self.trials]


def chosen_branch(trace: Traced, trials: Sequence[Trial]) -> Int[Tensor, " N"]:
    """Return the branch that every group of siblings goes on with, by J on the validation data after each trial."""
    count = 2 ** len(trials)
    hosts = torch.arange(trace.spent.shape[1] // count, device=trace.spent.device)
    branch = torch.zeros_like(hosts)
    for n, trial in enumerate(trials):
        grown = 2 ** (len(trials) - 1 - n)  # how far apart the branches with and without this doubling are
        worth = trace.at(trial.end).view(-1, count)
        is_better: Bool[Tensor, " N"] = worth[hosts, branch + grown] > worth[hosts, branch]
        branch = branch + grown * is_better
    return branch


def probed(env: FleetEnv, trials: Sequence[Trial], rent: float, rng_seed: int) -> tuple[Outcome, Traced]:
    """Play all branches, and return the outcome of those that are kept. Trials are paid for."""
    forked, branches = ForkedEnv(env, trials), branches_of(trials)
    trace = run_traced(forked, SideBySide([Doubling(at) for at in branches]), rent, rng_seed)
    paid = trace.outcome._replace(flops=trace.outcome.flops + forked.extra.float())
    branch = chosen_branch(trace, trials)[:, None]
    return Outcome(*(field.view(-1, len(branches)).gather(1, branch)[:, 0] for field in paid)), trace


def with_room_for_a_trial(sitting: Sitting) -> bool:
    """On a budget that pays for trying a doubling out."""
    env = sitting.hosts.example
    return env.config.budget is not None and TWIN in env.setting.space.blueprints and bool(trials_for(env))


def probe(sitting: Sitting, played: Played) -> ArmResult:
    """Double where a trial shows that it pays, at the best of all learning rates on tuning hosts."""
    tuner, trials = sitting.tuner, trials_for(sitting.hosts.example)
    count = 2 ** len(trials)

    def tried(rate: float) -> float:
        env = sitting.hosts.tuning(sitting.config.tuned_on, [rate] * count)
        return probed(env, trials, sitting.rent, sitting.rng_seed)[0].objective.mean().item()

    def choose() -> list[float]:
        found = [tried(rate) for rate in tuner.grid]
        return [tuner.grid[found.index(max(found))]]

    lr = tuner.grid[0] if len(tuner.grid) == 1 else tuner.chosen(f"learning rate of {PROBE}", choose)[0]
    sitting.tell(f"{PROBE} on the hosts that count")
    outcome, trace = probed(sitting.hosts.forked(lr, count), trials, sitting.rent, sitting.rng_seed)
    plan = ", ".join(f"{trial.start:.2f} to {trial.end:.2f}" for trial in trials)
    run = ArmRun(outcome, [], [], trace.topology, trace.seconds, 2 * trace.step)
    return ArmResult(PROBE, [run], sitting.fleet.env.decisions, lr, plan=f"tries at {plan} of the budget")
