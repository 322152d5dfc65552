"""Evaluate one host in plain PyTorch, and judge its health and the contribution of its seeds."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from esper.kasmina.lifecycle import incubating, speaking, unmeasured
from esper.leyline.state import Vitals
from esper.tolaria.surgery import TRUNK

if TYPE_CHECKING:
    from esper.tolaria.host_trainer import HostTrainer


class Evaluation(NamedTuple):
    """Mean loss, metric and score of a host on the validation data."""

    loss: float
    metric: float
    score: float


def judged(trainer: "HostTrainer", out: Tensor) -> Evaluation:
    """Return how good predictions for the validation data are."""
    objective, y = trainer.task.spec.objective, trainer.task.validation.y
    metric = objective.metric(out, y).mean()
    score = objective.score(metric, trainer.task.spec.outputs)
    return Evaluation(objective.loss(out, y).mean().item(), metric.item(), score.item())


@torch.no_grad()
def examined(
    trainer: "HostTrainer", train_loss: float, norms: Mapping[str, float], now: Evaluation, streams: Sequence[Tensor]
) -> Vitals:
    """Return the vitals after an epoch, given the streams at all slots on the validation data.

    The contribution of a seed is the score with it minus the score without it.
    """
    host, state = trainer.host, trainer.state
    vitals = unmeasured(state)
    finite = torch.tensor([train_loss, now.loss, norms[TRUNK]]).isfinite().all()
    vitals.sane[0] = finite & all_finite(host.segments)
    for s, spec in enumerate(host.slot_specs):
        slot = host.slot(s)
        if slot.seed is None:
            continue
        learns = bool(incubating(state)[0, s] | speaking(state)[0, s])
        vitals.share[0, s] = norms[spec.name] / norms[TRUNK] if norms[TRUNK] else torch.nan
        vitals.healthy[0, s] = all_finite(slot) and (not learns or 0 < norms[spec.name] < torch.inf)
        speaks = bool(speaking(state)[0, s])
        alpha = torch.tensor(0.0) if speaks else state.alpha_target[0, s]
        if not (trainer.is_measured and trainer.lifecycle.measured(state)[0, s]):
            vitals.contribution[0, s] = trainer.vitals.contribution[0, s]
            continue
        switched = judged(trainer, host.after(s, streams[s], {s: alpha})).score
        vitals.contribution[0, s] = now.score - switched if speaks else switched - now.score
    return vitals


def all_finite(module: nn.Module) -> bool:
    return all(bool(p.isfinite().all()) for p in module.parameters())
