"""Proximal policy optimisation for a factored, masked, recurrent policy.

loss = policy + value_coef * value - entropy_coef * entropy. Every head has its own ratio and learns from the decisions
whose op listens to it: its loss is their mean, so that a rare head counts as much as a busy one.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from esper.leyline.actions import Head, per_head
from esper.leyline.errors import EsperError
from esper.simic.advantages import against_siblings, gae, standardized
from esper.simic.rollout import Rollout
from esper.tamiyo.features import Features
from esper.tamiyo.masks import relevant
from esper.tamiyo.network import TAIL, TAIL_SIZES, Choice, Controller, HiddenState, Observation

EVEN = {head.name.lower(): 1.0 for head in Head}


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    lr: float = 1e-3
    lr_end: float | None = None
    """Where the learning rate ends up after `anneal` updates; None: where it began."""
    gamma: float = 0.995
    lam: float = 0.97
    """Of generalised advantages. With gamma 0.995, 1 / (1 - gamma * lam) = 29 decisions share in a surprise."""
    clip: float = 0.2
    value_clip: float | None = None
    """How far a value may move from the one expected while acting; None: as far as it likes."""
    value_coef: float = 0.5
    entropy_coef: float = 0.02
    entropy_end: float | None = None
    """Where the entropy coefficient ends up after `anneal` updates; None: where it began."""
    anneal: int = 100
    """Updates over which learning rate and entropy coefficient change, in a straight line."""
    entropy_floor: float | None = None
    """The least entropy coefficient of a decision, times all choices over the legal ones, at most 3 times: where few
    are legal, those are explored the more. A floor on the coefficient, never on probabilities."""
    entropy_weights: dict[str, float] = field(default_factory=lambda: dict(EVEN))
    """The share of each head in the mean entropy."""
    target_kl: float | None = None
    """Of all heads together; an update ends before a step once it exceeds 1.5 times this."""
    max_grad_norm: float = 0.5
    epochs: int = 2
    minibatches: int = 4
    """Parts of a rollout, whole lives each, shuffled for every epoch."""
    accumulate: int = 1
    """Pieces of a minibatch whose gradients are added up before a step, to save memory."""
    weight_decay: float = 0.0
    """Of parameters that only the critic has: on categorical logits it would raise the entropy."""
    adam_eps: float = 1e-5
    group_baseline: bool = True
    """Compare siblings: advantages minus the mean of the others in the group."""
    compile: str | None = None
    """A backend of torch.compile for the losses, such as inductor; None: none."""

    def __post_init__(self) -> None:
        for name in ("lr", "clip", "max_grad_norm", "epochs", "minibatches", "accumulate", "adam_eps"):
            if not getattr(self, name) > 0:
                raise EsperError(f"{name} must be positive, not {getattr(self, name)}")
        for name in ("gamma", "lam"):
            if not 0 < getattr(self, name) <= 1:
                raise EsperError(f"{name} must be above 0 and at most 1, not {getattr(self, name)}")
        for name in ("lr_end", "value_coef", "entropy_coef", "entropy_floor", "weight_decay", "anneal"):
            if not (getattr(self, name) or 0) >= 0:
                raise EsperError(f"{name} must not be negative, not {getattr(self, name)}")
        if sum(per_head(self.entropy_weights)) <= 0:
            raise EsperError("entropy_weights must not all be 0")
        for unusual, why in (
            (self.gamma < 0.9, f"gamma {self.gamma} looks only {1 / (1 - self.gamma + 1e-9):.0f} decisions ahead"),
            (self.clip > 0.3, f"clip {self.clip} lets the policy move far from the one that acted"),
            (self.entropy_coef > 0.1, f"entropy_coef {self.entropy_coef} may drown the reward"),
            (
                self.epochs > 1 and self.value_clip is not None,
                "value_clip holds on to values that later epochs outdate",
            ),
        ):
            if unusual:
                warnings.warn(f"unusual: {why}", stacklevel=3)

    def floored(self, coefficient: float, legal: Float[Tensor, "*N H"]) -> Float[Tensor, "*N H"] | float:
        """The entropy coefficient of every decision and head, by the share of choices that were legal."""
        if self.entropy_floor is None:
            return coefficient
        return (self.entropy_floor * (1 / legal).clamp(max=FLOOR_CAP)).clamp(min=coefficient)

    def entropy_at(self, update: int) -> float:
        return self._annealed(self.entropy_coef, self.entropy_end, update)

    def lr_at(self, update: int) -> float:
        return self._annealed(self.lr, self.lr_end, update)

    def _annealed(self, start: float, end: float | None, update: int) -> float:
        if end is None:
            return start
        share = min(update / self.anneal, 1.0) if self.anneal else 1.0
        return start + share * (end - start)


FLOOR_CAP = 3.0
REVIEWED = {"value_clip": 10.0, "target_kl": 0.015, "epochs": 1}
"""What the reviewed system chose, where it differs from our defaults."""


class Lives(NamedTuple):
    """Sequences of decisions, each within one life, padded to the same length: (L, Q)."""

    seen: Observation
    old: Choice
    advantage: Float[Tensor, "L Q"]
    returns: Float[Tensor, "L Q"]
    valid: Bool[Tensor, "L Q"]
    memory: HiddenState


class PPOLosses(NamedTuple):
    """Sums over decisions, to be divided by whole-minibatch counts."""

    policy: Float[Tensor, " H"]
    entropy: Float[Tensor, " H"]
    bonus: Float[Tensor, " H"]
    """Entropy times its coefficient."""
    approx_kl: Float[Tensor, " H"]
    clipped: Float[Tensor, " H"]
    value: Float[Tensor, ""]
    ratio_min: Float[Tensor, " H"]
    ratio_max: Float[Tensor, " H"]


BY_HEAD = ("policy", "entropy", "bonus", "approx_kl", "clipped")
"""The losses that are sums over the decisions which listen to a head."""


def sequences(rollout: Rollout, whole: bool) -> tuple[Int[Tensor, "L Q"], Int[Tensor, "L Q"], Bool[Tensor, "L Q"]]:
    """Times and hosts of every life's part in a rollout, and which are real. If not `whole`, of single decisions."""
    start = rollout.start.clone()
    start[0] = True
    if not whole:
        start[:] = True
    host, first = start.T.nonzero().unbind(1)
    last = torch.cat([first[1:].where(host[1:] == host[:-1], len(start)), first.new_tensor([len(start)])])
    length = last - first
    steps = torch.arange(int(length.max()), device=first.device)[:, None]
    valid = steps < length
    return (first + steps).where(valid, first), host.expand_as(valid), valid


