"""The loop that everything serves."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esper.leyline.actions import Head, Op
from esper.leyline.errors import EsperError
from esper.leyline.reports import HeadReport, UpdateReport
from esper.simic.normalizers import Running
from esper.simic.ppo import Learned, Learner, PPOConfig
from esper.simic.rewards import RentSchedule, RewardConfig
from esper.simic.rollout import CollectConfig, Collector, Rollout, collect
from esper.tamiyo.network import Controller
from esper.tolaria import FleetEnv


@dataclass(frozen=True, kw_only=True)
class LearnConfig:
    """Everything about learning a policy."""

    updates: int = 40
    ppo: PPOConfig = PPOConfig()
    collect: CollectConfig = CollectConfig()
    reward: RewardConfig = RewardConfig()
    rent: RentSchedule = RentSchedule()
    rng_seed: int = 0

    def __post_init__(self) -> None:
        if self.updates < 1:
            raise EsperError(f"updates must be at least 1, not {self.updates}")
        if self.reward.gamma != self.ppo.gamma:
            raise EsperError(f"reward.gamma ({self.reward.gamma}) and ppo.gamma ({self.ppo.gamma}) must be the same")


def train(
    envs: Sequence[FleetEnv], controller: Controller, config: LearnConfig, anchor: Controller | None = None
) -> Iterator[UpdateReport]:
    """Learn to grow; one report for each update. An `anchor` is a policy to start from and to stay near."""
    learner = Learner(controller, config.ppo, config.rng_seed, anchor)
    fleets = Collector(envs, controller, config.collect, config.rng_seed)
    scale = Running((), fleets.device)
    fleets.begin(config.rent.at(0))
    for update in range(config.updates):
        started = time.perf_counter()
        rollout = collect(fleets, controller, config.rent.at(update), config.reward)
        collected = time.perf_counter()
        normalized = rollout.reward / spread(scale, rollout)
        learned = learner.update(rollout, normalized)
        seconds = {"collect": collected - started, "learn": time.perf_counter() - collected}
        yield summarize(update, rollout, normalized, learned, config.rent.at(update), seconds)


def spread(scale: Running, rollout: Rollout) -> Tensor:
    """The deviation of rewards so far, this rollout's included; they are divided by it."""
    scale.absorb(rollout.reward.clamp(-10, 10))
    return scale.std.clamp(min=1e-3).float()


def summarize(
    update: int, rollout: Rollout, normalized: Tensor, learned: Learned, rent: float, seconds: dict[str, float]
) -> UpdateReport:
    """Numbers for people, read from the device once."""
    ended = rollout.ended
    lives = ended.sum()
    sums = [x.where(ended, 0.0).sum() / lives for x in (rollout.objective, rollout.score, rollout.growth)]
    values, returns = rollout.choice.value, learned.returns
    explained = 1 - (returns - values).var() / returns.var()
    ops = torch.bincount(rollout.choice.action[..., Head.OP].flatten(), minlength=len(Op))
    found = learned.losses
    row = torch.stack([found.kl, found.clipped, found.entropy, found.ratio_min, found.ratio_max, learned.samples])
    scalars = torch.stack(
        [
            lives.double(),
            rollout.sick.sum().double(),
            *(x.double() for x in sums),
            rollout.reward.mean().double(),
            normalized.mean().double(),
            returns.mean().double(),
            learned.advantage_mean.double(),
            learned.advantage_std.double(),
            found.policy.sum().double(),
            found.value.double(),
            found.entropy.mean().double(),
            found.kl.sum().double(),
            explained.double(),
            learned.gradient.double(),
            learned.gradient_clipped.double(),
        ]
    )
    numbers = torch.cat([scalars, row.flatten().double(), learned.head_gradients.double(), ops.double()]).cpu()
    (count, sick, j, score, growth, *rest), numbers = numbers[:17].tolist(), numbers[17:]
    per_head, gradients, ops = numbers[:48].view(6, 8), numbers[48:56].tolist(), numbers[56:].long().tolist()
    shrink = rest[-1] / max(rest[-2], 1e-12)
    heads = []
    for head in Head:
        kl, clipped, entropy, low, high, samples = per_head[:, head].tolist()
        known = samples > 0
        heads.append(
            HeadReport(
                head.name.lower(),
                round(samples),
                *((kl, clipped, entropy, low, high) if known else (None,) * 5),
                gradient=gradients[head],
                gradient_clipped=gradients[head] * shrink,
            )
        )
    some = count > 0
    return UpdateReport(
        update=update,
        decisions=ended.numel(),
        episodes=int(count),
        sick=int(sick),
        objective=j if some else None,
        score=score if some else None,
        growth=growth if some else None,
        rent=rent,
        reward=rest[0],
        reward_normalized=rest[1],
        returns=rest[2],
        advantage_mean=rest[3],
        advantage_std=rest[4],
        policy_loss=rest[5],
        value_loss=rest[6],
        entropy=rest[7],
        kl=rest[8],
        explained_variance=rest[9],
        gradient=rest[10],
        gradient_clipped=rest[11],
        epochs=learned.epochs,
        steps=learned.steps,
        stopped=learned.stopped,
        heads=tuple(heads),
        ops={op.name: n for op, n in zip(Op, ops, strict=True)},
        seconds=seconds,
    )
