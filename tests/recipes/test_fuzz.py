"""Whatever a config file holds, it makes a recipe or one sentence; never a traceback, never a run."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.leyline.errors import EsperError
from esper.recipes import Recipe, recipe

PLAIN = json.loads(json.dumps(recipe("smoke").plain()))
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**12), 10**12),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=6),
    st.sampled_from(["inf", "nan", "-1", "0", "cuda", "adamw", [], {}, [[]], {"a": 1}, [None], 1e308, -0.0]),
)


def places(x: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = x.items() if isinstance(x, dict) else enumerate(x) if isinstance(x, list) else ()
    return [at, *(place for key, value in inner for place in places(value, (*at, key)))]


PLACES = places(PLAIN)[1:]


def made(plain: Any) -> Recipe | None:
    try:
        return Recipe.revived(plain)
    except EsperError as error:
        said = str(error)
    assert "\n" not in said
    return None


@pytest.mark.filterwarnings("ignore:unusual")
@settings(max_examples=400, deadline=None)
@given(st.sampled_from(PLACES), ODD, st.sampled_from(["replace", "remove", "add"]))
def test_a_changed_recipe_is_another_one_or_an_error(place, value, how):
    plain = copy.deepcopy(PLAIN)
    *way, last = place
    at = plain
    for step in way:
        at = at[step]
    if how == "replace":
        at[last] = value
    elif how == "remove":
        del at[last]
    elif isinstance(at, dict):
        at[f"{last}x"] = value
    else:
        at.append(value)
    found = made(plain)
    if found is not None:
        again = json.loads(json.dumps(found.plain(), allow_nan=False))
        assert Recipe.revived(again).plain() == found.plain()


@settings(max_examples=100, deadline=None)
@given(ODD)
def test_nothing_that_small_is_a_recipe(value):
    assert made(value) is None
