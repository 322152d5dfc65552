"""The training loop of a controller: collect a rollout, update by PPO, report."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esper.leyline.actions import Head, Op
from esper.leyline.errors import EsperError
from esper.leyline.lifecycle import Stage, Voice
from esper.leyline.reports import Detail, HeadReport, LifeReport, UpdateReport
from esper.simic.anomalies import AnomalyDetector, Bounds, gradient_health
from esper.simic.evaluation import StepCallback, evaluate
from esper.simic.garden import all_gardens
from esper.simic.normalizers import RunningMeanStd, update_reward_std
from esper.simic.ppo import Learner, PPOConfig, UpdateResult
from esper.simic.rewards import RentSchedule, RewardConfig
from esper.simic.rollout import CollectConfig, Collector, Rollout, collect, require_undiscounted
from esper.simic.workers import ALONE, Workers
from esper.tamiyo.features import SLOT_FEATURES, column_names
from esper.tamiyo.network import Controller
from esper.tamiyo.policies import Never
from esper.tolaria import FleetEnv
from esper.tolaria.env import Step

AT_END = ("objective", "score", "growth")
"""Fields of a rollout that are reported for episodes that ended."""
OCCUPIED = [
    column_names(SLOT_FEATURES).index(f"is_{stage.name.lower()}") for stage in Stage if stage.voice is not Voice.EMPTY
]
"""Columns of the slot features of which exactly one is 1 if the slot holds a seed."""


@dataclass(frozen=True, kw_only=True)
class LearnConfig:
    """Configuration of a controller's training.

    Raises:
        EsperError: There are no updates, or reward.gamma and ppo.gamma differ.

    Example:
        ```python
        LearnConfig(updates=100, ppo=PPOConfig(lr=3e-4), rent=RentSchedule(end=0.05))
        ```
    """

    updates: int = 40
    """Number of updates; each one collects a rollout and learns from it."""
    ppo: PPOConfig = PPOConfig()
    """Hyperparameters of an update."""
    collect: CollectConfig = CollectConfig()
    """How rollouts are collected."""
    reward: RewardConfig = RewardConfig()
    """Reward of a decision."""
    rent: RentSchedule = RentSchedule()
    """Price of growth in J, over the updates."""
    bounds: Bounds = Bounds()
    """Bounds beyond which an update is reported as an anomaly."""
    rng_seed: int = 0
    """Seed of action sampling and of the shuffling of minibatches."""

    def __post_init__(self) -> None:
        if self.updates < 1:
            raise EsperError(f"updates must be at least 1, not {self.updates}")
        if self.reward.gamma != self.ppo.gamma:
            raise EsperError(f"reward.gamma ({self.reward.gamma}) and ppo.gamma ({self.ppo.gamma}) must be equal")


class Outcomes(NamedTuple):
    """What the decisions of all workers led to: what reports are made of; fields as in `Rollout`."""

    reward: Float[Tensor, "T N"]
    value: Float[Tensor, "T N"]
    """Critic's value of the state in which the decision was made."""
    ended: Bool[Tensor, "T N"]
    sick: Bool[Tensor, "T N"]
    objective: Float[Tensor, "T N"]
    score: Float[Tensor, "T N"]
    growth: Float[Tensor, "T N"]
    op: Int[Tensor, "T N"]
    occupied: Float[Tensor, "T N S"]
    """1 where the slot held a seed."""


def outcomes(rollout: Rollout, workers: Workers = ALONE) -> Outcomes:
    """Return what the decisions of all workers led to, joined along N."""
    same = {name: getattr(rollout, name) for name in ("reward", "ended", "sick", *AT_END)}
    own = Outcomes(
        **same,
        value=rollout.choice.value,
        op=rollout.choice.action[..., Head.OP],
        occupied=rollout.seen.features.slots[..., OCCUPIED].sum(-1),
    )
    return Outcomes(*(workers.joined(x, 1) for x in own))


def newest(rollout: Rollout, sizes: Sequence[int], before: Float[Tensor, "F E"]) -> Float[Tensor, "F E"]:
    """Return what the episodes of each fleet that ended reached on average; `before` where none has ended."""
    ends = [getattr(rollout, name).where(rollout.ended, 0.0).double().sum(0) for name in AT_END]
    sums = torch.stack([part.sum(0) for part in torch.stack(ends, 1).split(list(sizes))])
    counts = torch.stack([part.sum() for part in rollout.ended.sum(0).split(list(sizes))])[:, None]
    return torch.where(counts > 0, sums / counts.clamp(min=1), before)


