"""Features: one row of a table each, scale-free, unknown things marked and not guessed."""

import math
from functools import cache
from math import log

import pytest
import torch

from esper.leyline.lifecycle import Stage
from esper.tamiyo.features import (
    HIDEABLE,
    HOST_FEATURES,
    SLOT_FEATURES,
    View,
    column_names,
    empty_history,
    features,
    hidden,
    remember,
    width,
)
from small_fleets import make_env
from small_views import CPU, NAN, make_view

HAND_MADE = make_view(
    [
        [Stage.HOLDING, Stage.DORMANT, Stage.TRAINING],
        [Stage.EMBARGOED, Stage.RESETTING, Stage.GERMINATED],
        [Stage.BLENDING, Stage.FOSSILIZED, Stage.PRUNED],
    ],
    age=[6, 15, 12],
    score=[0.4, 0.7, 0.9],
    metric=[41.0, 72.0, 93.0],
    loss=[1.8, 0.9, 0.6],
    train_loss=[1.2, NAN, 1.0],
    growth=[0.5, 2.0, 4.0],
    flops=[3e6, 4e6, 5e6],
    scores=[[0.1, 0.22, 0.25, 0.33, 0.4], [NAN, NAN, NAN, NAN, 0.7], [NAN, NAN, 0.84, 0.87, 0.9]],
    best=[0.45, NAN, 0.92],
    since_best=[3, 0, 1],
    first_loss=[1.6, NAN, 4.0],
    rent=[0.02, 0.03, 0.05],
    budget=[0.8, math.inf, 1.0],
    slot_age=[[4, 9, 2], [1, 0, 3], [5, 7, 6]],
    seed_age=[[11, 0, 8], [0, 0, 10], [13, 14, 12]],
    births=[[1, 0, 2], [3, 4, 5], [6, 7, 8]],
    blueprint=[[1, -1, 3], [-1, -1, 2], [0, 2, 1]],
    alpha=[[0.9, 0.0, 0.1], [0.2, 0.3, 0.4], [0.5, 0.6, 0.7]],
    alpha_start=[[0.11, 0.12, 0.13], [0.14, 0.15, 0.16], [0.17, 0.18, 0.19]],
    alpha_target=[[0.91, 0.92, 0.93], [0.94, 0.95, 0.96], [0.97, 0.98, 0.99]],
    contribution=[[0.03, NAN, -0.02], [NAN, NAN, 0.01], [0.04, 0.05, -0.06]],
    share=[[0.5, NAN, 0.25], [NAN, NAN, 1.5], [0.75, 0.125, 2.0]],
    pull=[[1.0, 2.0, 5.0], [3.0, 3.0, 4.0], [NAN, NAN, NAN]],
    healthy=[[True, False, True], [False, False, True], [True, True, False]],
)
HOST = {
    "time_left": [14 / 20, 5 / 20, 8 / 20],
    "decisions_left": [log(15) / 3, log(6) / 3, log(9) / 3],
    "score": [0.4, 0.7, 0.9],
    "lead": [0.2 / 0.8, 0.5 / 0.8, 0.7 / 0.8],
    "rise_1": [0.7, NAN, 0.3],
    "rise_3": [0.9, NAN, NAN],
    "below_best": [-0.5, NAN, -0.2],
    "plateau": [3 / 20, 0, 1 / 20],
    "loss": [log(1.9), log(1.45), log(1.3)],
    "train_loss": [log(1.6), NAN, log(1.5)],
    "fall": [log(1.75), NAN, log(1.25)],
    "gap": [log(1.3), NAN, -log(1.2)],
    "parameters": [0.5, 0.5, 0.5],
    "growth": [log(1.5), log(3), log(5)],
    "rent": [0.2, 0.3, 0.5],
    "paying": [0.2 * log(1.5), 0.3 * log(3), 0.5 * log(5)],
    "budget_left": [0.3 / 0.8, 1, 0],
    "pace": [0, 0, 0],
    "seeds": [2 / 3, 1 / 3, 1],
}
SLOTS = {
    "is_dormant": [[0, 1, 0], [0, 0, 0], [0, 0, 0]],
    "is_germinated": [[0, 0, 0], [0, 0, 1], [0, 0, 0]],
    "is_training": [[0, 0, 1], [0, 0, 0], [0, 0, 0]],
    "is_blending": [[0, 0, 0], [0, 0, 0], [1, 0, 0]],
    "is_holding": [[1, 0, 0], [0, 0, 0], [0, 0, 0]],
    "is_fossilized": [[0, 0, 0], [0, 0, 0], [0, 1, 0]],
    "is_pruned": [[0, 0, 0], [0, 0, 0], [0, 0, 1]],
    "is_embargoed": [[0, 0, 0], [1, 0, 0], [0, 0, 0]],
    "is_resetting": [[0, 0, 0], [0, 1, 0], [0, 0, 0]],
    "position": [[0, 0.5, 1]] * 3,
    "age": [[0.2, 0.45, 0.1], [0.05, 0, 0.15], [0.25, 0.35, 0.3]],
    "seed_age": [[0.55, 0, 0.4], [0, 0, 0.5], [0.65, 0.7, 0.6]],
    "births": [[log(2), 0, log(3)], [log(4), log(5), log(6)], [log(7), log(8), log(9)]],
    "alpha": [[0.9, 0, 0.1], [0.2, 0.3, 0.4], [0.5, 0.6, 0.7]],
    "alpha_target": [[0.91, 0.92, 0.93], [0.94, 0.95, 0.96], [0.97, 0.98, 0.99]],
    "contribution": [[0.3, NAN, -0.2], [NAN, NAN, 0.1], [0.4, 0.5, -0.6]],
    "seed_parameters": [[log(1.2), NAN, log(2.2)], [NAN, NAN, log(2.1)], [log(1.1), log(1.7), log(3)]],
    "pull": [[1 / 8, 2 / 8, 5 / 8], [0.3, 0.3, 0.4], [NAN, NAN, NAN]],
    "healthy": [[1, 0, 1], [0, 0, 1], [1, 1, 0]],
    "share": [[log(1.5), NAN, log(1.25)], [NAN, NAN, log(2.5)], [log(1.75), log(1.125), log(3)]],
    "dearest": [[log(1.4), log(2.8), log(3)]] * 3,
}


