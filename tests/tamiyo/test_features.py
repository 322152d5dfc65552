"""Features: one row of a table each, scale-free, unknown things marked and not guessed."""

import math

import pytest
import torch

from esper.tamiyo.features import (
    HIDEABLE,
    HOST_FEATURES,
    SLOT_FEATURES,
    WINDOW,
    View,
    column_names,
    features,
    hidden,
    no_history,
    remember,
    width,
)
from small_fleets import make_env


def view_of(kind: str, decisions: int = 0, hosts: int = 3) -> View:
    env = make_env(kind, hosts, episode=6)
    signals = env.reset()
    everyone = torch.ones(hosts, dtype=torch.bool)
    history = remember(no_history(hosts, torch.device("cpu")), signals, everyone)
    plant = torch.tensor([env.fleet.space.action("GERMINATE", slot="s0"), *[env.fleet.space.action()] * (hosts - 1)])
    for decision in range(decisions):
        step = env.step(plant if decision == 0 else torch.zeros_like(plant))
        signals = step.signals
        history = remember(history, signals, step.truncated | step.terminated)
    return View(signals, history, env.setting, torch.full((hosts,), 0.02), torch.full((hosts,), torch.inf))


@pytest.mark.parametrize("kind", ["mlp", "cnn1d", "cnn2d", "transformer"])
@pytest.mark.parametrize("decisions", [0, 1, 4])
def test_widths_come_from_the_table_and_everything_is_finite_and_small(kind, decisions):
    seen = features(view_of(kind, decisions))
    assert seen.host.shape == (3, width(HOST_FEATURES))
    assert seen.slots.shape == (3, 2, width(SLOT_FEATURES))
    for x in seen:
        assert x.isfinite().all()
        assert x.abs().max() < 20


def column(table, values, name):
    return values[..., column_names(table).index(name)]


def test_what_is_unknown_is_marked():
    fresh, later = features(view_of("mlp")), features(view_of("mlp", 3))
    for name in ("rise_1", "train_loss", "gap"):
        assert (column(HOST_FEATURES, fresh.host, f"no_{name}") == 1).all()
        assert (column(HOST_FEATURES, later.host, f"no_{name}") == 0).all()
    marks = column(SLOT_FEATURES, later.slots, "no_contribution")
    assert marks[0, 0] == 0, "a seed's contribution is known from its first epoch"
    assert marks[1:].all()


@pytest.mark.parametrize("group", HIDEABLE)
def test_who_is_blind_to_a_group_reads_it_as_unknown_and_everything_else(group):
    for table in (HOST_FEATURES, SLOT_FEATURES):
        groups = {f.name: f.group for f in table}
        names = column_names(table)
        reads = dict(zip(names, hidden(table, [group]).tolist(), strict=True))
        blind = {name for name, value in reads.items() if not math.isnan(value)}
        assert blind == {name for name in names if groups[name.removeprefix("no_")] == group}
        assert all(reads[name] == name.startswith("no_") for name in blind)


@pytest.mark.parametrize("kind", ["mlp", "cnn1d", "cnn2d", "transformer"])
def test_an_empty_slot_says_what_its_dearest_seed_would_cost(kind):
    view = view_of(kind)
    told = column(SLOT_FEATURES, features(view).slots, "dearest")
    assert torch.equal(told, view.setting.seed_parameters.amax(1).log1p().float().expand(3, 2))


def test_names_are_unique():
    for table in (HOST_FEATURES, SLOT_FEATURES):
        names = column_names(table)
        assert len(set(names)) == len(names) == width(table)


def test_history_is_a_hosts_own_and_ends_with_its_life():
    hosts = torch.device("cpu")
    signals = view_of("mlp").signals
    history = no_history(3, hosts)
    for score in (0.3, 0.5, 0.4, 0.4):
        fresh = torch.zeros(3, dtype=torch.bool)
        history = remember(history, signals._replace(score=torch.full((3,), score)), fresh)
    assert history.best.tolist() == pytest.approx([0.5] * 3)
    assert history.since_best.tolist() == [2, 2, 2]
    history = remember(history, signals._replace(score=torch.full((3,), 0.1)), torch.tensor([False, True, False]))
    assert history.since_best.tolist() == [3, 0, 3]
    assert history.scores[1].isnan().sum() == WINDOW - 1
    assert history.best[1].item() == pytest.approx(0.1)