class Training:
    """A controller in training, with all state that its next update depends on.

    With several workers, each has fleets of its own, and all have the same controller.
    """

    def __init__(
        self, envs: Sequence[FleetEnv], controller: Controller, config: LearnConfig, workers: Workers = ALONE
    ) -> None:
        require_undiscounted(envs, config.ppo.gamma)
        self.controller, self.config, self.update, self.workers = controller, config, 0, workers
        self.learner = Learner(controller, config.ppo, config.rng_seed, workers)
        self.fleets = Collector(envs, controller, config.collect, config.rng_seed, workers)
        self.scale, self.watch = RunningMeanStd((), self.fleets.device), AnomalyDetector(config.bounds)
        self.fleets.begin(config.rent.at(0))
        self.reached = torch.full((len(envs), len(AT_END)), math.nan, dtype=torch.float64, device=self.fleets.device)
        """What each fleet's newest episodes reached on average; NaN before the first has ended."""

    def step(self) -> UpdateReport:
        """Collect a rollout, learn from it and report; gardens are in the report of the first worker."""
        rent, clock = self.config.rent.at(self.update), Clock()
        rollout = collect(self.fleets, self.controller, rent, self.config.reward)
        clock.mark("collect")
        every = outcomes(rollout, self.workers)
        if self.workers.size > 1:
            clock.mark("wait")
        std = update_reward_std(self.scale, every.reward)
        result = self.learner.update(rollout, rollout.reward / std)
        clock.mark("learn")
        prices = self.config.collect.prices
        charged = sum(prices) / len(prices) if prices else rent
        self.reached = newest(rollout, self.fleets.sizes, self.reached)
        reached = self.workers.joined(self.reached).mean(0)
        report = summarize(self.update, every, reached, every.reward / std, result, charged, clock.seconds)
        garden, planted = all_gardens(self.fleets, rollout, self.workers)
        detail = diagnose(self.controller, every, result) if self.watch.alert else None
        health = gradient_health(report.heads, self.config.bounds)
        self.update += 1
        report = replace(report, garden=garden, planted=planted)
        return replace(report, gradient_health=health, anomalies=self.watch.look(report), detail=detail)

    def never(self, on_step: Callable[[FleetEnv], object] = lambda env: None) -> float:
        """Return the mean J of hosts that never grow, on the fleets of all workers, and begin the training anew.

        Every host lives for one whole episode. The next update is the one that would have been made without this.

        Args:
            on_step: Called after every decision with the env at hand.

        Raises:
            EsperError: An update has been made.
        """
        return self.workers.joined(self.never_here(on_step)).mean().item()

    def never_here(self, on_step: Callable[[FleetEnv], object] = lambda env: None) -> Float[Tensor, " F"]:
        """Return the mean J of hosts that never grow on each fleet of this worker, without an exchange, as `never`."""
        if self.update:
            raise EsperError(f"never must be measured before the first update, not after {self.update} of them")
        rent, measured = self.config.rent.at(0), []
        for env in self.fleets.envs:
            bare = FleetEnv(env.fleet, replace(env.config, staggered=False))
            unborn = bare.state
            measured.append(evaluate(bare, Never(), rent, on_step=_telling(on_step, env)).objective.mean())
            env.state = unborn
        self.fleets.begin(rent)
        return torch.stack(measured)


