"""Implicit Q-learning (arXiv:2110.06169): a controller that comes to choose better than whoever played the episodes.

V learns an upper expectile of Q over what was chosen, Q learns what a choice earned and the V of where it led, and the
policy clones each choice as much as Q exceeds V. What nobody chose is never asked about.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import one_hot

from esper.leyline.actions import Head
from esper.leyline.errors import EsperError
from esper.simic.ppo import Lives, cut, select, sequences
from esper.simic.rollout import Rollout, must_be_finite
from esper.tamiyo.masks import relevant
from esper.tamiyo.network import TAIL, TAIL_SIZES, Controller, ControllerConfig, Observation, at_slot, linear, mlp


@dataclass(frozen=True, kw_only=True)
class OfflineConfig:
    lr: float = 1e-3
    """Of the controller and of its critic."""
    epochs: int = 100
    minibatches: int = 4
    """Parts of each rollout, whole lives each, shuffled for every epoch."""
    gamma: float = 0.995
    expectile: float = 0.8
    """Which of the recorded choices a state is worth: 0.5 their mean, near 1 the best."""
    beta: float = 3.0
    """How sharply better choices are preferred, for each unit of reward; 0 clones them all alike."""
    largest_weight: float = 100.0
    """That a single choice can have."""
    polyak: float = 0.005
    """How far the target critic follows the critic at each step."""
    rng_seed: int = 0

    def __post_init__(self) -> None:
        for name in ("lr", "epochs", "minibatches", "largest_weight"):
            if not getattr(self, name) > 0:
                raise EsperError(f"{name} must be positive, not {getattr(self, name)}")
        for name in ("gamma", "polyak"):
            if not 0 < getattr(self, name) <= 1:
                raise EsperError(f"{name} must be above 0 and at most 1, not {getattr(self, name)}")
        if not 0 < self.expectile < 1:
            raise EsperError(f"expectile must lie strictly between 0 and 1, not {self.expectile}")
        if not self.beta >= 0:
            raise EsperError(f"beta must not be negative, not {self.beta}")


@dataclass(frozen=True)
class OfflineReport:
    """One pass over the episodes; means over its steps."""

    epoch: int
    value_loss: float
    q_loss: float
    policy_loss: float
    advantage: float
    """By how much Q exceeds V."""
    weight: float
    """What that makes a recorded choice count."""


class Critic(nn.Module):
    """Says what states are worth, and gives two opinions of what was chosen there."""

    def __init__(self, config: ControllerConfig = ControllerConfig(), rng_seed: int = 0) -> None:
        super().__init__()
        self.reader = Controller(config, rng_seed)
        h = config.hidden
        inputs = h + 3 * config.slot_hidden + sum(TAIL_SIZES)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(rng_seed)
            # Almost 0 at first, so that the policy clones until there is something to prefer.
            self.opinions = nn.ModuleList(nn.Sequential(mlp(inputs, h, h), linear(h, 1, 0.01)) for _ in range(2))

    def forward(
        self, seen: Observation, action: Int[Tensor, "L Q H"]
    ) -> tuple[Float[Tensor, "L Q"], Float[Tensor, "2 L Q"]]:
        """V and both Q along sequences of which nothing is remembered at first."""
        x, slots = self.reader.read(seen.features, seen.exists)
        x = self.reader.remember(x, self.reader.blank(x.shape[1], x.device))
        known = torch.cat([x, self.encode(slots, seen.blueprints, action)], -1)
        return self.reader.value(x)[..., 0], torch.stack([opinion(known)[..., 0] for opinion in self.opinions])

    def encode(
        self, slots: Float[Tensor, "L Q S E"], blueprints: Float[Tensor, "L Q S K D"], action: Int[Tensor, "L Q H"]
    ) -> Float[Tensor, "L Q C"]:
        """What was chosen, head by head; nothing for the heads that the op does not listen to."""
        op, slot, blueprint = action[..., : Head.STYLE].unbind(-1)
        parts = {
            Head.OP: self.reader.op_code(op),
            Head.SLOT: at_slot(slots, slot),
            Head.BLUEPRINT: self.reader.blueprint(at_slot(at_slot(blueprints, slot), blueprint)),
        }
        parts |= {head: one_hot(action[..., head], size) for head, size in zip(TAIL, TAIL_SIZES, strict=True)}
        listens = relevant(op)
        return torch.cat([part.where(listens[..., head, None], 0.0) for head, part in parts.items()], -1)


class Recorded(NamedTuple):
    """Sequences of decisions, each within one life, and what came of them."""

    lives: Lives
    reward: Float[Tensor, "L Q"]
    ended: Bool[Tensor, "L Q"]
    known: Bool[Tensor, "L Q"]
    """Decisions that are followed by another or by the end. What followed the last before a cut was not recorded."""


def recorded(controller: Controller, rollout: Rollout) -> Recorded:
    """A rollout of any policy, as a controller reads it: whoever played had another memory, or none."""
    must_be_finite(rollout)
    blank = controller.blank(rollout.reward.shape[1], rollout.reward.device)
    lives = cut(rollout._replace(memory=blank), rollout.reward, rollout.reward, True, blank)
    t, n, valid = sequences(rollout, whole=True)
    ended = rollout.ended[t, n]
    followed = torch.cat([valid[1:], torch.zeros_like(valid[:1])])
    found = Recorded(lives, rollout.reward[t, n], ended, valid & (ended | followed))
    return some(found, found.known.any(0).nonzero()[:, 0])


def some(episodes: Recorded, which: Int[Tensor, " Q"]) -> Recorded:
    """Some of the sequences."""
    lives, *rest = episodes
    return Recorded(select(lives, which), *(x[:, which] for x in rest))


class IQLLosses(NamedTuple):
    """Means over decisions whose consequence is known."""

    value: Float[Tensor, ""]
    q: Float[Tensor, ""]
    policy: Float[Tensor, ""]
    advantage: Float[Tensor, ""]
    weight: Float[Tensor, ""]


def losses(
    controller: Controller, critic: Critic, target: Critic, episodes: Recorded, config: OfflineConfig
) -> IQLLosses:
    """What V, Q and the policy would change. V and Q share a reader; the policy shares nothing with them."""
    (seen, old, *_), known = episodes.lives, episodes.known
    value, q = critic(seen, old.action)
    judged = controller.judge(seen, episodes.lives.memory, old.action).log_probs
    log_prob = judged.where(relevant(old.action[..., Head.OP]), 0.0).sum(-1)
    with torch.no_grad():
        believed = target(seen, old.action)[1].amin(0)
        following = torch.cat([value[1:], torch.zeros_like(value[:1])])
        earned = episodes.reward + config.gamma * following.where(~episodes.ended, 0.0)
    advantage = (believed - value)[known]
    weight = (config.beta * advantage.detach()).exp().clamp(max=config.largest_weight)
    return IQLLosses(
        value=expectile_loss(advantage, config.expectile),
        q=(earned - q)[:, known].square().sum(0).mean(),
        policy=-(weight * log_prob[known]).mean(),
        advantage=advantage.mean(),
        weight=weight.mean(),
    )


def expectile_loss(above: Float[Tensor, " D"], expectile: float) -> Float[Tensor, ""]:
    """Squares of what an estimate misses; what lies above it counts `expectile`, what lies below counts the rest."""
    return (above.square() * torch.where(above > 0, expectile, 1 - expectile)).mean()


def learn_offline(
    controller: Controller,
    episodes: Sequence[Rollout],
    config: OfflineConfig = OfflineConfig(),
    critic: Critic | None = None,
) -> Iterator[OfflineReport]:
    """Teach a controller, and a critic beside it, what was best among what was chosen in these episodes."""
    parts = [part for part in (recorded(controller, rollout) for rollout in episodes) if part.known.any()]
    if not parts:
        raise EsperError("episodes must hold at least one decision that is followed by another or by the end of a life")
    device = parts[0].known.device
    critic = Critic(controller.config, config.rng_seed).to(device) if critic is None else critic
    target = deepcopy(critic).requires_grad_(False)
    optimizer = torch.optim.AdamW([*controller.parameters(), *critic.parameters()], config.lr, weight_decay=0.0)
    generator = torch.Generator().manual_seed(config.rng_seed)
    for epoch in range(config.epochs):
        steps = []
        for part in parts:
            order = torch.randperm(part.known.shape[1], generator=generator).to(device)
            for which in order.chunk(config.minibatches):
                found = losses(controller, critic, target, some(part, which), config)
                optimizer.zero_grad()
                (found.value + found.q + found.policy).backward()
                optimizer.step()
                follow(target, critic, config.polyak)
                steps.append(torch.stack(found).detach())
        yield OfflineReport(epoch, *torch.stack(steps).mean(0).tolist())


@torch.no_grad()
def follow(target: Critic, critic: Critic, share: float) -> None:
    """Move the target a share of its way to the critic."""
    for old, new in zip(target.parameters(), critic.parameters(), strict=True):
        old.lerp_(new, share)
