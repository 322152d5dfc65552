"""Learning by imitation: recorded episodes of any policy, and a controller that comes to choose as it did, and to
expect what it earned."""

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
from esper.simic.normalizers import Running, spread
from esper.simic.ppo import Lives, cut, select
from esper.simic.rollout import Rollout, must_be_finite
from esper.tamiyo.features import HOST_FEATURES, SLOT_FEATURES, Features, column_names
from esper.tamiyo.masks import relevant
from esper.tamiyo.network import Choice, Controller, HiddenState, Observation

EPISODES_FORMAT = "esper.episodes"
FADED = 0.05
"""What is left of the learning rate at the end."""


@dataclass(frozen=True, kw_only=True)
class CloneConfig:
    lr: float = 1e-3
    """At first; it fades."""
    epochs: int = 20
    minibatches: int = 4
    held_out: float = 0.2
    """The share of lives that is only looked at."""
    value_coef: float = 0.5
    """How much it counts to expect what was earned; a critic that knows nothing would mislead whoever learns on."""
    gamma: float = 0.995
    rng_seed: int = 0

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
    """One pass over the episodes, judged on lives that were held out."""

    epoch: int
    loss: float
    """Mean negative log-likelihood, summed over heads, of what was learned from..."""
    held_out_loss: float
    """...and of what was not."""
    likelihood: dict[str, float | None]
    """Mean probability of the recorded choice, head by head; None where no decision listened."""
    value_error: float
    """Mean squared error of what is expected of lives that were held out, where all rewards have deviation 1."""


def clone(
    controller: Controller, episodes: Sequence[Rollout], config: CloneConfig = CloneConfig()
) -> Iterator[CloneReport]:
    """Teach a controller to choose as was chosen in these episodes, and to expect what was earned in them."""
    for rollout in episodes:
        must_be_finite(rollout)
    unit = deviation(episodes)
    lives = [_lives(controller, rollout, config.gamma, unit) for rollout in episodes]
    generator = torch.Generator().manual_seed(config.rng_seed)
    held, shown = [], []
    for part in lives:
        order = _shuffled(part, generator)
        count = max(1, int(len(order) * config.held_out))
        held.append(select(part, order[:count]))
        shown.append(select(part, order[count:]))
    optimizer = torch.optim.AdamW(controller.parameters(), config.lr, weight_decay=0.0)
    fading = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, FADED, config.epochs)
    for epoch in range(config.epochs):
        total = torch.zeros((), device=unit.device)
        batches = [  # no fleet is learned by itself: what was learned of the last one would suffer
            (part, which) for part in shown for which in _shuffled(part, generator).chunk(config.minibatches)
        ]
        for i in torch.randperm(len(batches), generator=generator).tolist():
            part, which = batches[i]
            found = _judged(controller, select(part, which))
            loss = found.surprise
            optimizer.zero_grad()
            (loss + config.value_coef * found.error).backward()
            optimizer.step()
            total += loss.detach()
        fading.step()
        with torch.no_grad():
            judged = [_judged(controller, part) for part in held]
        away, chances, counts, errors = (torch.stack(x).sum(0) for x in zip(*judged, strict=True))
        chances = chances / counts.clamp(min=1)
        known = {head.name.lower(): chances[head].item() if counts[head] else None for head in Head}
        away, errors = away / len(judged), errors / len(judged)
        yield CloneReport(epoch, (total / len(batches)).item(), away.item(), known, errors.item())


def deviation(episodes: Sequence[Rollout]) -> Float[Tensor, ""]:
    """Of the rewards of all episodes together."""
    scale = Running((), episodes[0].reward.device)
    return [spread(scale, rollout.reward) for rollout in episodes][-1]


def _shuffled(lives: Lives, generator: torch.Generator) -> Int[Tensor, " Q"]:
    return torch.randperm(lives.valid.shape[1], generator=generator).to(lives.valid.device)


def _lives(controller: Controller, rollout: Rollout, gamma: float, unit: Tensor) -> Lives:
    """Whoever played had another memory, or none: lives that were cut are read from where they go on."""
    blank = controller.blank(rollout.reward.shape[1], rollout.reward.device)
    nothing = torch.zeros_like(rollout.reward)
    returns = gae(rollout.reward / unit, nothing, nothing, rollout.ended, gamma, lam=1.0)
    return cut(rollout._replace(memory=blank), returns, returns, controller.config.recurrent, blank)


class _Judged(NamedTuple):
    surprise: Float[Tensor, ""]
    chances: Float[Tensor, " H"]
    """Probabilities of what was chosen, summed over..."""
    counts: Int[Tensor, " H"]
    """...so many decisions."""
    error: Float[Tensor, ""]


def _judged(controller: Controller, lives: Lives) -> _Judged:
    found = controller.judge(lives.seen, lives.memory, lives.old.action)
    counts = relevant(lives.old.action[..., Head.OP]) & lives.valid[..., None]
    samples = counts.sum((0, 1))
    surprise = (-found.log_probs).where(counts, 0.0).sum((0, 1)) / samples.clamp(min=1)
    error = (found.value - lives.returns).where(lives.valid, 0.0).square().sum() / lives.valid.sum()
    return _Judged(surprise.sum(), found.log_probs.exp().where(counts, 0.0).sum((0, 1)), samples, error)


def save_episodes(path: str | Path, rollout: Rollout, policy: str) -> None:
    """Write a rollout of any policy, to learn from later."""
    tensors = _flat(rollout)
    tensors["blueprints"] = rollout.seen.blueprints[0]
    del tensors["seen/blueprints"]
    write(path, EPISODES_FORMAT, tensors, _description() | {"policy": policy})


def load_episodes(path: str | Path) -> tuple[Rollout, str]:
    """The rollout of a file, and who played it. Features that have changed since are refused."""
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
        plain = [name for name in Rollout._fields if name not in ("seen", "choice", "memory")]
        rollout = Rollout(seen=seen, choice=choice, memory=memory, **{name: tensors[name] for name in plain})
        return rollout, str(description["policy"])


def _description() -> dict[str, object]:
    """What the columns mean."""
    return {
        "host_features": column_names(HOST_FEATURES),
        "slot_features": column_names(SLOT_FEATURES),
        "heads": [head.name.lower() for head in Head],
    }


def _flat(rollout: Rollout) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, value in rollout._asdict().items():
        if isinstance(value, Tensor):
            found[name] = value
        elif name == "seen":
            found |= {f"features/{part}": x for part, x in value.features._asdict().items()}
            found |= {f"seen/{part}": x for part, x in value._asdict().items() if part != "features"}
        else:
            found |= {f"{name}/{part}": x for part, x in value._asdict().items()}
    return found