@pytest.mark.parametrize(("table", "expected"), [(HOST_FEATURES, HOST), (SLOT_FEATURES, SLOTS)])
def test_every_feature_reads_what_it_says(table, expected):
    """Values that may be unknown are unknown for some host, read 0 there, and are marked."""
    values = features(HAND_MADE)[expected is SLOTS]
    columns = dict(zip(column_names(table), values.unbind(-1), strict=True))
    for name, numbers in expected.items():
        known = torch.tensor(numbers, dtype=torch.float32)
        torch.testing.assert_close(columns.pop(name), known.nan_to_num(0.0), msg=lambda m, name=name: f"{name}: {m}")
        if known.isnan().any():
            assert torch.equal(columns.pop(f"no_{name}"), known.isnan().float()), name
    assert not columns
    assert len({str(numbers) for numbers in expected.values()}) == len(expected), "no feature can pass for another"


@cache
def life(kind: str) -> list[View]:
    """Return the views of three hosts up to their fourth decision; the first plants a seed at once."""
    env = make_env(kind, 3, episode=6)
    signals, fresh = env.reset(), torch.ones(3, dtype=torch.bool)
    history = remember(empty_history(3, CPU), signals, fresh)
    plant = torch.tensor([env.fleet.space.action("GERMINATE", slot="s0"), *[env.fleet.space.action()] * 2])
    views = []
    for decision in range(5):
        views.append(View(signals, history, env.setting, torch.full((3,), 0.02), torch.full((3,), torch.inf)))
        signals = env.step(plant if decision == 0 else torch.zeros_like(plant)).signals
        history = remember(history, signals, ~fresh)
    return views


@pytest.mark.parametrize("kind", ["mlp", "cnn1d", "cnn2d", "transformer"])
def test_widths_come_from_the_table_and_everything_is_finite_and_small(kind):
    for view in life(kind):
        seen = features(view)
        assert seen.host.shape == (3, width(HOST_FEATURES))
        assert seen.slots.shape == (3, 2, width(SLOT_FEATURES))
        for x in seen:
            assert x.isfinite().all()
            assert x.abs().max() < 20


def column(table, values, name):
    return values[..., column_names(table).index(name)]


def test_what_is_unknown_is_marked():
    newborn, *_, later = [features(view) for view in life("mlp")]
    for name in ("rise_1", "train_loss", "gap"):
        assert (column(HOST_FEATURES, newborn.host, f"no_{name}") == 1).all()
        assert (column(HOST_FEATURES, later.host, f"no_{name}") == 0).all()
    marks = column(SLOT_FEATURES, later.slots, "no_contribution")
    assert marks[0, 0] == 0, "a seed's contribution is known from its first epoch"
    assert marks[1:].all()


HIDDEN = {"telemetry": {"healthy": 0.0, "share": 0.0, "no_share": 1.0}, "size": {"parameters": 0.0}}


def test_a_hidden_group_reads_as_unknown():
    """All other columns are NaN: they stay unchanged."""
    assert set(HIDDEN) == set(HIDEABLE)
    for groups in ([], ["telemetry"], ["size"], ["telemetry", "size"]):
        found = {}
        for table in (HOST_FEATURES, SLOT_FEATURES):
            found |= dict(zip(column_names(table), hidden(table, groups).tolist(), strict=True))
        reads = {name: value for group in groups for name, value in HIDDEN[group].items()}
        assert {name: value for name, value in found.items() if not math.isnan(value)} == reads


def test_names_are_unique():
    for table in (HOST_FEATURES, SLOT_FEATURES):
        names = column_names(table)
        assert len(set(names)) == len(names) == width(table)


def test_history_by_hand():
    """The second host is replaced after three decisions. A rise of less than 0.001 does not count."""
    lives = [
        ([0.3, 0.5], [NAN, NAN], [True, True]),
        ([0.5, 0.6], [2.0, 1.0], [False, False]),
        ([0.5005, 0.58], [1.5, 0.9], [False, False]),
        ([0.45, 0.1], [1.4, NAN], [False, True]),
        ([0.49, 0.2], [1.3, 3.0], [False, False]),
        ([0.47, 0.15], [1.2, 2.5], [False, False]),
    ]
    signals, history = make_view([[Stage.DORMANT] * 3] * 2).signals, empty_history(2, CPU)
    for score, loss, fresh in lives:
        now = signals._replace(score=torch.tensor(score), train_loss=torch.tensor(loss))
        history = remember(history, now, torch.tensor(fresh))
    scores = torch.tensor([[0.5, 0.5005, 0.45, 0.49, 0.47], [NAN, NAN, 0.1, 0.2, 0.15]])
    torch.testing.assert_close(history.scores, scores, equal_nan=True)
    torch.testing.assert_close(history.best, torch.tensor([0.5, 0.2]))
    assert history.since_best.tolist() == [4, 1]
    assert history.first_loss.tolist() == [2.0, 3.0]
