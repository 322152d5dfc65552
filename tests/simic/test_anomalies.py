"""Anomalies are seen, explained, and remembered for a while; a healthy run has none."""

import dataclasses
import math

import pytest

from esper.leyline.errors import EsperError
from esper.leyline.reports import HeadReport, UpdateReport
from esper.simic import CollectConfig, LearnConfig, PPOConfig, train_controller
from esper.simic.anomalies import HEADS, AnomalyDetector, Bounds, gradient_health
from small_fleets import controller_for, make_env
from telemetry_toys import needed_fields

HEAD = {"samples": 100, "approx_kl": 0.01, "clip_fraction": 0.1, "entropy": 0.7, "ratio_min": 0.8, "ratio_max": 1.2}
UNUSED = dict.fromkeys(HEAD, None) | {"samples": 0}


def report(update: int = 0, grad_norm: float = 1.0, heads: dict | None = None, **values) -> UpdateReport:
    numbers = {f.name: 1 if f.type is int else 0.1 for f in needed_fields(UpdateReport)}
    rows = tuple(
        HeadReport(name=name, grad_norm=1.0, grad_norm_clipped=0.5, **(HEAD | (heads or {}).get(name, {})))
        for name in HEADS
    )
    numbers |= {"update": update, "grad_norm": grad_norm, "heads": rows, "ops": {}, "seconds": {}, "stopped": None}
    numbers |= {"decisions": 100, "explained_variance": 0.1}
    return UpdateReport(**(numbers | values))


SICK = {
    "ratio explosion": {"heads": {"slot": {"ratio_max": 6.0}}},
    "ratio collapse": {"heads": {"slot": {"ratio_min": 0.05}}},
    "entropy collapse": {"heads": {"slot": {"entropy": 0.001}}},
    "non-finite": {"value_loss": math.nan},
    "gradient drift": {"grad_norm": 50.0},
}


@pytest.mark.parametrize("kind", SICK)
def test_what_is_wrong_is_named_and_explained(kind):
    watch = AnomalyDetector()
    assert watch.look(report(0)) == ()
    (found,) = watch.look(report(1, **SICK[kind]))
    assert (found.kind, found.update) == (kind, 1)
    assert found.explanation
    assert found.suggestion
    assert watch.alert == 3
    for update in range(2, 5):
        watch.look(report(update))
    assert watch.alert == 0


def test_a_head_starves_once_it_has_gone_without_for_long_enough():
    watch = AnomalyDetector(Bounds(starving=3))
    found = [watch.look(report(update, heads={"tempo": UNUSED})) for update in range(6)]
    assert [len(anomalies) for anomalies in found] == [0, 0, 1, 0, 0, 0]
    assert found[2][0].where == "tempo"
    assert watch.starved["tempo"] == 6
    watch.look(report(7))
    assert watch.starved["tempo"] == 0


def test_a_warm_started_controller_is_decided_on_purpose():
    """The demo: every head imitates a plan that never prunes. Nothing in eight such updates is an anomaly."""
    watch, imitated = AnomalyDetector(), {name: {"entropy": 0.002} for name in HEADS}
    imitated |= {"op": {"entropy": 0.03}, "alpha_speed": UNUSED, "alpha_curve": UNUSED}
    assert [watch.look(report(update, heads=imitated)) for update in range(8)] == [()] * 8
    assert watch.alert == 0


@pytest.mark.parametrize(("before", "anomalies"), [(0.09, 0), (0.11, 1)])
def test_only_a_head_that_has_explored_can_collapse(before, anomalies):
    """Exploring begins at five times the entropy of a decided head: one that hovers there has not collapsed."""
    watch = AnomalyDetector()
    watch.look(report(0, heads={"slot": {"entropy": before}}))
    for update in (1, 2, 3, 4, 5):
        assert len(watch.look(report(update, heads={"slot": {"entropy": 0.01}}))) == anomalies, "as long as it lasts"


FALLS = {
    "at once": ((0.7, 0.01), 1),
    "in three updates": ((0.7, 0.11, 0.06, 0.03, 0.01), 1),
    "in four": ((0.7, 0.11, 0.09, 0.06, 0.03, 0.01), 0),
    "after it has come back": ((0.7, 0.11, 0.09, 0.06, 0.03, 0.11, 0.01), 1),
}


