"""Turn signals into features: two tables, of hosts and of slots, for every task and host.

All features are ratios, shares or symlogs, so that one controller can serve hosts of any size; constant factors bring
small values to the order of 1. An unknown value reads 0, and a second column marks it.
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
"""Scores of each host that are remembered, in epochs."""
HIDEABLE = ("telemetry", "size")
"""Groups of features that a field of `ControllerConfig` can hide."""
IMPROVEMENT = 1e-3
"""Smallest rise of the score that counts as progress."""


class ScoreHistory(NamedTuple):
    """The results of each host in its episode so far; NaN where there are none yet."""

    scores: Float[Tensor, "N W"]
    """Scores of the last epochs, the newest last."""
    best: Float[Tensor, " N"]
    since_best: Int[Tensor, " N"]
    """Decisions since the score last rose."""
    first_loss: Float[Tensor, " N"]


class View(NamedTuple):
    """Everything that a policy may base a decision on, for N hosts."""

    signals: Signals
    history: ScoreHistory
    setting: Setting
    rent: Float[Tensor, " N"]
    """Price of growth in the objective, J = score − rent · ln(1 + growth)."""
    budget: Float[Tensor, " N"]
    """Largest growth allowed; infinite without a limit."""


class Features(NamedTuple):
    """The feature vectors of N hosts and of their slots."""

    host: Float[Tensor, "N F"]
    slots: Float[Tensor, "N S G"]


def symlog(x: Tensor) -> Tensor:
    """Return the logarithm of 1 + |x|, with the sign of x."""
    return x.sign() * torch.log1p(x.abs())


def lead(score: Tensor, chance: float) -> Tensor:
    """Rescale a score so that chance is 0 and a perfect score is 1."""
    return (score - chance) / (1 - chance)


def earlier(view: View, epochs: int) -> Tensor:
    """Return the rise of the score over a number of epochs."""
    return view.signals.score - view.history.scores[:, -1 - epochs]


@dataclass(frozen=True)
class Feature:
    """The name and formula of one feature, of hosts or of slots."""

    name: str
    value: Callable[[View], Tensor]
    group: Literal["base", "telemetry", "size"] = "base"
    may_miss: bool = False
    """Whether the value can be unknown, which a second column then marks."""


def _slot_position(view: View) -> Tensor:
    stage = view.signals.slots.stage
    return (torch.arange(stage.shape[1], device=stage.device) / max(stage.shape[1] - 1, 1)).expand(stage.shape)


def _of_slot(view: View, table: Float[Tensor, " S"]) -> Tensor:
    """Expand one value per slot to all hosts."""
    return table.to(view.signals.score).expand(view.signals.slots.stage.shape)


def _of_seed(view: View, table: Tensor) -> Tensor:
    """Look up each slot's seed in a table of slots and blueprints; NaN where there is no seed."""
    blueprint = view.signals.slots.blueprint
    slot = torch.arange(blueprint.shape[1], device=blueprint.device)
    value = table.to(blueprint.device)[slot, blueprint.clamp(min=0)].float()
    return value.where(blueprint != NO_BLUEPRINT, torch.nan)


def _time_left(view: View) -> Tensor:
    """Return the share of the episode that is left: of its budget, or of its epochs."""
    return 1 - (view.signals.age / view.setting.episode if view.signals.spent is None else view.signals.spent)


def _decisions_left(view: View) -> Tensor:
    """Return how many epochs are left: on a budget, as many as it pays for in the host's present state."""
    if view.signals.pace is None:
        return (view.setting.episode - view.signals.age).float()
    return (view.setting.episode * _time_left(view) / view.signals.pace).clamp(min=0).float()


HOST_FEATURES: tuple[Feature, ...] = (
    Feature("time_left", _time_left),
    Feature("decisions_left", lambda v: symlog(_decisions_left(v)) / 3),
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
    Feature("pace", lambda v: torch.zeros_like(v.signals.score) if v.signals.pace is None else v.signals.pace.log()),
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
    """Return the number of columns of a table of features."""
    return sum(1 + feature.may_miss for feature in table)


def column_names(table: tuple[Feature, ...]) -> tuple[str, ...]:
    """Return the name of each column: features, and `no_` names for the marks of unknown values."""
    return tuple(name for f in table for name in ([f.name, f"no_{f.name}"] if f.may_miss else [f.name]))


def empty_history(num_hosts: int, device: torch.device) -> ScoreHistory:
    """Return the history of hosts without any results."""
    unknown = torch.full((num_hosts, WINDOW), torch.nan, device=device)
    none = torch.zeros(num_hosts, dtype=torch.long, device=device)
    return ScoreHistory(unknown, unknown[:, 0], none, unknown[:, 0])


def remember(history: ScoreHistory, signals: Signals, fresh: Bool[Tensor, " N"]) -> ScoreHistory:
    """Add signals to a history, after clearing the history of `fresh` hosts, whose episode has just begun."""
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
    """Return all features of N hosts."""
    return Features(_columns(HOST_FEATURES, view), _columns(SLOT_FEATURES, view))


def hidden(table: tuple[Feature, ...], groups: Collection[str]) -> Float[Tensor, " F"]:
    """Return what replaces the columns of hidden groups, which then read as unknown; NaN for all other columns."""
    marks = [(0.0, 1.0)[: 1 + f.may_miss] if f.group in groups else (torch.nan,) * (1 + f.may_miss) for f in table]
    return torch.tensor([mark for of_feature in marks for mark in of_feature])


def _columns(table: tuple[Feature, ...], view: View) -> Tensor:
    values = {feature: feature.value(view).float() for feature in table}
    unsure = torch.stack([value for feature, value in values.items() if feature.may_miss], -1)
    missing = unsure.isnan()
    pairs = zip(unsure.masked_fill(missing, 0.0).unbind(-1), missing.float().unbind(-1), strict=True)
    columns = [next(pairs) if feature.may_miss else (value,) for feature, value in values.items()]
    return torch.stack([column for of_feature in columns for column in of_feature], -1)


def _rows(rows: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(rows.view(-1, *[1] * (no.ndim - 1)), yes, no)
