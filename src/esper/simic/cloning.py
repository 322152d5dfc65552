"""Behaviour cloning: train a controller to imitate recorded episodes and to predict their returns; episode files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esper.leyline.actions import Head
from esper.leyline.errors import EsperError
from esper.leyline.tensor_files import fits, parsing, read, write
from esper.simic.advantages import gae
from esper.simic.normalizers import RunningMeanStd, update_reward_std
from esper.simic.rollout import Rollout, require_finite
from esper.simic.sequences import Sequences, finished, select, to_sequences
from esper.tamiyo.features import HOST_FEATURES, SLOT_FEATURES, Features, column_names
from esper.tamiyo.masks import relevant
from esper.tamiyo.network import Choice, Controller, HiddenState, Observation

EPISODES_FORMAT = "esper.episodes"
FINAL_LR_FACTOR = 0.05
"""Learning rate at the end of cloning, as a fraction of the initial one."""


@dataclass(frozen=True, kw_only=True)
class CloneConfig:
    """Hyperparameters of behaviour cloning.

    Example:
        ```python
        CloneConfig(epochs=200, held_out=0.1)
        ```
    """

    lr: float = 1e-3
    """Initial learning rate; it decays linearly to 5 % of this."""
    epochs: int = 20
    """Passes over the episodes."""
    minibatches: int = 4
    """Minibatches per rollout and epoch."""
    held_out: float = 0.2
    """Fraction of the episodes that is only evaluated, never trained on."""
    value_coef: float = 0.5
    """Weight of the value loss; an untrained critic would mislead PPO when it continues from the clone."""
    gamma: float = 0.995
    """Discount per decision in the returns that the critic learns."""
    rng_seed: int = 0
    """Seed of the split and of the shuffling."""

    def __post_init__(self) -> None:
        for name in ("lr", "epochs", "minibatches"):
            if not getattr(self, name) > 0:
                raise EsperError(f"{name} must be positive, not {getattr(self, name)}")
        if not 0 < self.held_out < 1:
            raise EsperError(f"held_out must lie strictly between 0 and 1, not {self.held_out}")
        if not self.value_coef >= 0:
            raise EsperError(f"value_coef must not be negative, not {self.value_coef}")
        if not 0 < self.gamma <= 1:
            raise EsperError(f"gamma must be above 0 and at most 1, not {self.gamma}")


@dataclass(frozen=True)
class CloneReport:
    """Losses of one epoch of behaviour cloning, on training and held-out episodes."""

    epoch: int
    loss: float
    """Mean negative log-likelihood of the training episodes, summed over heads."""
    held_out_loss: float
    """Mean negative log-likelihood of the held-out episodes, summed over heads."""
    likelihood: dict[str, float | None]
    """Mean probability of the recorded choice in held-out episodes, by head; None where no op used the head."""
    value_error: float
    """Mean squared error of the value in held-out episodes, with rewards scaled to unit deviation."""


def clone(
    controller: Controller, episodes: Sequence[Rollout], config: CloneConfig = CloneConfig()
) -> Iterator[CloneReport]:
    """Train a controller to imitate recorded episodes, and its critic to predict their returns.

    The controller is trained in place, while the returned iterator is consumed.

    Args:
        controller: Controller to train; its weights are the starting point.
        episodes: Rollouts of any policies, from `record_episodes` or `load_episodes`; at least one.
        config: Hyperparameters.

    Returns:
        An iterator that runs one epoch per step and yields its losses.

    Raises:
        EsperError: The episodes hold values that are not finite.

    Example:
        ```python
        episodes, _ = load_episodes("heuristic.safetensors")
        controller = Controller()
        *_, last = clone(controller, [episodes], CloneConfig(epochs=80))
        print(last.likelihood["op"])  # mean probability of the recorded op in held-out episodes
        ```
    """
    for rollout in episodes:
        require_finite(rollout)
    reward_std = pooled_reward_std(episodes)
    sequences = [_to_sequences(controller, rollout, config.gamma, reward_std) for rollout in episodes]
    generator = torch.Generator().manual_seed(config.rng_seed)
    held_out, train = [], []
    for part in sequences:
        order = _shuffled(part, generator)
        count = max(1, int(len(order) * config.held_out))
        held_out.append(select(part, order[:count]))
        train.append(select(part, order[count:]))
    optimizer = torch.optim.AdamW(controller.parameters(), config.lr, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, FINAL_LR_FACTOR, config.epochs)
    for epoch in range(config.epochs):
        total = torch.zeros((), device=reward_std.device)
        minibatches = [  # of all rollouts, mixed: training on one after the other would forget the earlier ones
            (part, index) for part in train for index in _shuffled(part, generator).chunk(config.minibatches)
        ]
        for i in torch.randperm(len(minibatches), generator=generator).tolist():
            part, index = minibatches[i]
            losses = _losses(controller, select(part, index))
            optimizer.zero_grad()
            (losses.nll + config.value_coef * losses.value_error).backward()
            optimizer.step()
            total += losses.nll.detach()
        schedule.step()
        with torch.no_grad():
            evaluated = [_losses(controller, part) for part in held_out]
        summed = _CloneLosses(*(torch.stack(x).sum(0) for x in zip(*evaluated, strict=True)))
        likelihood, counts = summed.likelihood / summed.counts.clamp(min=1), summed.counts
        by_head = {head.name.lower(): likelihood[head].item() if counts[head] else None for head in Head}
        held_out_nll, value_error = summed.nll / len(evaluated), summed.value_error / len(evaluated)
        yield CloneReport(epoch, (total / len(minibatches)).item(), held_out_nll.item(), by_head, value_error.item())


def pooled_reward_std(episodes: Sequence[Rollout]) -> Float[Tensor, ""]:
    """Return the standard deviation of the rewards of all episodes together."""
    statistics = RunningMeanStd((), episodes[0].reward.device)
    return [update_reward_std(statistics, rollout.reward) for rollout in episodes][-1]


def _shuffled(sequences: Sequences, generator: torch.Generator) -> Int[Tensor, " Q"]:
    return torch.randperm(sequences.valid.shape[1], generator=generator).to(sequences.valid.device)


def _to_sequences(controller: Controller, rollout: Rollout, gamma: float, reward_std: Tensor) -> Sequences:
    """Cut episodes into sequences that begin with a blank hidden state, with discounted rewards-to-go as returns."""
    blank = controller.blank(rollout.reward.shape[1], rollout.reward.device)
    no_value = torch.zeros_like(rollout.reward)
    returns = gae(rollout.reward / reward_std, no_value, no_value, rollout.ended, gamma, lam=1.0)
    recurrent = controller.config.recurrent
    return finished(
        rollout, to_sequences(rollout._replace(memory=blank), returns, returns, recurrent, blank), recurrent
    )


class _CloneLosses(NamedTuple):
    nll: Float[Tensor, ""]
    """Mean negative log-likelihood, summed over heads."""
    likelihood: Float[Tensor, " H"]
    """Sum of the probabilities of the recorded choices."""
    counts: Int[Tensor, " H"]
    """Decisions whose op uses each head."""
    value_error: Float[Tensor, ""]
    """Mean squared error of the value."""


def _losses(controller: Controller, sequences: Sequences) -> _CloneLosses:
    new = controller.judge(sequences.seen, sequences.memory, sequences.old.action)
    mask = relevant(sequences.old.action[..., Head.OP]) & sequences.valid[..., None]
    counts = mask.sum((0, 1))
    nll = (-new.log_probs).where(mask, 0.0).sum((0, 1)) / counts.clamp(min=1)
    error = (new.value - sequences.returns).where(sequences.valid, 0.0).square().sum() / sequences.valid.sum()
    return _CloneLosses(nll.sum(), new.log_probs.exp().where(mask, 0.0).sum((0, 1)), counts, error)


def save_episodes(path: str | Path, rollout: Rollout, policy: str) -> None:
    """Write a rollout of any policy to a file.

    Args:
        path: File to write; an existing one is replaced.
        rollout: Decisions to save, such as those of `record_episodes`.
        policy: Name of the policy, stored beside it.

    Raises:
        FileError: The file cannot be written.

    Example:
        ```python
        save_episodes("heuristic.safetensors", episodes, policy="heuristic")
        ```
    """
    tensors = _flat(rollout)
    tensors["blueprints"] = rollout.seen.blueprints[0]
    del tensors["seen/blueprints"]
    write(path, EPISODES_FORMAT, tensors, _description() | {"policy": policy})


def load_episodes(path: str | Path) -> tuple[Rollout, str]:
    """Read a rollout that `save_episodes` wrote.

    Returns:
        The rollout and the name of the policy that acted in it.

    Raises:
        FileError: The file is missing or damaged, or its features or heads differ from those of this version.

    Example:
        ```python
        episodes, policy = load_episodes("heuristic.safetensors")
        ```
    """
    tensors, description = read(path, EPISODES_FORMAT)
    with parsing(path):
        fits(path, _description(), description)
        length = len(tensors["reward"])
        tensors["seen/blueprints"] = tensors["blueprints"].expand(length, *tensors["blueprints"].shape)

        def under(prefix: str, names: Sequence[str]) -> dict[str, Tensor]:
            return {name: tensors[f"{prefix}/{name}"] for name in names}

        features = Features(**under("features", Features._fields))
        seen = Observation(features, **under("seen", Observation._fields[1:]))
        choice, memory = Choice(**under("choice", Choice._fields)), HiddenState(**under("memory", HiddenState._fields))
        needed = [
            name for name in Rollout._fields if name not in ("seen", "choice", "memory", *Rollout._field_defaults)
        ]
        plain = [*needed, *(name for name in Rollout._field_defaults if name in tensors)]  # absent from older files
        rollout = Rollout(seen=seen, choice=choice, memory=memory, **{name: tensors[name] for name in plain})
        return rollout, str(description["policy"])


def _description() -> dict[str, object]:
    """Describe the columns of features and actions."""
    return {
        "host_features": column_names(HOST_FEATURES),
        "slot_features": column_names(SLOT_FEATURES),
        "heads": [head.name.lower() for head in Head],
    }


def _flat(rollout: Rollout) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name, value in rollout._asdict().items():
        if isinstance(value, Tensor):
            tensors[name] = value
        elif name == "seen":
            tensors |= {f"features/{part}": x for part, x in value.features._asdict().items()}
            tensors |= {f"seen/{part}": x for part, x in value._asdict().items() if part != "features"}
        elif value is not None:
            tensors |= {f"{name}/{part}": x for part, x in value._asdict().items()}
    return tensors