@pytest.mark.parametrize("fall", FALLS)
def test_a_head_collapses_at_once_and_learns_over_many_updates(fall):
    """Recipes with an entropy bonus that fades end with heads that are certain: they have had the time to learn."""
    entropies, anomalies = FALLS[fall]
    watch = AnomalyDetector()
    found = [watch.look(report(n, heads={"tempo": {"entropy": x}})) for n, x in enumerate(entropies)]
    assert [len(told) for told in found] == [0] * (len(entropies) - 1) + [anomalies]
    assert not any(watch.look(report(0, heads={"tempo": {"entropy": x}})) for x in (0.03, 0.2)), "it has recovered"


def test_a_choice_that_is_rare_may_change_much():
    """A clone of a plan makes one choice in a hundred that the plan would not make, and learns how bad it was."""
    watch = AnomalyDetector()
    for share, samples, kinds in ((0.014, 72, []), (0.049, 900, []), (0.06, 80, []), (0.06, 90, ["ratio collapse"])):
        head = {"ratio_min": 0.05, "clip_fraction": share, "samples": samples}
        assert [a.kind for a in watch.look(report(1, heads={"style": head}))] == kinds, (share, samples)


def test_few_decisions_do_not_starve_a_head():
    watch = AnomalyDetector(Bounds(starving=3))
    found = [bool(watch.look(report(n, decisions=16, heads={"tempo": UNUSED}))) for n in range(9)]
    assert found == [False] * 6 + [True, False, False], "a hundred decisions are seven times sixteen"


@pytest.mark.parametrize(("entropy", "starves"), [(0.62, False), (0.64, True)])
def test_heads_are_unused_on_purpose_where_an_op_may_have_been_left_out(entropy, starves):
    """Of three legal ops, two are enough for an entropy of 0.63: a policy may have learned never to prune."""
    watch, told = AnomalyDetector(Bounds(starving=2)), []
    for op in (0.7, entropy, entropy, entropy):
        heads = {"op": {"entropy": op}, "tempo": UNUSED | {"samples": int(op == 0.7)}}
        told += [a.kind for a in watch.look(report(1, heads=heads))]
    assert told == ["starving head"] * starves


def test_heads_are_unused_on_purpose_once_the_op_head_is_decided():
    watch, told = AnomalyDetector(Bounds(starving=2)), []
    for entropy in (0.7, 0.09, 0.7, 0.09, 0.7, 0.7):
        found = watch.look(report(1, heads={"op": {"entropy": entropy}, "tempo": UNUSED}))
        told.append([a.kind for a in found])
    assert told == [[], [], [], [], [], ["starving head"]], "it must be unused while ops are explored, twice in a row"


def test_a_critic_collapses_when_it_is_wrong_twice_in_a_row():
    """It cannot have learned before the first update, and a single update is chance where episodes are few."""
    told, watch = [], AnomalyDetector()
    for update, explained in enumerate((-9.0, -9.0, 0.5, -0.6, -0.6, None, -0.6, -0.4, -0.6, -0.6, -0.6)):
        told += [(a.kind, a.update) for a in watch.look(report(update, explained_variance=explained))]
    assert told == [("value collapse", 4), ("value collapse", 9), ("value collapse", 10)]


def test_bounds_can_be_set_for_one_head():
    watch = AnomalyDetector(Bounds(ratios={"slot": (0.01, 10.0)}))
    wide = {"ratio_max": 6.0}
    assert watch.look(report(0, heads={"slot": wide})) == ()
    assert [a.where for a in watch.look(report(1, heads={"slot": wide, "op": wide}))] == ["op"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ratios": {"slto": (0.1, 5.0)}}, "unknown head 'slto'"),
        ({"ratio_max": 0.5}, "ratio_min must lie between 0 and 1, and ratio_max above 1"),
        ({"vanishing": 1.0, "exploding": 0.1}, "vanishing"),
    ],
)
def test_impossible_bounds_are_refused(options, message):
    with pytest.raises(EsperError, match=message):
        Bounds(**options)