class Clock:
    """Measures the seconds of consecutive phases."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.marked = time.perf_counter()

    def mark(self, phase: str) -> None:
        """End a phase; the next one begins."""
        now = time.perf_counter()
        self.seconds[phase], self.marked = now - self.marked, now


def _telling(on_step: Callable[[FleetEnv], object], env: FleetEnv) -> StepCallback:
    """Return what tells which env a decision was made in."""

    def tell(actions: Tensor, step: Step) -> None:
        on_step(env)

    return tell


def train_controller(
    envs: Sequence[FleetEnv], controller: Controller, config: LearnConfig, workers: Workers = ALONE
) -> Iterator[UpdateReport]:
    """Train a controller by PPO on one or several fleets.

    The controller is trained in place, while the returned iterator is consumed.

    Args:
        envs: Fleets to act on; they may differ in task, hosts, slots and episode length.
        controller: Controller to train; its weights are the starting point.
        config: Number of updates, reward, rent and hyperparameters.
        workers: Processes that train the controller together, each on envs of its own.

    Returns:
        An iterator that runs one update per step and yields its report.

    Raises:
        EsperError: There is no env, or a host has no legal op.

    Example:
        ```python
        task = load_task("spirals")
        spec = HostSpec("mlp", task.spec.inputs, task.spec.outputs, (4, 4))
        env = FleetEnv(Fleet(spec, task, range(64)), EnvConfig(episode=16, group=8))
        controller = Controller()
        for report in train_controller([env], controller, LearnConfig(updates=10)):
            print(report.update, report.objective)
        ```
    """
    training = Training(envs, controller, config, workers)
    while training.update < config.updates:
        yield training.step()


def diagnose(controller: Controller, every: Outcomes, result: UpdateResult) -> Detail:
    """Return gradient norms by parameter and quantiles of rewards and values, for updates after an anomaly."""
    values = every.value
    of = {"reward": every.reward, "returns": result.returns, "value": values, "error": result.returns - values}
    at = torch.linspace(0, 1, 5, device=values.device)
    quantiles = torch.stack([x.float().flatten().quantile(at) for x in of.values()]).tolist()
    named = [(name, p.grad.norm()) for name, p in controller.named_parameters() if p.grad is not None]
    norms = torch.stack([norm for _, norm in named]).tolist() if named else []
    return Detail(
        gradients={name: norm for (name, _), norm in zip(named, norms, strict=True)},
        quantiles={name: tuple(row) for name, row in zip(of, quantiles, strict=True)},
    )


def summarize(
    update: int,
    every: Outcomes,
    reached: Float[Tensor, " E"],
    normalized: Tensor,
    result: UpdateResult,
    rent: float,
    seconds: dict[str, float],
) -> UpdateReport:
    """Return the report of an update; all numbers are read from the device in one transfer.

    Args:
        update: Its number.
        every: What the decisions led to.
        reached: Means over all fleets of what their newest episodes reached, as in `AT_END`.
        normalized: Rewards that were learned from.
        result: What the learner did.
        rent: Price of growth.
        seconds: Seconds by phase.
    """
    numbers = dict(zip(AT_END, reached, strict=True)) | _numbers(every, normalized, result)
    losses = result.losses
    by_head = (losses.approx_kl, losses.clip_fraction, losses.entropy, losses.ratio_min, losses.ratio_max)
    read = _read(
        {
            "numbers": torch.stack([x.double() for x in numbers.values()]),
            "heads": torch.stack([result.samples, result.head_grad_norms, *by_head], 1),  # H 7
            "ops": torch.bincount(every.op.flatten(), minlength=len(Op)),
            "ends": _ends(every),
            "occupancy": every.occupied.mean((0, 1)),
        }
    )
    totals: dict[str, Any] = dict(zip(numbers, read["numbers"], strict=True))
    episodes = round(totals["episodes"])
    totals |= {name: None if math.isnan(totals[name]) else totals[name] for name in AT_END}
    totals |= {"episodes": episodes, "sick": round(totals["sick"])}
    clip_factor = totals["grad_norm_clipped"] / max(totals["grad_norm"], 1e-12)
    return UpdateReport(
        **totals,
        update=update,
        decisions=every.ended.numel(),
        rent=rent,
        epochs=result.epochs,
        steps=result.steps,
        stopped=result.stopped,
        heads=tuple(_head_report(head, row, clip_factor) for head, row in zip(Head, read["heads"], strict=True)),
        ops={op.name: round(count) for op, count in zip(Op, read["ops"], strict=True)},
        seconds=seconds,
        occupancy=tuple(read["occupancy"]),
        lives=tuple(LifeReport(update, int(host), *reached, sick=bool(sick)) for host, *reached, sick in read["ends"]),
        memory=torch.cuda.max_memory_allocated(every.reward.device) if every.reward.is_cuda else None,
    )


def _numbers(every: Outcomes, normalized: Tensor, result: UpdateResult) -> dict[str, Tensor]:
    """Return the scalars of a report."""
    values, returns, losses = every.value, result.returns, result.losses
    return {
        "episodes": every.ended.sum(),
        "sick": every.sick.sum(),
        "reward": every.reward.mean(),
        "reward_normalized": normalized.mean(),
        "returns": returns.mean(),
        "advantage_mean": result.advantage_mean,
        "advantage_std": result.advantage_std,
        "policy_loss": losses.policy.sum(),
        "value_loss": losses.value,
        "entropy": losses.entropy.mean(),
        "approx_kl": losses.approx_kl.sum(),
        "explained_variance": 1 - (returns - values).var() / returns.var(),
        "grad_norm": result.grad_norm,
        "grad_norm_clipped": result.grad_norm_clipped,
    }


def _ends(every: Outcomes) -> Float[Tensor, "E 5"]:
    """Return the host of each episode that ended, what it reached, and whether it failed."""
    ends = torch.nonzero(every.ended).T  # decision and host of each episode's end
    return torch.stack([ends[1], *(getattr(every, name)[*ends] for name in AT_END), every.sick[*ends]], 1)


def _read(tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Return tensors as nested lists, read from the device in one transfer."""
    flat = torch.cat([x.double().flatten() for x in tensors.values()]).cpu()
    parts = flat.split([x.numel() for x in tensors.values()])
    return {name: part.view(x.shape).tolist() for part, (name, x) in zip(parts, tensors.items(), strict=True)}


def _head_report(head: Head, row: list[float], clip_factor: float) -> HeadReport:
    """Return the report of a head; without samples, its measurements are None."""
    samples, norm, *measured = row
    known = measured if samples else [None] * len(measured)
    return HeadReport(head.name.lower(), round(samples), *known, grad_norm=norm, grad_norm_clipped=norm * clip_factor)
