"""What a controller sees: a table of features, one row each, the same for every task and host.

All are ratios, shares or symlogs, so that one controller can serve hosts of any size; plain factors bring what is
usually small to the order of 1. What is not known is marked by a second column and reads 0.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esper.leyline.lifecycle import Stage
from esper.leyline.state import NO_BLUEPRINT, Setting, Signals

WINDOW = 5
"""Epochs of history that are looked back on."""
HIDEABLE = ("telemetry", "size")
"""Groups of features that a controller can do without; each is a switch of its config."""
IMPROVEMENT = 1e-3
"""How much the score must rise to count as progress."""


class ScoreHistory(NamedTuple):
    """What a host has shown in its life so far; NaN before it did."""

    scores: Float[Tensor, "N W"]
    """The newest last."""
    best: Float[Tensor, " N"]
    since_best: Int[Tensor, " N"]
    """Decisions since the score last rose."""
    first_loss: Float[Tensor, " N"]


class View(NamedTuple):
    """All that a feature may be made of."""

    signals: Signals
    history: ScoreHistory
    setting: Setting
    rent: Float[Tensor, " N"]
    budget: Float[Tensor, " N"]
    """The growth that is allowed; infinite if it is not limited."""


class Features(NamedTuple):
    """What a network reads of N hosts."""

    host: Float[Tensor, "N F"]
    slots: Float[Tensor, "N S G"]


def symlog(x: Tensor) -> Tensor:
    """Sign and order of magnitude."""
    return x.sign() * torch.log1p(x.abs())


def lead(score: Tensor, chance: float) -> Tensor:
    """How far above guessing, where perfect is 1."""
    return (score - chance) / (1 - chance)


def earlier(view: View, epochs: int) -> Tensor:
    """How much the score has risen since so many epochs ago."""
    return view.signals.score - view.history.scores[:, -1 - epochs]


@dataclass(frozen=True)
class Feature:
    """One number of a host, or of each of its slots."""

    name: str
    value: Callable[[View], Tensor]
    group: Literal["base", "telemetry", "size"] = "base"
    may_miss: bool = False
    """Whether it can be unknown: then a second column says so."""


def _slot_position(view: View) -> Tensor:
    stage = view.signals.slots.stage
    return (torch.arange(stage.shape[1], device=stage.device) / max(stage.shape[1] - 1, 1)).expand(stage.shape)


def _of_slot(view: View, table: Float[Tensor, " S"]) -> Tensor:
    """What is the same for a slot of every host."""
    return table.to(view.signals.score).expand(view.signals.slots.stage.shape)


def _of_seed(view: View, table: Tensor) -> Tensor:
    """A seed's own entry in a table of slots and blueprints; NaN where there is no seed."""
    blueprint = view.signals.slots.blueprint
    slot = torch.arange(blueprint.shape[1], device=blueprint.device)
    value = table.to(blueprint.device)[slot, blueprint.clamp(min=0)].float()
    return value.where(blueprint != NO_BLUEPRINT, torch.nan)