NEAR = {
    "ratio explosion": [{"heads": {"slot": {"ratio_max": x}}} for x in (4.9, 5.1)],
    "ratio collapse": [{"heads": {"slot": {"ratio_min": x}}} for x in (0.11, 0.09)],
    "entropy collapse": [{"heads": {"slot": {"entropy": x}}} for x in (0.021, 0.019)],
    "gradient drift": [{"grad_norm": x} for x in (9.9, 10.1)],
}


@pytest.mark.parametrize("kind", NEAR)
def test_anomalies_begin_at_their_bounds(kind):
    """One side of each bound is normal, the other is not; a usual gradient norm is 1 here."""
    for values, anomalies in zip(NEAR[kind], ([], [kind]), strict=True):
        watch = AnomalyDetector()
        watch.look(report(0))
        assert [a.kind for a in watch.look(report(1, **values))] == anomalies


def test_the_usual_gradient_is_a_moving_average():
    watch, usual = AnomalyDetector(Bounds(memory=0.75)), []
    for gradient in (1.0, 3.0, 3.0):
        watch.look(report(grad_norm=gradient))
        usual.append(watch.usual)
    assert usual == [1.0, 1.5, 1.875]


def test_it_remembers_a_few_numbers_however_long_the_run():
    watch = AnomalyDetector()
    for update in range(50):
        watch.look(report(update))
    assert len(watch.starved) == len(HEADS)
    assert watch.usual == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("gradients", "health"),
    [({}, 1.0), ({"slot": 1e-9}, 7 / 8), ({"slot": 1e-9, "tempo": 1e9}, 6 / 8), ({"op": math.nan}, 7 / 8)],
)
def test_health_is_the_share_of_heads_with_gradients_to_learn_from(gradients, health):
    heads = tuple(dataclasses.replace(head, grad_norm=gradients.get(head.name, 1.0)) for head in report().heads)
    assert gradient_health(heads, Bounds()) == pytest.approx(health)
    nobody = tuple(dataclasses.replace(head, samples=0) for head in heads)
    assert gradient_health(nobody, Bounds()) is None


@pytest.mark.parametrize("rng_seed", [0, 1, 2])
def test_a_training_that_goes_wrong_is_noticed_and_a_sound_one_is_not(rng_seed):
    """At a learning rate of 0.3 the first update already leaves the policy that acted."""
    kinds = {}
    for lr in (1e-3, 0.3):
        config = LearnConfig(updates=4, collect=CollectConfig(horizon=6), ppo=PPOConfig(lr=lr), rng_seed=rng_seed)
        env = make_env("mlp", 8, episode=6, rng_seed=rng_seed)
        reports = list(train_controller([env], controller_for(), config))
        kinds[lr] = [{a.kind for a in r.anomalies} for r in reports]
    assert kinds[1e-3] == [set()] * 4
    assert all(kinds[0.3])
    assert {"ratio collapse", "entropy collapse"} <= set.union(*kinds[0.3])


@pytest.mark.parametrize("anxious", [False, True])
def test_after_an_anomaly_reports_say_more(anxious):
    """With bounds that no update can meet, and with bounds that any can."""
    bounds = Bounds(ratio_max=1e9, ratio_min=1e-9, explained=-1e9, drift=1e-9 if anxious else 1e9)
    controller = controller_for()
    config = LearnConfig(updates=4, collect=CollectConfig(horizon=4), bounds=bounds)
    reports = list(train_controller([make_env("mlp", 4, episode=3, rng_seed=1)], controller, config))
    assert [bool(r.anomalies) for r in reports] == [False, anxious, anxious, anxious], "the first is the measure"
    assert [r.detail is not None for r in reports] == [False, False, anxious, anxious]
    for detail in (r.detail for r in reports if r.detail):
        assert detail.gradients.keys() == dict(controller.named_parameters()).keys()
        assert detail.quantiles.keys() == {"reward", "returns", "value", "error"}
        assert all(list(row) == sorted(row) for row in detail.quantiles.values())
    assert all(r.gradient_health == 1.0 for r in reports)
    assert all(r.memory is None for r in reports)
