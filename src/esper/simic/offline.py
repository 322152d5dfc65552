"""Offline learning from recorded episodes by implicit Q-learning (arXiv:2110.06169).

V is fitted to an upper expectile of Q over recorded actions, Q to reward + gamma * V of the next state, and the policy
by cloning weighted with exp(beta * (Q - V)). Q is never evaluated on actions that were not recorded.
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
from esper.simic.rollout import Rollout, require_finite
from esper.simic.sequences import Sequences, select, sequence_indices, to_sequences
from esper.tamiyo.masks import relevant
from esper.tamiyo.network import TAIL, TAIL_SIZES, Controller, ControllerConfig, Observation, at_slot, linear, mlp


@dataclass(frozen=True, kw_only=True)
class OfflineConfig:
    """Hyperparameters of implicit Q-learning.

    Example:
        ```python
        OfflineConfig(epochs=200, expectile=0.9, beta=10.0)  # trusts the best recorded actions more than the default
        ```
    """

    lr: float = 1e-3
    """Learning rate of the controller and of the critic."""
    epochs: int = 100
    """Passes over the episodes."""
    minibatches: int = 4
    """Minibatches per rollout and epoch; each holds whole sequences, shuffled anew in every epoch."""
    gamma: float = 0.995
    """Discount per decision."""
    expectile: float = 0.8
    """Expectile of Q that V is fitted to: 0.5 is the mean over recorded actions, near 1 the best of them."""
    beta: float = 3.0
    """Inverse temperature of the policy's weights, per unit of reward; 0 clones all actions equally."""
    largest_weight: float = 100.0
    """Largest weight of a single action in the policy loss."""
    polyak: float = 0.005
    """Fraction of the way that the target critic moves towards the critic at each step."""
    rng_seed: int = 0
    """Seed of the critic's weights and of the shuffling."""

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
    """Losses of one epoch of offline learning, averaged over its steps."""

    epoch: int
    value_loss: float
    """Expectile loss of V."""
    q_loss: float
    """Squared error of Q, summed over both Q heads."""
    policy_loss: float
    """Weighted negative log-likelihood of the recorded actions."""
    advantage: float
    """Mean of Q - V."""
    weight: float
    """Mean weight of a recorded action in the policy loss."""


class Critic(nn.Module):
    """State values V and two action values Q, with an encoder of their own."""

    def __init__(self, config: ControllerConfig = ControllerConfig(), rng_seed: int = 0) -> None:
        super().__init__()
        self.encoder = Controller(config, rng_seed)
        h = config.hidden
        inputs = h + 3 * config.slot_hidden + sum(TAIL_SIZES)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(rng_seed)
            # Q is almost 0 at first, so that the policy clones until Q has learned something.
            self.q_heads = nn.ModuleList(nn.Sequential(mlp(inputs, h, h), linear(h, 1, 0.01)) for _ in range(2))

    def forward(
        self, seen: Observation, action: Int[Tensor, "L Q H"]
    ) -> tuple[Float[Tensor, "L Q"], Float[Tensor, "2 L Q"]]:
        """Return V and both Q of the recorded actions, along sequences that begin with a blank hidden state."""
        x, slots = self.encoder.read(seen.features, seen.exists)
        x = self.encoder.remember(x, self.encoder.blank(x.shape[1], x.device))
        state_action = torch.cat([x, self.encode_action(slots, seen.blueprints, action)], -1)
        return self.encoder.value(x)[..., 0], torch.stack([head(state_action)[..., 0] for head in self.q_heads])

    def encode_action(
        self, slots: Float[Tensor, "L Q S E"], blueprints: Float[Tensor, "L Q S K D"], action: Int[Tensor, "L Q H"]
    ) -> Float[Tensor, "L Q C"]:
        """Encode an action head by head; heads that its op does not use are 0."""
        op, slot, blueprint = action[..., : Head.STYLE].unbind(-1)
        parts = {
            Head.OP: self.encoder.op_code(op),
            Head.SLOT: at_slot(slots, slot),
            Head.BLUEPRINT: self.encoder.blueprint(at_slot(at_slot(blueprints, slot), blueprint)),
        }
        parts |= {head: one_hot(action[..., head], size) for head, size in zip(TAIL, TAIL_SIZES, strict=True)}
        used = relevant(op)
        return torch.cat([part.where(used[..., head, None], 0.0) for head, part in parts.items()], -1)


class OfflineData(NamedTuple):
    """Sequences of recorded decisions with their rewards."""

    sequences: Sequences
    reward: Float[Tensor, "L Q"]
    ended: Bool[Tensor, "L Q"]
    has_next: Bool[Tensor, "L Q"]
    """Whether the next state or the end of the episode was recorded; False for the last decision before a cut."""


