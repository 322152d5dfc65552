"""Proximal policy optimization (arXiv:1707.06347) for a factored, masked, recurrent policy.

loss = policy + value_coef * value - entropy_coef * entropy. Every head has a ratio of its own; its policy loss and its
entropy are means over the decisions whose op uses the head, so that a rare head counts as much as a busy one.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from esper.leyline.actions import Head, per_head
from esper.leyline.errors import EsperError
from esper.simic.advantages import gae, standardize, subtract_group_mean
from esper.simic.rollout import Rollout
from esper.simic.sequences import Sequences, select, to_sequences
from esper.simic.workers import ALONE, Workers
from esper.tamiyo.masks import relevant
from esper.tamiyo.network import TAIL, TAIL_SIZES, Controller

EQUAL_WEIGHTS = {head.name.lower(): 1.0 for head in Head}


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """Hyperparameters of a PPO update.

    Raises:
        EsperError: A value is impossible; unusual but possible values only warn.

    Example:
        ```python
        ppo = PPOConfig(lr=3e-4, lr_end=0.0, anneal=200, target_kl=0.015)
        config = LearnConfig(updates=200, ppo=ppo)
        ```
    """

    lr: float = 1e-3
    """Learning rate of Adam."""
    lr_end: float | None = None
    """Learning rate after `anneal` updates; None keeps it constant."""
    gamma: float = 0.995
    """Discount per decision; must equal reward.gamma."""
    lam: float = 0.97
    """Lambda of generalized advantage estimation; credit spans about 1 / (1 - gamma * lam) decisions, 29 by default."""
    clip: float = 0.2
    """Clip range of the probability ratio: 1 ± clip."""
    value_clip: float | None = None
    """Clip range of the value around the one recorded while acting; None does not clip."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    entropy_coef: float = 0.02
    """Weight of the entropy bonus."""
    entropy_end: float | None = None
    """Weight of the entropy bonus after `anneal` updates; None keeps it constant."""
    anneal: int = 100
    """Updates over which the learning rate and the entropy coefficient change linearly."""
    entropy_floor: float | None = None
    """Lower bound on the entropy coefficient of a decision, multiplied by all choices / legal choices (at most 3), so
    that decisions with few legal choices are explored more; None sets no bound."""
    entropy_weights: dict[str, float] = field(default_factory=lambda: dict(EQUAL_WEIGHTS))
    """Weight of each head in the mean entropy, by the head's name; 1 each by default."""
    target_kl: float | None = None
    """Budget for approx_kl, summed over heads: an update stops once it exceeds 1.5 times this; None never stops."""
    max_grad_norm: float = 0.5
    """Norm that gradients are clipped to, over all parameters together."""
    epochs: int = 2
    """Passes over a rollout per update."""
    minibatches: int = 4
    """Minibatches per epoch; each holds whole sequences, shuffled anew in every epoch."""
    accumulate: int = 1
    """Pieces of a minibatch whose gradients are accumulated before a step, to save memory."""
    weight_decay: float = 0.0
    """Weight decay of the critic's own parameters; on the policy's logits it would raise the entropy."""
    adam_eps: float = 1e-5
    """Epsilon of Adam."""
    group_baseline: bool = True
    """Subtract from each advantage the mean of the other hosts of its group."""
    compile: str | None = None
    """Backend of torch.compile for the losses, such as inductor; None runs them eagerly."""

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
            (
                self.gamma < 0.9,
                f"gamma {self.gamma} gives a horizon of only {1 / (1 - self.gamma + 1e-9):.0f} decisions",
            ),
            (self.clip > 0.3, f"clip {self.clip} lets the policy move far in one update"),
            (self.entropy_coef > 0.1, f"entropy_coef {self.entropy_coef} may outweigh the reward"),
            (
                self.epochs > 1 and self.value_clip is not None,
                "value_clip with several epochs ties values to stale ones",
            ),
        ):
            if unusual:
                warnings.warn(f"unusual: {why}", stacklevel=3)

    def floor_entropy_coef(self, coefficient: float, legal: Float[Tensor, "*N H"]) -> Float[Tensor, "*N H"] | float:
        """Return the entropy coefficient of every decision and head, given the fraction of choices that were legal."""
        if self.entropy_floor is None:
            return coefficient
        return (self.entropy_floor * (1 / legal).clamp(max=FLOOR_CAP)).clamp(min=coefficient)

    def entropy_at(self, update: int) -> float:
        """Return the entropy coefficient of an update."""
        return self._annealed(self.entropy_coef, self.entropy_end, update)

    def lr_at(self, update: int) -> float:
        """Return the learning rate of an update."""
        return self._annealed(self.lr, self.lr_end, update)

    def _annealed(self, start: float, end: float | None, update: int) -> float:
        if end is None:
            return start
        fraction = min(update / self.anneal, 1.0) if self.anneal else 1.0
        return start + fraction * (end - start)