def cut(
    rollout: Rollout, advantage: Float[Tensor, "T N"], returns: Float[Tensor, "T N"], whole: bool, blank: HiddenState
) -> Lives:
    """A rollout as sequences, each with the memory it began with."""
    t, n, valid = sequences(rollout, whole)

    def at(x: Tensor) -> Tensor:
        return x[t, n]

    seen = Observation(Features(*map(at, rollout.seen.features)), *map(at, rollout.seen[1:]))
    continued = (t[0] == 0) & ~rollout.start[0, n[0]]
    memory = HiddenState(
        *(torch.where(continued[:, None], old[n[0]], new[n[0]]) for old, new in zip(rollout.memory, blank, strict=True))
    )
    return Lives(seen, Choice(*map(at, rollout.choice)), at(advantage), at(returns), valid, memory)


def select(lives: Lives, which: Int[Tensor, " Q"]) -> Lives:
    """Some of the sequences."""

    def at(x: Tensor) -> Tensor:
        return x[:, which]

    seen = Observation(Features(*map(at, lives.seen.features)), *map(at, lives.seen[1:]))
    memory = HiddenState(*(x[which] for x in lives.memory))
    old = Choice(*map(at, lives.old))
    return Lives(seen, old, at(lives.advantage), at(lives.returns), at(lives.valid), memory)


def losses(controller: Controller, lives: Lives, config: PPOConfig, entropy_coef: float) -> PPOLosses:
    """What the policy would change. Padding and heads that nobody listened to reach nothing."""
    new = controller.judge(lives.seen, lives.memory, lives.old.action)
    counts = relevant(lives.old.action[..., Head.OP]) & lives.valid[..., None]  # L Q H
    log_ratio = (new.log_probs - lives.old.log_probs).where(counts, 0.0)
    ratio = log_ratio.exp()
    advantage = lives.advantage[..., None]
    bounded = ratio.clamp(1 - config.clip, 1 + config.clip)
    gain = torch.minimum(ratio * advantage, bounded * advantage)
    error = (new.value - lives.returns).where(lives.valid, 0.0)
    worst = error.square()
    if config.value_clip is not None:
        near = lives.old.value + (new.value - lives.old.value).clamp(-config.value_clip, config.value_clip)
        worst = torch.maximum(worst, (near - lives.returns).where(lives.valid, 0.0).square())

    def over_decisions(x: Tensor) -> Tensor:
        return x.where(counts, 0.0).sum((0, 1))

    with torch.no_grad():
        kl = over_decisions(ratio - 1 - log_ratio)
        clipped = over_decisions(((ratio - 1).abs() > config.clip).float())
        seen = ratio.where(counts, torch.nan).flatten(0, 1)
        low, high = seen.nan_to_num(torch.inf).amin(0), seen.nan_to_num(-torch.inf).amax(0)
    return PPOLosses(
        policy=-over_decisions(gain),
        entropy=over_decisions(new.entropy),
        bonus=over_decisions(config.floored(entropy_coef, new.legal) * new.entropy),
        approx_kl=kl,
        clipped=clipped,
        value=0.5 * worst.sum(),
        ratio_min=low,
        ratio_max=high,
    )


