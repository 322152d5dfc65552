"""Records as JSON for pages: exams, episodes, gardens and growths, whatever stands in the files."""

import json
import math
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.dashboard.growth_log import MOST_EVENTS, MOST_POINTS, GrowthLog
from esper.dashboard.plain import CUT, MANY, count, inside, number, sentence, text, tidy
from esper.dashboard.views import (
    LOWER_IS_BETTER,
    decisions_in,
    exam_view,
    facts,
    garden_fleets,
    garden_frames,
    growth_facts,
    hosts_of,
    life_row,
    life_view,
    mean_interval,
)
from esper.exam.records import Interval
from esper.leyline import objectives
from esper.leyline.reports import EpochReport, SlotReport
from telemetry_toys import arm, exam, garden, life

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=20,
)
HEADER = {"name": "GPT", "parameters": 100, "blocks": 2, "budget": 1e18, "options": {"total": 10}}


def point(step: int, loss: float | None = 1.0, **values):
    return {"point": {"step": step, "flops": step * 10, "parameters": 100, "loss": loss, "metric": None, **values}}


def event(step: int, kind: str, **values):
    known = {"kind": kind, "step": step, "progress": 0.5, "flops": step * 10, "parameters": 200, "loss": None}
    return {"event": {**known, "depth": {"h": 3}, "detail": "h: 2", "blocks": 3, **values}}


def grown(*lines) -> GrowthLog:
    found = GrowthLog()
    for line in lines:
        found.add(line)
    return found


@given(JSON)
def test_anything_can_be_shown(value):
    shown = tidy(value)
    assert json.loads(json.dumps(shown, allow_nan=False)) == shown


def test_what_is_too_deep_or_long_is_cut():
    deep = shallow = []
    for _ in range(900):
        deep = [deep]
    assert CUT in json.dumps(tidy(deep), ensure_ascii=False)
    assert tidy([[shallow]]) == [[[]]]
    assert len(tidy(list(range(MANY + 5)))) == MANY + 1
    assert tidy(dict.fromkeys(range(MANY + 5)))[CUT] == "5 more"
    assert len(tidy("x" * 10_000)) == 2000


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("<b>plain</b> text", "<b>plain</b> text"),
        ("two\nlines\tand\x00\x1b[31m", "two lines and\ufffd\ufffd[31m"),
        ("right \u202e left", "right \ufffd left"),
        ("half \ud800", "half \ufffd"),
        (b"\xff name".decode("utf-8", "surrogateescape"), "\ufffd name"),
        ("ü 𝔼 日本", "ü 𝔼 日本"),
        (3, None),
    ],
)
def test_text_is_clean(given, shown):
    assert text(given) == shown
    assert shown is None or shown.encode()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (ValueError("limit is 3"), "Limit is 3."),
        ("exam.json is damaged.", "exam.json is damaged."),
        ("a\nb", "A b."),
        ("", "?."),
    ],
)
def test_errors_are_sentences(given, said):
    assert sentence(given) == said


def test_numbers_are_finite_and_counts_are_whole():
    assert [number(x) for x in (1, 0.5, True, "1", math.nan, math.inf, 10**400)] == [1, 0.5, *[None] * 5]
    assert [count(x) for x in (0, 3, -1, 1.0, True, 2**60)] == [0, 3, *[None] * 4]
    assert inside({"a": [{"b": 1}]}, "a", 0, "b") == 1
    assert inside({"a": [{"b": 1}]}, "a", 1, "b") is inside("text", 0) is inside(None, "a") is None