FLOOR_CAP = 3.0
"""Largest factor by which few legal choices raise the entropy floor."""
REVIEWED = {"value_clip": 10.0, "target_kl": 0.015, "epochs": 1}
"""Preset of an earlier system, where it differs from the defaults."""


class PPOLosses(NamedTuple):
    """Loss terms and diagnostics of a minibatch: sums over decisions from `losses`, means in an `UpdateResult`."""

    policy: Float[Tensor, " H"]
    """Minus the clipped surrogate objective."""
    entropy: Float[Tensor, " H"]
    entropy_bonus: Float[Tensor, " H"]
    """Entropy times its coefficient."""
    approx_kl: Float[Tensor, " H"]
    """KL divergence from the policy that acted, estimated by (ratio - 1) - ln(ratio)."""
    clip_fraction: Float[Tensor, " H"]
    """Decisions whose ratio lies outside of the clip range."""
    value: Float[Tensor, ""]
    """Half the squared error of the value."""
    ratio_min: Float[Tensor, " H"]
    ratio_max: Float[Tensor, " H"]


BY_HEAD = ("policy", "entropy", "entropy_bonus", "approx_kl", "clip_fraction")
"""Fields of `PPOLosses` that are sums over the decisions whose op uses a head."""
SUMS = (*BY_HEAD, "value")
"""Fields of `PPOLosses` that are sums."""


def losses(controller: Controller, sequences: Sequences, config: PPOConfig, entropy_coef: float) -> PPOLosses:
    """Return the loss terms, summed over decisions; padding and heads that the op does not use contribute nothing."""
    old, returns, valid = sequences.old, sequences.returns, sequences.valid
    new = controller.judge(sequences.seen, sequences.memory, old.action)
    mask = relevant(old.action[..., Head.OP]) & valid[..., None]  # L Q H
    log_ratio = (new.log_probs - old.log_probs).where(mask, 0.0)
    ratio = log_ratio.exp()
    advantage = sequences.advantage[..., None]
    clipped_ratio = ratio.clamp(1 - config.clip, 1 + config.clip)
    surrogate = torch.minimum(ratio * advantage, clipped_ratio * advantage)
    v_loss = (new.value - returns).where(valid, 0.0).square()
    if config.value_clip is not None:
        v_clipped = old.value + (new.value - old.value).clamp(-config.value_clip, config.value_clip)
        v_loss = torch.maximum(v_loss, (v_clipped - returns).where(valid, 0.0).square())

    def over_decisions(x: Tensor) -> Tensor:
        return x.where(mask, 0.0).sum((0, 1))

    with torch.no_grad():
        approx_kl = over_decisions(ratio - 1 - log_ratio)
        clip_fraction = over_decisions(((ratio - 1).abs() > config.clip).float())
        used_ratio = ratio.where(mask, torch.nan).flatten(0, 1)
        ratio_min = used_ratio.nan_to_num(torch.inf).amin(0)
        ratio_max = used_ratio.nan_to_num(-torch.inf).amax(0)
    return PPOLosses(
        policy=-over_decisions(surrogate),
        entropy=over_decisions(new.entropy),
        entropy_bonus=over_decisions(config.floor_entropy_coef(entropy_coef, new.legal) * new.entropy),
        approx_kl=approx_kl,
        clip_fraction=clip_fraction,
        value=0.5 * v_loss.sum(),
        ratio_min=ratio_min,
        ratio_max=ratio_max,
    )


class Counts(NamedTuple):
    """Numbers of decisions that the sums in `PPOLosses` are divided by."""

    heads: Float[Tensor, " H"]
    """Decisions whose op uses each head."""
    decisions: Float[Tensor, ""]
    """All decisions."""


def decision_counts(sequences: Sequences) -> Counts:
    """Count the decisions of a minibatch, without padding."""
    mask = relevant(sequences.old.action[..., Head.OP]) & sequences.valid[..., None]
    return Counts(mask.sum((0, 1)).float(), sequences.valid.sum().float())


def loss(sums: PPOLosses, counts: Counts, config: PPOConfig) -> Float[Tensor, ""]:
    """Return the scalar loss: policy + value_coef * value - entropy_coef * entropy."""
    heads = counts.heads.clamp(min=1)
    weights = torch.tensor(per_head(config.entropy_weights), device=heads.device)
    policy = (sums.policy / heads).sum()
    entropy_bonus = (weights * sums.entropy_bonus / heads).sum() / weights.sum()
    return policy + config.value_coef * sums.value / counts.decisions.clamp(min=1) - entropy_bonus


