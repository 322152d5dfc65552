"""What JSON made of a record becomes the record again, or an error that names the place."""

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Literal

import pytest

from esper.leyline.errors import EsperError
from esper.leyline.json_records import from_json, jsonable


@dataclass(frozen=True)
class Inner:
    size: int


@dataclass(frozen=True)
class Outer:
    rate: float
    name: str
    on: bool
    mode: Literal["fast", "slow"]
    pair: tuple[int, str]
    sizes: tuple[int, ...]
    inner: Inner
    table: dict[str, float]
    limit: float | None = None
    choice: int | str = 1
    facts: dict[str, float] = field(default_factory=dict)


WHOLE = Outer(0.5, "x", True, "slow", (1, "a"), (3, 4), Inner(2), {"a": 1.0}, 2.0, "b", {"b": 3.0})
NEEDED = {name: value for name, value in asdict(WHOLE).items() if name not in ("limit", "choice", "facts")}


def test_a_record_survives_json():
    assert from_json(Outer, json.loads(json.dumps(asdict(WHOLE))), "it") == WHOLE


def test_defaults_may_be_left_out():
    record = from_json(Outer, NEEDED, "it")
    assert (record.limit, record.choice, record.facts) == (None, 1, {})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rat": 1.0}, "it has an unknown field 'rat'"),
        ({"rate": "fast"}, "it.rate must be a number, not 'fast'"),
        ({"rate": "nan"}, "it.rate must be a number, not 'nan'"),
        ({"rate": math.nan}, "it.rate must be a number, not nan"),
        ({"rate": None}, "it.rate must be a number, not None"),
        ({"rate": True}, "it.rate must be a number, not True"),
        ({"name": 3}, "it.name must be of type str, not 3"),
        ({"on": 1}, "it.on must be of type bool, not 1"),
        ({"mode": "medium"}, "it.mode must be one of 'fast', 'slow', not 'medium'"),
        ({"pair": [1]}, "it.pair must have 2 entries, not 1"),
        ({"pair": ["a", 1]}, r"it.pair\[0\] must be of type int, not 'a'"),
        ({"sizes": 3}, "it.sizes must be a list, not 3"),
        ({"sizes": [3, True]}, r"it.sizes\[1\] must be of type int, not True"),
        ({"sizes": [3, 4.0]}, r"it.sizes\[1\] must be of type int, not 4.0"),
        ({"inner": 2}, "it.inner must be an object, not 2"),
        ({"inner": {}}, "it.inner lacks the field 'size'"),
        ({"inner": {"size": "2"}}, "it.inner.size must be of type int, not '2'"),
        ({"table": [1.0]}, r"it.table must be an object, not \[1.0\]"),
        ({"table": {"a": "b"}}, "it.table.a must be a number, not 'b'"),
        ({"limit": "none"}, "it.limit must be a number, not 'none'"),
        ({"choice": 1.5}, "it.choice must be of type int or str, not 1.5"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_place(change, message):
    with pytest.raises(EsperError, match=f"^{message}$"):
        from_json(Outer, NEEDED | change, "it")


def test_a_missing_field_is_named():
    with pytest.raises(EsperError, match="it lacks the field 'mode'"):
        from_json(Outer, {name: value for name, value in NEEDED.items() if name != "mode"}, "it")


def test_numbers_that_json_cannot_write_become_null_and_are_read_as_asked():
    record = {"a": [1.0, math.inf, (math.nan, 2)], "b": {"c": -math.inf}, "d": 3}
    written = json.loads(json.dumps(jsonable(record), allow_nan=False))
    assert written == {"a": [1.0, None, [None, 2]], "b": {"c": None}, "d": 3}
    read = from_json(tuple[float, ...], written["a"][:2], "it", null=math.nan)
    assert read[0] == 1.0
    assert math.isnan(read[1])