def test_an_exam_for_a_page_has_all_that_the_contract_names():
    ours = replace(arm("learned"), scores=(0.25, 0.75), flops=2e18)
    told = exam_view(exam(ours, arm("never", 0.1, 0.05, 0.2)))
    assert told["setting"] == "digits, cnn2d 8-8"
    assert {"sentence", "about", "policy", "metric", "data", "hosts", "rent", "budget", "episode"} <= told.keys()
    first, second = told["arms"]
    assert (first["name"], first["own"], first["difference"]) == ("learned", True, None)
    assert (second["name"], second["own"], second["verdict"]) == ("never", False, "better")
    assert second["does"] == "never grows"
    assert second["difference"] == {"mean": 0.1, "low": 0.05, "high": 0.2}
    assert (first["metric"], first["low"], first["high"], first["j"]) == (0.5, 0.4, 0.6, 0.5)
    assert (first["score"], first["score_low"], first["score_high"]) == pytest.approx((0.5, 0.01, 0.99))
    assert second["score"] is None
    assert {"growth", "params", "flops", "lr", "plan"} <= first.keys()


def test_metrics_of_which_less_is_better_are_those_of_the_objectives():
    known = (objectives.CLASSIFICATION, objectives.LANGUAGE, objectives.REGRESSION)
    assert {o.metric_name for o in known if o.direction == "min"} == set(LOWER_IS_BETTER)
    assert exam_view(replace(exam(arm("learned")), metric="loss"))["lower_is_better"] is True


def test_an_exam_with_impossible_numbers_is_shown_too():
    ours = replace(arm("learned"), flops=math.inf, scores=(math.nan, math.inf), j=math.nan)
    told = exam_view(replace(exam(ours, arm("never", math.nan, 0, 0)), budget=0.0))
    json.dumps(told, allow_nan=False)
    assert told["about"] == ""


def test_an_interval_of_a_mean():
    assert mean_interval([]) is mean_interval([math.nan]) is None
    assert mean_interval([0.5]) == Interval(0.5, 0.5, 0.5)
    found = mean_interval([0.0, 1.0] * 50)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((0.5 - 0.0985, 0.5 + 0.0985), abs=1e-3)


def test_an_episode_is_shown_beside_the_equal_host_that_never_grew():
    slot = SlotReport("s0", "TRAINING", 0.0, "norm", math.nan)
    epoch = EpochReport(0, "GERMINATE", False, 1.0, 1.1, 0.5, 0.5, 100, 0.25, 1000, (slot,), ("WAIT",), {"op": {}})
    grew, never = asdict(replace(life("WAIT"), epochs=(epoch,))), asdict(life("WAIT", "WAIT"))
    told = life_view(grew, never)
    assert (told["task"], told["kind"], told["arm"], told["host"]) == ("digits", "cnn2d 8-8", "learned", 0)
    assert told["slots"] == ["s0"]
    assert told["never"] == [0.5, 0.5]
    assert told["epochs"][0]["legal"] == ["WAIT"]
    assert told["epochs"][0]["probabilities"] == {"op": {}}
    assert told["epochs"][0]["slots"][0]["contribution"] is None
    assert life_view(grew)["never"] is None
    row = {"index": 3, "task": "digits", "kind": "cnn2d 8-8", "arm": "learned", "host": 0}
    assert life_row(3, grew) == {**row, "score": 0.5, "growth": 0.25, "epochs": 1}


def test_a_garden_is_shown_decision_by_decision():
    record = {"update": 7, "fleets": [asdict(garden())]}
    assert decisions_in(record) == 2
    assert garden_fleets(record) == [{"label": "toy, gpt 8", "hosts": 2, "slots": ["s0"]}]
    (shown,) = garden_frames(record, [1])
    assert (shown["update"], shown["decision"]) == (7, 1)
    assert shown["fleets"] == [{"cells": "b4D0", "ops": "WW", "scores": [0.3, 0.4], "born": []}]