class UpdateResult(NamedTuple):
    """Numbers of one update; tensors stay on the device until they are read."""

    losses: PPOLosses
    """Means over the minibatches of the update."""
    samples: Float[Tensor, " H"]
    """Decisions per epoch whose op uses each head."""
    advantage_mean: Tensor
    """Before standardization."""
    advantage_std: Tensor
    """Before standardization."""
    returns: Float[Tensor, "T N"]
    grad_norm: Tensor
    """Before clipping."""
    grad_norm_clipped: Tensor
    head_grad_norms: Float[Tensor, " H"]
    """Gradient norm of each head's own parameters, before clipping."""
    epochs: int
    steps: int
    """Optimizer steps."""
    stopped: str | None
    """Why the update stopped early; None if it did not."""


class GradNorms(NamedTuple):
    """Gradient norms of one optimizer step."""

    whole: Float[Tensor, ""]
    """Before clipping."""
    clipped: Float[Tensor, ""]
    by_head: Float[Tensor, " H"]
    """Of each head's own parameters, before clipping."""


class StepResult(NamedTuple):
    """Numbers of one minibatch."""

    losses: PPOLosses
    """Means over its decisions."""
    counts: Counts
    norms: GradNorms
    stopped: str | None
    """Why no step was taken; None if it was."""


