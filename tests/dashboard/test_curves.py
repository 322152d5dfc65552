"""Curves of a run: the same numbers as the reports, in bounded memory, whatever stands in the log."""

import json
import math
from dataclasses import asdict, fields
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.dashboard import curves as module
from esper.dashboard.curves import COLUMNS, OF_HEADS, Curves, lines
from esper.leyline.json_records import jsonable
from esper.leyline.reports import Anomaly, HeadReport, UpdateReport
from telemetry_toys import arm, exam, report

HEAD = HeadReport("op", 1, 0.25, None, 0.5, None, None, 0.1, 0.1)
NUMBERS = st.floats(-1e6, 1e6) | st.none()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*COLUMNS, "x", "name"]), inner),
    max_leaves=10,
)


def plain(update: int, **values):
    return jsonable(asdict(report(update, **values).brief()))


PLAIN = plain(0)


def made(records, limit: int = module.LIMIT) -> Curves:
    found = Curves(limit)
    for record in records:
        found.add(record)
    return found


def test_every_column_and_head_number_is_a_field_of_the_reports():
    assert set(COLUMNS) <= {field.name for field in fields(UpdateReport)}
    assert set(OF_HEADS) <= {field.name for field in fields(HeadReport)}


def test_curves_are_the_numbers_of_the_reports():
    ops, planted = {"WAIT": 3, "PRUNE": 1}, {"norm": 0, "twin": 2}
    values = {"heads": (HEAD,), "ops": ops, "planted": planted, "seconds": {"collect": 1.0, "learn": 0.5}}
    shown = made([plain(0, objective=0.25, **values), plain(1, objective=None, **values)]).view(600)
    assert shown["x"] == [0, 1]
    assert shown["updates"] == 2
    assert shown["columns"]["objective"] == [0.25, None]
    assert shown["columns"]["seconds"] == [1.5, 1.5]
    assert shown["low"] == {"objective": [0.25, None]} == shown["high"]
    assert shown["mix"] == {"WAIT": [0.75, 0.75], "PRUNE": [0.25, 0.25]}
    assert shown["planted"] == {"norm": [0, 0], "twin": [1, 1]}
    assert shown["heads"] == {"op": {"entropy": [0.5, 0.5], "approx_kl": [0.25, 0.25]}}
    assert shown["skipped"] == 0
    assert shown["note"] is None


def test_old_names_of_fields_are_understood():
    new = plain(0, approx_kl=0.25, grad_norm=3.0, heads=(HEAD,))
    old = json.loads(json.dumps(new).replace('"approx_kl"', '"kl"').replace('"grad_norm"', '"gradient"'))
    assert old != new
    assert made([old]).view(600) == made([new]).view(600)


@given(st.lists(NUMBERS, min_size=1, max_size=200), st.integers(1, 50), st.sampled_from([2, 8, 64]))
def test_merged_neighbours_keep_means_and_extremes(values, points, limit):
    found = made(({**PLAIN, "update": i, "objective": value} for i, value in enumerate(values)), limit)
    shown = found.view(points)
    assert len(found.x) <= limit
    assert len(shown["x"]) <= points
    assert shown["x"] == sorted(set(shown["x"]))
    assert shown["x"][-1] == len(values) - 1
    known = [value for value in values if value is not None]
    lows, highs = ([y for y in shown[end]["objective"] if y is not None] for end in ("low", "high"))
    assert bool(lows) == bool(highs) == bool(known)
    assert min(lows, default=0) == pytest.approx(min(known, default=0), rel=1e-5)
    assert max(highs, default=0) == pytest.approx(max(known, default=0), rel=1e-5)
    begins = [0, *(x + 1 for x in shown["x"])]
    for begin, end, y in zip(begins, begins[1:], shown["columns"]["objective"], strict=False):
        here = [value for value in values[begin:end] if value is not None]
        assert (y is None) == (not here)
        assert y is None or y == pytest.approx(mean(here), rel=1e-4, abs=1e-4 * max(map(abs, here)))


def test_a_name_that_comes_late_keeps_its_place():
    found = made([plain(0, planted={"norm": 1}), plain(1, planted={"norm": 1, "twin": 3})])
    assert found.view(600)["planted"] == {"norm": [1, 0.25], "twin": [0, 0.75]}
    assert found.view(1)["planted"] == {"norm": [0.4], "twin": [0.6]}


def test_shares_of_nothing_are_unknown():
    assert made([plain(0, ops={"WAIT": 0})]).view(600)["mix"] == {"WAIT": [None]}


@given(st.lists(JSON | st.builds(lambda x, n: {"update": n, **(x if isinstance(x, dict) else {})}, JSON, JSON)))
def test_nothing_in_a_log_is_an_error(records):
    shown = made(records).view(10)
    json.dumps(shown, allow_nan=False)
    assert shown["skipped"] >= sum(not isinstance(record, dict) for record in records)


def test_what_is_no_report_is_counted_and_said():
    shown = made([plain(0), None, {"update": -1}, {"update": True}, plain(0), plain(1)]).view(600)
    assert shown["x"] == [0, 1]
    assert shown["skipped"] == 4
    assert shown["note"] == "4 lines are damaged and left out."
    assert made([None]).view(600, note="More.")["note"] == "More. 1 line is damaged and left out."


def test_anomalies_are_told_once_with_their_latest_words():
    told = [Anomaly(i, "drift", "gradient", f"it is {i}", "lower lr") for i in range(1000)]
    (shown,) = made(plain(i, anomalies=(told[i],)) for i in range(1000)).view(10)["anomalies"]
    updates = shown.pop("updates")
    assert shown == {
        "kind": "drift",
        "where": "gradient",
        "count": 1000,
        "explanation": "it is 999",
        "suggestion": "lower lr",
    }
    assert 100 <= len(updates) <= 200
    assert updates[0] == 0
    assert updates[-1] > 990


def test_a_hostile_log_cannot_make_curves_grow():
    names = [f"name {i}" for i in range(5000)]
    anomalies = [{"kind": name, "where": "x" * 9999} for name in names]
    record = {"update": 0, "ops": dict.fromkeys(names, 1), "heads": [{"name": n, "entropy": 1} for n in names]}
    found = made([{**record, "update": i, "anomalies": anomalies} for i in range(3)])
    assert len(found.series) <= module.MOST_SERIES
    assert len(found.anomalies) <= module.MOST_ANOMALIES
    assert len(json.dumps(found.view(600))) < 100_000


def test_lines_show_never_and_the_arms_of_exams():
    one = exam(arm("learned"), arm("never", 0.1, 0.0, 0.2))
    assert lines(0.25, []) == [{"label": "never grows", "value": 0.25}]
    assert lines(None, [one]) == [{"label": "exam: learned", "value": 0.5}, {"label": "exam: never", "value": 0.5}]
    other = exam(arm("learned"), arm("random", 0.1, 0.0, 0.2))
    assert lines(None, [one, other]) == [{"label": "exam: learned", "value": 0.5}], "only arms of all exams"


def test_numbers_that_are_not_finite_are_unknown():
    shown = made([{"update": 0, "objective": math.inf, "score": math.nan, "growth": 10**400}]).view(1)
    assert [shown["columns"][name] for name in ("objective", "score", "growth")] == [[None]] * 3
    shown = made([{"update": i, "score": 1e308} for i in range(4)]).view(1)
    assert shown["columns"]["score"] == [None], "their sum is infinite"