@given(JSON, st.lists(JSON, max_size=3))
def test_nothing_in_a_file_is_an_error(value, cells):
    record = {"update": 0, "fleets": [{"cells": cells, "scores": value, "born": value, "slots": value}, value]}
    shown = [life_row(0, record), garden_fleets(record), garden_frames(record, range(decisions_in(record)))]
    shown += [garden_frames(value, [0]), garden_fleets(value), life_view({"epochs": value}, {"epochs": cells})]
    shown += [facts({"fleets": value, "learn": value}, {"device": value}), hosts_of({"fleets": [value]})]
    shown += [grown(value, {"point": value}, {"event": value}).view({"options": value, "budget": value})]
    shown += [growth_facts({"options": value, "budget": value}), growth_facts({"options": {"slots": value}})]
    json.dumps(shown, allow_nan=False)


def test_facts_leave_out_what_is_not_known():
    fleet = {"task": "mnist1d", "host": "cnn1d", "widths": [4, 4, 4]}
    recipe = {"name": "smoke", "fleets": [fleet, fleet], "learn": {"rent": {"end": 0.02}}}
    assert facts(recipe, {"device": "cpu", "threads": 2}) == [
        ["Recipe", "smoke"],
        ["Host", "mnist1d, cnn1d 4-4-4"],
        ["Device", "cpu, 2 threads"],
        ["Price of growth", "0.02"],
    ]
    assert facts({}, {"device": "cpu", "threads": 1}) == [["Device", "cpu, 1 thread"]]
    assert facts({}, {}) == []


def test_a_growth_is_told_from_its_log():
    told = grown(point(1, 3.0), event(5, "deepen"), point(9, 2.0, metric=0.5), event(9, "finish")).view(HEADER)
    assert told["sentence"] == (
        "Grew from 2 to 3 blocks (100 to 200 parameters) in 9 steps; loss 3 to 2; 90 FLOP spent of 1 EFLOP."
    )
    assert (told["name"], told["steps"], told["spent"], told["budget"]) == ("GPT", 9, 90, 1e18)
    assert (told["is_over"], told["parameters"], told["blocks"]) == (True, [100, 200], [2, 3])
    assert told["points"] == {
        "flops": [10, 90],
        "loss": [3.0, 2.0],
        "metric": [None, 0.5],
        "parameters": [100, 100],
    }
    assert told["events"][0] == {
        "kind": "deepen",
        "step": 5,
        "share": 0.5,
        "flops": 50,
        "parameters": 200,
        "blocks": 3,
        "loss": None,
        "detail": "h: 2",
    }
    assert told["options"] == {"total": 10}


def test_a_growth_whose_budget_is_spent_is_over():
    header = {**HEADER, "budget": 90}
    assert [grown(point(step)).view(header)["is_over"] for step in (8, 9)] == [False, True]


def test_facts_of_a_growth():
    options = {"policy": "Doubling", "max_growth": 4.0, "slots": ["mlp", "attn"]}
    assert growth_facts({**HEADER, "options": options}) == [
        ["Policy", "Doubling"],
        ["Budget", "1 EFLOP"],
        ["Largest growth", "4"],
        ["Slots", "mlp, attn"],
    ]
    assert growth_facts({}) == []


def test_a_growth_of_exaflops_is_no_damage():
    told = grown(point(1, flops=10**24)).view(HEADER)
    assert told["spent"] == 1e24
    assert grown(point(2), point(1), {"point": {}}, None).skipped == 3


def test_a_long_growth_keeps_its_ends_in_bounded_memory():
    steps = 3 * MOST_POINTS + 2
    log = grown(*(point(i, float(i)) for i in range(steps)), *(event(steps, "plant") for _ in range(3 * MOST_EVENTS)))
    told = log.view(HEADER)
    losses = told["points"]["loss"]
    assert (losses[0], losses[-1]) == (0, steps - 1)
    assert len(losses) <= MOST_POINTS + 1
    assert len(told["events"]) <= MOST_EVENTS


def test_a_growth_without_a_header_is_told_as_far_as_it_is_known():
    told = grown(event(5, "deepen")).view({})
    assert (told["name"], told["budget"], told["blocks"]) == ("the model", None, [3, 3])
    assert grown().view({})["sentence"] == "Has not been trained yet (0 parameters)."