class Totals(NamedTuple):
    """What a minibatch's means are taken over."""

    heads: Float[Tensor, " H"]
    decisions: Float[Tensor, ""]


def totals(lives: Lives) -> Totals:
    counts = relevant(lives.old.action[..., Head.OP]) & lives.valid[..., None]
    return Totals(counts.sum((0, 1)).float(), lives.valid.sum().float())


def loss(found: PPOLosses, over: Totals, config: PPOConfig) -> Float[Tensor, ""]:
    """One number: policy + value_coef * value - entropy_coef * entropy."""
    heads = over.heads.clamp(min=1)
    weights = torch.tensor(per_head(config.entropy_weights), device=heads.device)
    policy = (found.policy / heads).sum()
    bonus = (weights * found.bonus / heads).sum() / weights.sum()
    return policy + config.value_coef * found.value / over.decisions.clamp(min=1) - bonus


class UpdateResult(NamedTuple):
    """An update in numbers; tensors stay on the device until someone reads them."""

    losses: PPOLosses
    """Means over the minibatches that were used."""
    samples: Float[Tensor, " H"]
    advantage_mean: Tensor
    advantage_std: Tensor
    returns: Float[Tensor, "T N"]
    grad_norm: Tensor
    grad_norm_clipped: Tensor
    head_gradients: Float[Tensor, " H"]
    epochs: int
    steps: int
    stopped: str | None