class Learner:
    """A controller and the optimizer that improves it by PPO, from the decisions of all workers together."""

    def __init__(
        self, controller: Controller, config: PPOConfig = PPOConfig(), rng_seed: int = 0, workers: Workers = ALONE
    ) -> None:
        self.controller, self.config, self.workers = controller, config, workers
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
        """Improve the controller by one PPO update; `reward` replaces the rollout's own rewards.

        A rollout with values that are not finite is skipped, and `stopped` says so. Each worker gives its own rollout;
        the result is the same on all of them.
        """
        config, controller, workers = self.config, self.controller, self.workers
        rewards = rollout.reward if reward is None else reward
        raw = gae(rewards, rollout.choice.value, rollout.after, rollout.ended, config.gamma, config.lam)
        returns = raw + rollout.choice.value
        siblings = (rollout.groups, rollout.comparable, rollout.moment)
        baselined = subtract_group_mean(raw, *siblings) if config.group_baseline else raw
        every, all_returns = (workers.joined(x, 1) for x in (baselined, returns))
        checked = {"rewards": rewards, "values": returns, **rollout.seen.features._asdict()}
        broken = _non_finite(**checked)
        flags = zip(*workers.numbers(*(name in broken for name in checked)), strict=True)
        if names := [name for name, found in zip(checked, flags, strict=True) if any(found)]:
            self.updates += 1
            return _skipped(every, all_returns, f"update skipped: values are not finite in {', '.join(names)}")
        hosts = workers.place(rollout.reward.shape[1])
        advantage = standardize(every, torch.ones_like(every, dtype=torch.bool))[:, hosts.span]
        blank = controller.blank(rollout.reward.shape[1], rollout.reward.device)
        sequences = to_sequences(rollout, advantage, returns, controller.config.recurrent, blank)
        for group in self.optimizer.param_groups:
            group["lr"] = config.lr_at(self.updates)
        steps: list[StepResult] = []
        mine = workers.place(sequences.valid.shape[1])
        for index in map(mine.own, self.minibatches(mine.total)):
            steps.append(self.step(select(sequences, index.to(sequences.valid.device))))
            if steps[-1].stopped:
                break
        self.updates += 1
        samples = torch.stack([step.counts.heads for step in steps])
        norms = GradNorms(*(torch.stack(x).mean(0) for x in zip(*(step.norms for step in steps), strict=True)))
        epochs = -(-len(steps) // min(config.minibatches, mine.total))
        return UpdateResult(
            losses=_weighted_mean([step.losses for step in steps], samples),
            samples=samples.sum(0) / epochs,
            advantage_mean=every.mean(),
            advantage_std=every.std(),
            returns=all_returns,
            grad_norm=norms.whole,
            grad_norm_clipped=norms.clipped,
            head_grad_norms=norms.by_head,
            epochs=epochs,
            steps=len(steps) - bool(steps[-1].stopped),
            stopped=steps[-1].stopped,
        )

    def minibatches(self, count: int) -> Iterator[Int[Tensor, " Q"]]:
        """Yield indices of the sequences of all workers: each one once per epoch, shuffled anew in every epoch."""
        for _ in range(self.config.epochs):
            order = torch.randperm(count, generator=self.generator)
            yield from order.chunk(min(self.config.minibatches, count))

    def step(self, sequences: Sequences) -> StepResult:
        """Take one optimizer step, unless approx_kl exceeds its budget. A worker may have no sequence in it."""
        config = self.config
        self.optimizer.zero_grad()
        counts = Counts(*self.workers.sum(*decision_counts(sequences)))
        pieces = torch.arange(sequences.valid.shape[1], device=sequences.valid.device).chunk(config.accumulate)
        parts = []
        entropy_coef = config.entropy_at(self.updates)
        for index in pieces if len(pieces[0]) else ():
            piece = select(sequences, index) if len(pieces) > 1 else sequences
            part = self.losses(self.controller, piece, config, entropy_coef)
            loss(part, counts, config).backward()
            parts.append(PPOLosses(*(x.detach() for x in part)))
        heads = counts.heads.clamp(min=1)
        total = self.total(parts or [_no_losses(heads)])
        mean = PPOLosses(
            **{name: getattr(total, name) / heads for name in BY_HEAD},
            value=total.value / counts.decisions.clamp(min=1),
            ratio_min=total.ratio_min,
            ratio_max=total.ratio_max,
        )
        by_head = head_grad_norms(self.controller)
        norm = nn.utils.clip_grad_norm_(self.controller.parameters(), config.max_grad_norm)
        norms = GradNorms(norm, norm.clamp(max=config.max_grad_norm), by_head)
        if config.target_kl is not None and bool(mean.approx_kl.sum() > 1.5 * config.target_kl):
            return StepResult(mean, counts, norms, f"approx_kl exceeded 1.5 times target_kl ({config.target_kl})")
        self.optimizer.step()
        return StepResult(mean, counts, norms, None)

    def total(self, parts: list[PPOLosses]) -> PPOLosses:
        """Add up the pieces of a minibatch over all workers, and so their gradients."""
        own = {name: torch.stack([getattr(part, name) for part in parts]) for name in PPOLosses._fields}
        sums = tuple(own[name].sum(0) for name in SUMS)
        lowest, highest = self.workers.largest(-own["ratio_min"].amin(0), own["ratio_max"].amax(0))
        if self.workers.size > 1:
            parameters = list(self.controller.parameters())
            gradients = (torch.zeros_like(p) if p.grad is None else p.grad for p in parameters)
            found = self.workers.sum(*sums, *gradients)
            sums = found[: len(SUMS)]
            for parameter, gradient in zip(parameters, found[len(SUMS) :], strict=True):
                parameter.grad = gradient
        return PPOLosses(**dict(zip(SUMS, sums, strict=True)), ratio_min=-lowest, ratio_max=highest)


def _weighted_mean(means: list[PPOLosses], samples: Float[Tensor, "M H"]) -> PPOLosses:
    """Average over minibatches, each head weighted by its number of decisions in them."""
    weight = samples / samples.sum(0).clamp(min=1)
    return PPOLosses(
        **{name: (torch.stack([getattr(m, name) for m in means]) * weight).sum(0) for name in BY_HEAD},
        value=torch.stack([m.value for m in means]).mean(),
        ratio_min=torch.stack([m.ratio_min for m in means]).amin(0),
        ratio_max=torch.stack([m.ratio_max for m in means]).amax(0),
    )


def _non_finite(**tensors: Tensor) -> list[str]:
    """Return the names of tensors with values that are not finite."""
    finite = torch.stack([x.isfinite().all() for x in tensors.values()]).tolist()
    return [name for name, fine in zip(tensors, finite, strict=True) if not fine]


def _no_losses(like: Float[Tensor, " H"]) -> PPOLosses:
    """Return the losses of no decisions."""
    zero = torch.zeros_like(like)
    sums = dict.fromkeys(BY_HEAD, zero)
    return PPOLosses(**sums, value=zero[0], ratio_min=zero + torch.inf, ratio_max=zero - torch.inf)


def _skipped(advantage: Tensor, returns: Tensor, why: str) -> UpdateResult:
    """Return the result of an update that changed nothing."""
    zero = torch.zeros(len(Head), device=returns.device)
    losses = PPOLosses(**{name: torch.zeros_like(zero) for name in PPOLosses._fields})._replace(value=zero[0])
    return UpdateResult(losses, zero, advantage.mean(), advantage.std(), returns, zero[0], zero[0], zero, 0, 0, why)


def head_grad_norms(controller: Controller) -> Float[Tensor, " H"]:
    """Return the gradient norm of each head's own parameters; heads with fixed choices own rows of a shared layer."""

    def norm(module: nn.Module) -> Tensor:
        return torch.stack([p.grad.norm() for p in module.parameters() if p.grad is not None]).norm()

    norms = {Head.OP: norm(controller.op), Head.SLOT: norm(controller.slot_score)}
    norms[Head.BLUEPRINT] = norm(controller.blueprint_score)
    last = controller.tail[-1]
    assert isinstance(last, nn.Linear)
    assert last.weight.grad is not None
    for head, rows in zip(TAIL, last.weight.grad.split(TAIL_SIZES), strict=True):
        norms[head] = rows.norm()
    return torch.stack([norms[head] for head in Head])
