"""The loop that everything serves."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from esper.leyline.actions import Head, Op
from esper.leyline.errors import EsperError
from esper.leyline.lifecycle import Stage, Voice
from esper.leyline.reports import Detail, HeadReport, LifeReport, UpdateReport
from esper.simic.anomalies import AnomalyDetector, Bounds, gradient_health
from esper.simic.normalizers import Running, spread
from esper.simic.ppo import Learner, PPOConfig, UpdateResult
from esper.simic.rewards import RentSchedule, RewardConfig
from esper.simic.rollout import CollectConfig, Collector, Rollout, collect
from esper.tamiyo.features import SLOT_FEATURES, column_names
from esper.tamiyo.network import Controller
from esper.tolaria import FleetEnv

AT_END = ("objective", "score", "growth")
"""What is told of a life that has ended."""
HELD = [
    column_names(SLOT_FEATURES).index(f"is_{stage.name.lower()}") for stage in Stage if stage.voice is not Voice.EMPTY
]
"""The features of a slot of which one is 1 if it holds a seed."""


@dataclass(frozen=True, kw_only=True)
class LearnConfig:
    """Everything about learning a policy."""

    updates: int = 40
    ppo: PPOConfig = PPOConfig()
    collect: CollectConfig = CollectConfig()
    reward: RewardConfig = RewardConfig()
    rent: RentSchedule = RentSchedule()
    bounds: Bounds = Bounds()
    """Of what is normal in an update."""
    rng_seed: int = 0

    def __post_init__(self) -> None:
        if self.updates < 1:
            raise EsperError(f"updates must be at least 1, not {self.updates}")
        if self.reward.gamma != self.ppo.gamma:
            raise EsperError(f"reward.gamma ({self.reward.gamma}) and ppo.gamma ({self.ppo.gamma}) must be the same")


class Training:
    """A controller in training, and all that its next update depends on."""

    def __init__(self, envs: Sequence[FleetEnv], controller: Controller, config: LearnConfig) -> None:
        self.controller, self.config, self.update = controller, config, 0
        self.learner = Learner(controller, config.ppo, config.rng_seed)
        self.fleets = Collector(envs, controller, config.collect, config.rng_seed)
        self.scale, self.watch = Running((), self.fleets.device), AnomalyDetector(config.bounds)
        self.fleets.begin(config.rent.at(0))

    def step(self) -> UpdateReport:
        """Live for a horizon, and learn from it."""
        rent, started = self.config.rent.at(self.update), time.perf_counter()
        rollout = collect(self.fleets, self.controller, rent, self.config.reward)
        collected = time.perf_counter()
        normalized = rollout.reward / spread(self.scale, rollout.reward)
        learned = self.learner.update(rollout, normalized)
        seconds = {"collect": collected - started, "learn": time.perf_counter() - collected}
        report = summarize(self.update, rollout, normalized, learned, rent, seconds)
        detail = closer(self.controller, rollout, learned) if self.watch.alert else None
        health = gradient_health(report.heads, self.config.bounds)
        self.update += 1
        return replace(report, gradient_health=health, anomalies=self.watch.look(report), detail=detail)


def train_controller(envs: Sequence[FleetEnv], controller: Controller, config: LearnConfig) -> Iterator[UpdateReport]:
    """Learn to grow; one report for each update."""
    training = Training(envs, controller, config)
    while training.update < config.updates:
        yield training.step()


def closer(controller: Controller, rollout: Rollout, learned: UpdateResult) -> Detail:
    """What is not looked at while all is well."""
    values = rollout.choice.value
    of = {"reward": rollout.reward, "returns": learned.returns, "value": values, "error": learned.returns - values}
    at = torch.linspace(0, 1, 5, device=values.device)
    quantiles = torch.stack([x.float().flatten().quantile(at) for x in of.values()]).tolist()
    named = [(name, p.grad.norm()) for name, p in controller.named_parameters() if p.grad is not None]
    norms = torch.stack([norm for _, norm in named]).tolist() if named else []
    return Detail(
        gradients={name: norm for (name, _), norm in zip(named, norms, strict=True)},
        quantiles={name: tuple(row) for name, row in zip(of, quantiles, strict=True)},
    )


def summarize(
    update: int, rollout: Rollout, normalized: Tensor, learned: UpdateResult, rent: float, seconds: dict[str, float]
) -> UpdateReport:
    """Numbers for people, read from the device once."""
    ended, values, returns, found = rollout.ended, rollout.choice.value, learned.returns, learned.losses
    at_end = {name: getattr(rollout, name).where(ended, 0.0).sum() for name in AT_END}
    numbers = {
        "episodes": ended.sum(),
        "sick": rollout.sick.sum(),
        **at_end,
        "reward": rollout.reward.mean(),
        "reward_normalized": normalized.mean(),
        "returns": returns.mean(),
        "advantage_mean": learned.advantage_mean,
        "advantage_std": learned.advantage_std,
        "policy_loss": found.policy.sum(),
        "value_loss": found.value,
        "entropy": found.entropy.mean(),
        "approx_kl": found.approx_kl.sum(),
        "explained_variance": 1 - (returns - values).var() / returns.var(),
        "grad_norm": learned.grad_norm,
        "grad_norm_clipped": learned.grad_norm_clipped,
    }
    by_head = (found.approx_kl, found.clipped, found.entropy, found.ratio_min, found.ratio_max)
    rows = torch.stack([learned.samples, learned.head_gradients, *by_head], 1)  # H 7
    ops = torch.bincount(rollout.choice.action[..., Head.OP].flatten(), minlength=len(Op))
    ends = torch.nonzero(ended).T  # their decisions and hosts
    lives = torch.stack([ends[1], *(getattr(rollout, name)[*ends] for name in AT_END), rollout.sick[*ends]], 1)
    occupied = rollout.seen.features.slots[..., HELD].sum(-1).mean((0, 1))
    stacked = torch.stack([x.double() for x in numbers.values()])
    scalars, heads, counts, ended_lives, occupancy = _read(stacked, rows, ops, lives, occupied)
    plain: dict[str, Any] = dict(zip(numbers, scalars, strict=True))
    episodes = round(plain["episodes"])
    plain |= {name: plain[name] / episodes if episodes else None for name in at_end}
    plain |= {"episodes": episodes, "sick": round(plain["sick"])}
    kept = plain["grad_norm_clipped"] / max(plain["grad_norm"], 1e-12)
    return UpdateReport(
        **plain,
        update=update,
        decisions=ended.numel(),
        rent=rent,
        epochs=learned.epochs,
        steps=learned.steps,
        stopped=learned.stopped,
        heads=tuple(_head_report(head, row, kept) for head, row in zip(Head, heads, strict=True)),
        ops={op.name: round(count) for op, count in zip(Op, counts, strict=True)},
        seconds=seconds,
        occupancy=tuple(occupancy),
        lives=tuple(LifeReport(update, int(host), *reached, sick=bool(sick)) for host, *reached, sick in ended_lives),
        memory=torch.cuda.max_memory_allocated(rollout.reward.device) if rollout.reward.is_cuda else None,
    )


def _read(*tensors: Tensor) -> list[Any]:
    """Nested lists of all these, in one transfer."""
    flat = torch.cat([x.double().flatten() for x in tensors]).cpu()
    parts = flat.split([x.numel() for x in tensors])
    return [part.view(x.shape).tolist() for part, x in zip(parts, tensors, strict=True)]


def _head_report(head: Head, row: list[float], kept: float) -> HeadReport:
    """Of a head that nobody listened to, nothing is known."""
    samples, gradient, *measured = row
    known = measured if samples else [None] * len(measured)
    return HeadReport(head.name.lower(), round(samples), *known, grad_norm=gradient, grad_norm_clipped=gradient * kept)