class Learner:
    """A controller and its optimiser."""

    def __init__(self, controller: Controller, config: PPOConfig = PPOConfig(), rng_seed: int = 0) -> None:
        self.controller, self.config = controller, config
        critic = {id(p) for p in controller.value.parameters()}
        parameters = list(controller.parameters())
        groups = [
            {"params": [p for p in parameters if id(p) not in critic], "weight_decay": 0.0},
            {"params": [p for p in parameters if id(p) in critic], "weight_decay": config.weight_decay},
        ]
        self.optimizer = torch.optim.AdamW(groups, config.lr, eps=config.adam_eps, fused=True)
        self.generator = torch.Generator().manual_seed(rng_seed)
        self.losses = torch.compile(losses, backend=config.compile) if config.compile else losses
        self.updates = 0

    def update(self, rollout: Rollout, reward: Float[Tensor, "T N"] | None = None) -> UpdateResult:
        """Learn from a rollout, with its own rewards or others in their place."""
        config, controller = self.config, self.controller
        rewards = rollout.reward if reward is None else reward
        raw = gae(rewards, rollout.choice.value, rollout.after, rollout.ended, config.gamma, config.lam)
        returns = raw + rollout.choice.value
        compared = against_siblings(raw, rollout.groups, rollout.comparable) if config.group_baseline else raw
        if broken := _broken(rewards=rewards, values=returns, **rollout.seen.features._asdict()):
            self.updates += 1
            return _nothing(compared, returns, f"nothing was learned: not finite in {', '.join(broken)}")
        advantage = standardized(compared, torch.ones_like(rollout.ended))
        blank = controller.blank(rollout.reward.shape[1], rollout.reward.device)
        lives = cut(rollout, advantage, returns, controller.config.recurrent, blank)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = config.lr_at(self.updates)
        found: list[PPOLosses] = []
        samples, gradients = [], []
        stopped = None
        for which in self.minibatches(lives.valid.shape[1]):
            part = select(lives, which.to(lives.valid.device))
            mean, over, gradient, stopped = self.step(part)
            found.append(mean)
            samples.append(over.heads)
            gradients.append(gradient)
            if stopped:
                break
        self.updates += 1
        counted = torch.stack(samples)
        means = _averaged(found, counted)
        whole, clipped, heads = (torch.stack(x).mean(0) for x in zip(*gradients, strict=True))
        epochs = -(-len(found) // min(config.minibatches, lives.valid.shape[1]))
        return UpdateResult(
            losses=means,
            samples=counted.sum(0) / epochs,
            advantage_mean=compared.mean(),
            advantage_std=compared.std(),
            returns=returns,
            grad_norm=whole,
            grad_norm_clipped=clipped,
            head_gradients=heads,
            epochs=epochs,
            steps=len(found) - bool(stopped),
            stopped=stopped,
        )

    def minibatches(self, count: int) -> Iterator[Int[Tensor, " Q"]]:
        """Every sequence once an epoch, in a new order each time."""
        for _ in range(self.config.epochs):
            order = torch.randperm(count, generator=self.generator)
            yield from order.chunk(min(self.config.minibatches, count))

    def step(self, lives: Lives) -> tuple[PPOLosses, Totals, tuple[Tensor, Tensor, Tensor], str | None]:
        """One optimiser step, unless the policy has moved too far already."""
        config = self.config
        self.optimizer.zero_grad()
        over = totals(lives)
        pieces = torch.arange(lives.valid.shape[1], device=lives.valid.device).chunk(config.accumulate)
        parts = []
        coefficient = config.entropy_at(self.updates)
        for piece in pieces:
            some = select(lives, piece) if len(pieces) > 1 else lives
            part = self.losses(self.controller, some, config, coefficient)
            loss(part, over, config).backward()
            parts.append(PPOLosses(*(x.detach() for x in part)))
        heads = over.heads.clamp(min=1)
        total = PPOLosses(*(torch.stack(x).sum(0) for x in zip(*parts, strict=True)))
        mean = PPOLosses(
            **{name: getattr(total, name) / heads for name in BY_HEAD},
            value=total.value / over.decisions.clamp(min=1),
            ratio_min=torch.stack([p.ratio_min for p in parts]).amin(0),
            ratio_max=torch.stack([p.ratio_max for p in parts]).amax(0),
        )
        gradients = head_gradients(self.controller)
        norm = nn.utils.clip_grad_norm_(self.controller.parameters(), config.max_grad_norm)
        recorded = norm, norm.clamp(max=config.max_grad_norm), gradients
        if config.target_kl is not None and bool(mean.approx_kl.sum() > 1.5 * config.target_kl):
            return mean, over, recorded, f"the policy moved by more than 1.5 times target_kl ({config.target_kl})"
        self.optimizer.step()
        return mean, over, recorded, None


def _averaged(found: list[PPOLosses], counted: Float[Tensor, "M H"]) -> PPOLosses:
    """Means over minibatches. One without a head's decisions says nothing of it."""
    share = counted / counted.sum(0).clamp(min=1)
    return PPOLosses(
        **{name: (torch.stack([getattr(f, name) for f in found]) * share).sum(0) for name in BY_HEAD},
        value=torch.stack([f.value for f in found]).mean(),
        ratio_min=torch.stack([f.ratio_min for f in found]).amin(0),
        ratio_max=torch.stack([f.ratio_max for f in found]).amax(0),
    )


def _broken(**tensors: Tensor) -> list[str]:
    """The names of what is not finite."""
    finite = torch.stack([x.isfinite().all() for x in tensors.values()]).tolist()
    return [name for name, fine in zip(tensors, finite, strict=True) if not fine]


def _nothing(compared: Tensor, returns: Tensor, why: str) -> UpdateResult:
    """An update that was not made."""
    zero = torch.zeros(len(Head), device=returns.device)
    found = PPOLosses(**{name: torch.zeros_like(zero) for name in PPOLosses._fields})._replace(value=zero[0])
    return UpdateResult(found, zero, compared.mean(), compared.std(), returns, zero[0], zero[0], zero, 0, 0, why)


def head_gradients(controller: Controller) -> Float[Tensor, " H"]:
    """Gradient norms of each head's own parameters; the heads with fixed choices share a layer and are told apart."""

    def norm(module: nn.Module) -> Tensor:
        return torch.stack([p.grad.norm() for p in module.parameters() if p.grad is not None]).norm()

    found = {Head.OP: norm(controller.op), Head.SLOT: norm(controller.slot_score)}
    found[Head.BLUEPRINT] = norm(controller.blueprint_score)
    last = controller.tail[-1]
    assert isinstance(last, nn.Linear)
    assert last.weight.grad is not None
    for head, rows in zip(TAIL, last.weight.grad.split(TAIL_SIZES), strict=True):
        found[head] = rows.norm()
    return torch.stack([found[head] for head in Head])