def to_offline_data(controller: Controller, rollout: Rollout) -> OfflineData:
    """Cut a recorded rollout into sequences that begin with the controller's blank hidden state."""
    require_finite(rollout)
    blank = controller.blank(rollout.reward.shape[1], rollout.reward.device)
    sequences = to_sequences(rollout._replace(memory=blank), rollout.reward, rollout.reward, True, blank)
    t, n, valid = sequence_indices(rollout, whole=True)
    ended = rollout.ended[t, n]
    followed = torch.cat([valid[1:], torch.zeros_like(valid[:1])])
    data = OfflineData(sequences, rollout.reward[t, n], ended, valid & (ended | followed))
    return select_data(data, data.has_next.any(0).nonzero()[:, 0])


def select_data(data: OfflineData, index: Int[Tensor, " Q"]) -> OfflineData:
    """Return the sequences with these indices."""
    sequences, *rest = data
    return OfflineData(select(sequences, index), *(x[:, index] for x in rest))


class IQLLosses(NamedTuple):
    """Losses and diagnostics of implicit Q-learning, means over decisions with a recorded next state."""

    value: Float[Tensor, ""]
    q: Float[Tensor, ""]
    policy: Float[Tensor, ""]
    advantage: Float[Tensor, ""]
    weight: Float[Tensor, ""]


def losses(
    controller: Controller, critic: Critic, target_critic: Critic, data: OfflineData, config: OfflineConfig
) -> IQLLosses:
    """Return the losses of V, Q and the policy. V and Q share an encoder; the policy has its own."""
    (seen, old, *_), mask = data.sequences, data.has_next
    value, q = critic(seen, old.action)
    log_probs = controller.judge(seen, data.sequences.memory, old.action).log_probs
    log_prob = log_probs.where(relevant(old.action[..., Head.OP]), 0.0).sum(-1)
    with torch.no_grad():
        q_target = target_critic(seen, old.action)[1].amin(0)
        next_value = torch.cat([value[1:], torch.zeros_like(value[:1])])
        target = data.reward + config.gamma * next_value.where(~data.ended, 0.0)
    advantage = (q_target - value)[mask]
    weight = (config.beta * advantage.detach()).exp().clamp(max=config.largest_weight)
    return IQLLosses(
        value=expectile_loss(advantage, config.expectile),
        q=(target - q)[:, mask].square().sum(0).mean(),
        policy=-(weight * log_prob[mask]).mean(),
        advantage=advantage.mean(),
        weight=weight.mean(),
    )


def expectile_loss(error: Float[Tensor, " D"], expectile: float) -> Float[Tensor, ""]:
    """Return the mean squared error, with positive errors weighted `expectile` and others 1 - `expectile`."""
    return (error.square() * torch.where(error > 0, expectile, 1 - expectile)).mean()


def learn_offline(
    controller: Controller,
    episodes: Sequence[Rollout],
    config: OfflineConfig = OfflineConfig(),
    critic: Critic | None = None,
) -> Iterator[OfflineReport]:
    """Train a controller by implicit Q-learning on recorded episodes; it can become better than what was recorded.

    The controller is trained in place, while the returned iterator is consumed.

    Args:
        controller: Controller to train; its weights are the starting point.
        episodes: Rollouts of any policies, from `record_episodes` or `load_episodes`.
        config: Hyperparameters.
        critic: Critic to train along with it; None builds a new one.

    Returns:
        An iterator that runs one epoch per step and yields its losses.

    Raises:
        EsperError: The episodes hold nothing to learn from, or values that are not finite.

    Example:
        ```python
        episodes, _ = load_episodes("heuristic.safetensors")
        controller = Controller()
        for report in learn_offline(controller, [episodes], OfflineConfig(epochs=50)):
            print(report.epoch, report.policy_loss)
        ```
    """
    parts = [part for part in (to_offline_data(controller, rollout) for rollout in episodes) if part.has_next.any()]
    if not parts:
        raise EsperError("episodes must hold at least one decision whose next state or end of episode was recorded")
    device = parts[0].has_next.device
    critic = Critic(controller.config, config.rng_seed).to(device) if critic is None else critic
    target_critic = deepcopy(critic).requires_grad_(False)
    optimizer = torch.optim.AdamW([*controller.parameters(), *critic.parameters()], config.lr, weight_decay=0.0)
    generator = torch.Generator().manual_seed(config.rng_seed)
    for epoch in range(config.epochs):
        steps = []
        for part in parts:
            order = torch.randperm(part.has_next.shape[1], generator=generator).to(device)
            for index in order.chunk(config.minibatches):
                loss = losses(controller, critic, target_critic, select_data(part, index), config)
                optimizer.zero_grad()
                (loss.value + loss.q + loss.policy).backward()
                optimizer.step()
                polyak_update(target_critic, critic, config.polyak)
                steps.append(torch.stack(loss).detach())
        yield OfflineReport(epoch, *torch.stack(steps).mean(0).tolist())


@torch.no_grad()
def polyak_update(target: Critic, critic: Critic, fraction: float) -> None:
    """Move the target's parameters this fraction of the way towards the critic's."""
    for old, new in zip(target.parameters(), critic.parameters(), strict=True):
        old.lerp_(new, fraction)