HOST_FEATURES: tuple[Feature, ...] = (
    Feature("time_left", lambda v: 1 - v.signals.age / v.setting.episode),
    Feature("decisions_left", lambda v: symlog((v.setting.episode - v.signals.age).float()) / 3),
    Feature("score", lambda v: v.signals.score),
    Feature("lead", lambda v: lead(v.signals.score, v.setting.chance)),
    Feature("rise_1", lambda v: 10 * earlier(v, 1), may_miss=True),
    Feature("rise_3", lambda v: 5 * earlier(v, 3), may_miss=True),
    Feature("below_best", lambda v: 10 * (v.signals.score - v.history.best), may_miss=True),
    Feature("plateau", lambda v: v.history.since_best / v.setting.episode),
    Feature("loss", lambda v: symlog(v.signals.loss / v.setting.guess)),
    Feature("train_loss", lambda v: symlog(v.signals.train_loss / v.setting.guess), may_miss=True),
    Feature("fall", lambda v: symlog(v.signals.train_loss / v.history.first_loss), may_miss=True),
    Feature("gap", lambda v: symlog((v.signals.loss - v.signals.train_loss) / v.setting.guess), may_miss=True),
    Feature("parameters", lambda v: torch.full_like(v.signals.score, v.setting.parameters).log10() / 6, "size"),
    Feature("growth", lambda v: torch.log1p(v.signals.growth)),
    Feature("rent", lambda v: 10 * v.rent),
    Feature("paying", lambda v: 10 * v.rent * torch.log1p(v.signals.growth)),
    Feature("budget_left", lambda v: ((v.budget - v.signals.growth) / v.budget).clamp(min=0).nan_to_num(1.0)),
    Feature("seeds", lambda v: (v.signals.slots.blueprint != NO_BLUEPRINT).float().mean(1)),
)
SLOT_FEATURES: tuple[Feature, ...] = (
    *(
        Feature(f"is_{stage.name.lower()}", lambda v, stage=stage: (v.signals.slots.stage == stage).float())
        for stage in Stage
    ),
    Feature("position", _slot_position),
    Feature("age", lambda v: v.signals.slots.age / v.setting.episode),
    Feature("seed_age", lambda v: v.signals.slots.seed_age / v.setting.episode),
    Feature("births", lambda v: symlog(v.signals.slots.births.float())),
    Feature("alpha", lambda v: v.signals.slots.alpha),
    Feature("alpha_target", lambda v: v.signals.slots.alpha_target),
    Feature("contribution", lambda v: 10 * v.signals.vitals.contribution, may_miss=True),
    Feature("seed_parameters", lambda v: torch.log1p(_of_seed(v, v.setting.seed_parameters)), may_miss=True),
    Feature("pull", lambda v: v.signals.vitals.pull / v.signals.vitals.pull.sum(1, keepdim=True), may_miss=True),
    Feature("healthy", lambda v: v.signals.vitals.healthy.float(), "telemetry"),
    Feature("share", lambda v: symlog(v.signals.vitals.share), "telemetry", may_miss=True),
    Feature("dearest", lambda v: _of_slot(v, torch.log1p(v.setting.seed_parameters.amax(1)))),
)


def width(table: tuple[Feature, ...]) -> int:
    return sum(1 + feature.may_miss for feature in table)


def column_names(table: tuple[Feature, ...]) -> tuple[str, ...]:
    return tuple(name for f in table for name in ([f.name, f"no_{f.name}"] if f.may_miss else [f.name]))


def empty_history(num_hosts: int, device: torch.device) -> ScoreHistory:
    unknown = torch.full((num_hosts, WINDOW), torch.nan, device=device)
    none = torch.zeros(num_hosts, dtype=torch.long, device=device)
    return ScoreHistory(unknown, unknown[:, 0], none, unknown[:, 0])


def remember(history: ScoreHistory, signals: Signals, fresh: Bool[Tensor, " N"]) -> ScoreHistory:
    """What is known after these signals; `fresh` hosts have just been born and remember nothing."""
    start = empty_history(len(fresh), fresh.device)
    old = ScoreHistory(*(_rows(fresh, a, b) for a, b in zip(start, history, strict=True)))
    score = signals.score.float()
    better = ~(score <= old.best + IMPROVEMENT)
    loss = signals.train_loss.float()
    return ScoreHistory(
        scores=torch.cat([old.scores[:, 1:], score[:, None]], 1),
        best=torch.where(better, score, old.best),
        since_best=torch.where(better, 0, old.since_best + 1),
        first_loss=torch.where(old.first_loss.isnan(), loss, old.first_loss),
    )


def features(view: View) -> Features:
    """All features of N hosts."""
    return Features(_columns(HOST_FEATURES, view), _columns(SLOT_FEATURES, view))


def hidden(table: tuple[Feature, ...], groups: Collection[str]) -> Float[Tensor, " F"]:
    """What those who are blind to some groups read in their columns, as if it were not known; NaN in all others."""
    marks = [(0.0, 1.0)[: 1 + f.may_miss] if f.group in groups else (torch.nan,) * (1 + f.may_miss) for f in table]
    return torch.tensor([mark for of_feature in marks for mark in of_feature])


def _columns(table: tuple[Feature, ...], view: View) -> Tensor:
    columns = []
    for feature in table:
        value = feature.value(view).float()
        if feature.may_miss:
            missing = value.isnan()
            columns += [value.where(~missing, 0.0), missing.float()]
        else:
            columns.append(value)
    return torch.stack(columns, -1)


def _rows(rows: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(rows.view(-1, *[1] * (no.ndim - 1)), yes, no)
