"""The arm that tries every doubling out before it keeps it: fork, grow the copy, train both, keep the better."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from esper.exam.runs import ArmResult, ArmRun, Traced, run_traced
from esper.exam.sitting import Played, Sitting
from esper.leyline.state import Signals
from esper.simic.evaluation import Outcome
from esper.tamiyo.policies import Doubling, SideBySide
from esper.tolaria import FleetEnv
from esper.tolaria.env import Step

PROBE = "probe"
AT = (0.3, 0.6)
"""Shares of the budget at which a doubling is tried: those at which `Doubling` doubles."""
LENGTH = 0.1
"""Share of the budget that each of the two gets for the trial; both pay for both."""
BRANCHES = ((), AT[1:], AT[:1], AT)
"""Where each of four siblings doubles. Until they differ, they are the same host: a fork is to have grown apart."""


class ForkedEnv(FleetEnv):
    """An env in which every host pays for the trial of its fork, too, when its own trial is over."""

    def reset(self) -> Signals:
        """Begin all episodes; no trial has been paid for."""
        self.paid = torch.zeros(self.fleet.num_hosts, len(AT), dtype=torch.bool, device=self.fleet.device)
        self.extra = torch.zeros_like(self.fleet.spent)
        """FLOPs that each host has paid for the trials of its fork."""
        return super().reset()

    def step(self, actions: Int[Tensor, "N H"]) -> Step:
        """Take a decision, and charge what is due."""
        step, budget = super().step(actions), self.fleet.budget
        assert budget is not None
        over = (step.terminated | step.truncated)[:, None]
        ends = torch.tensor(AT, device=budget.device) + LENGTH
        due = ((self.fleet.spent / budget)[:, None] >= ends) & ~self.paid & ~over
        self.paid |= due | over  # of the next episode nobody asks
        charged = LENGTH * budget * due.sum(1)
        self.fleet.spent, self.extra = self.fleet.spent + charged, self.extra + charged
        return step._replace(signals=step.signals._replace(spent=self.fleet.spent / budget))


def chosen_branch(trace: Traced) -> Int[Tensor, " N"]:
    """Return the branch that every group of siblings goes on with, by J on the validation data after each trial."""

    def better(end: float, without: int, grown: int) -> Bool[Tensor, " N"]:
        worth = trace.at(end).view(-1, len(BRANCHES))
        return worth[:, grown] > worth[:, without]

    first = better(AT[0] + LENGTH, 0, 2)
    end = AT[1] + LENGTH
    second = torch.where(first, better(end, 2, 3), better(end, 0, 1))
    return 2 * first.long() + second


def probed(env: FleetEnv, rent: float, rng_seed: int) -> tuple[Outcome, Traced]:
    """Play all branches, and return the outcome of those that are kept. Trials are paid for."""
    policy = SideBySide([Doubling(at) for at in BRANCHES])
    forked = ForkedEnv(env.fleet, env.config, env.test)
    trace = run_traced(forked, policy, rent, rng_seed)
    paid = trace.outcome._replace(flops=trace.outcome.flops + forked.extra.float())
    branch = chosen_branch(trace)[:, None]
    return Outcome(*(field.view(-1, len(BRANCHES)).gather(1, branch)[:, 0] for field in paid)), trace


def probe(sitting: Sitting, played: Played) -> ArmResult:
    """Double where a trial shows that it pays, at the best of all learning rates on tuning hosts."""
    count, tuner = len(BRANCHES), sitting.tuner

    def tried(rate: float) -> float:
        env = sitting.hosts.tuning(sitting.config.tuned_on, [rate] * count)
        return probed(env, sitting.rent, sitting.rng_seed)[0].objective.mean().item()

    def choose() -> list[float]:
        found = [tried(rate) for rate in tuner.grid]
        return [tuner.grid[found.index(max(found))]]

    lr = tuner.grid[0] if len(tuner.grid) == 1 else tuner.chosen(f"learning rate of {PROBE}", choose)[0]
    sitting.tell(f"{PROBE} on the hosts that count")
    outcome, trace = probed(sitting.hosts.forked(lr, count), sitting.rent, sitting.rng_seed)
    run = ArmRun(outcome, [], [], trace.topology, trace.seconds)
    return ArmResult(PROBE, [run], sitting.fleet.env.decisions, lr)
