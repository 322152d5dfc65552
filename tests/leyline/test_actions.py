"""One table of ops and heads; everything else follows from it, and misspelt names fail at once."""

import pytest

from esper.leyline.actions import (
    ALPHA_SPEEDS,
    ALPHA_TARGETS,
    FIXED_CHOICES,
    GRAFTS,
    TEMPOS,
    ActionSpace,
    Curve,
    Graft,
    Head,
    Op,
    per_head,
)
from esper.leyline.errors import EsperError

SPACE = ActionSpace(("s0", "s1"), ("norm", "mlp"))


def test_relevance_is_the_reviews():
    """The requirement, written down apart from the code once."""
    every = set(Op)
    assert {head: {op for op in Op if head in op.heads} for head in Head} == {
        Head.OP: every,
        Head.SLOT: every - {Op.WAIT},
        Head.BLUEPRINT: {Op.GERMINATE},
        Head.STYLE: {Op.GERMINATE, Op.SET_ALPHA_TARGET},
        Head.TEMPO: {Op.GERMINATE},
        Head.ALPHA_TARGET: {Op.GERMINATE, Op.SET_ALPHA_TARGET},
        Head.ALPHA_SPEED: {Op.SET_ALPHA_TARGET, Op.PRUNE},
        Head.ALPHA_CURVE: {Op.SET_ALPHA_TARGET, Op.PRUNE},
    }


def test_enums_are_indices():
    for enum in (Op, Head, Graft, Curve):
        assert [int(member) for member in enum] == list(range(len(enum)))


def test_every_head_has_choices_and_a_listener():
    assert FIXED_CHOICES.keys() | {Head.SLOT, Head.BLUEPRINT} == set(Head)
    assert set().union(*(op.heads for op in Op)) == set(Head)
    assert set(GRAFTS) == set(Graft) - {Graft.REPLACE}


@pytest.mark.parametrize("slots", [1, 3, 5])
def test_sizes_follow_the_names(slots):
    space = ActionSpace(tuple(f"s{i}" for i in range(slots)), ("norm", "mlp"))
    assert space.sizes == tuple(len(space.choices[head]) for head in Head)
    assert space.sizes[Head.SLOT] == slots


def test_choices_mean_what_they_are_called():
    for table, number in (
        (TEMPOS, int),
        (ALPHA_TARGETS, float),
        (ALPHA_SPEEDS, lambda name: int(name.replace("instant", "0"))),
    ):
        assert table == {name: number(name) for name in table}


def test_actions_by_name():
    action = SPACE.action("GERMINATE", slot="s1", blueprint="mlp", tempo=5, alpha_target=0.7)
    named = {head: SPACE.choices[head][choice] for head, choice in zip(Head, action, strict=True)}
    assert named[Head.OP] == "GERMINATE"
    assert named[Head.SLOT] == "s1"
    assert named[Head.BLUEPRINT] == "mlp"
    assert named[Head.TEMPO] == "5"
    assert named[Head.ALPHA_TARGET] == "0.7"
    assert SPACE.action(Op.PRUNE, slot="s1", alpha_curve=Curve.COSINE)[Head.ALPHA_CURVE] == Curve.COSINE
    left_out = {head: SPACE.choices[head][choice] for head, choice in zip(Head, SPACE.action(), strict=True)}
    assert {head.name.lower(): name for head, name in left_out.items()} == {
        "op": "WAIT",
        "slot": "s0",
        "blueprint": "norm",
        "style": "add",
        "tempo": "3",
        "alpha_target": "1.0",
        "alpha_speed": "instant",
        "alpha_curve": "linear",
    }


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SPACE.action("GROW"), "unknown choice of head op 'GROW'"),
        (lambda: SPACE.action("GERMINAT"), "did you mean 'GERMINATE'"),
        (lambda: SPACE.action("WAIT", slt="s0"), "unknown head 'slt': did you mean 'slot'"),
        (lambda: SPACE.action("WAIT", slot="s7"), "unknown choice of head slot 's7'"),
        (lambda: SPACE.action("GERMINATE", tempo=4), "unknown choice of head tempo '4'"),
        (lambda: ActionSpace((), ("norm",)), "slots is empty: name at least one"),
        (lambda: ActionSpace(("s0", "s0"), ("norm",)), "repeats a name: "),
        (lambda: per_head({"op": 1.0, "speed": 1.0}), "unknown head 'speed'"),
        (lambda: per_head({"op": 1.0}), "every head needs a value: add slot, blueprint"),
    ],
)
def test_unknown_names_fail_at_construction(call, message):
    with pytest.raises(EsperError, match=message):
        call()


def test_per_head_keeps_head_order():
    values = {head.name.lower(): int(head) for head in reversed(Head)}
    assert per_head(values) == tuple(range(len(Head)))
