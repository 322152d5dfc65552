"""The transition table is complete: a new stage, op or gate without its row or its function fails here."""

from esper.dashboard.life import STAGE_COLORS
from esper.kasmina.gates import GATES
from esper.leyline.actions import Op
from esper.leyline.lifecycle import LIVING, TRANSITIONS, Gate, Stage, Voice


def reachable(start: Stage) -> set[Stage]:
    seen, frontier = set(), {start}
    while frontier:
        seen |= frontier
        frontier = {row.target for row in TRANSITIONS if row.source in frontier} - seen
    return seen


def test_every_stage_can_be_reached_and_none_is_a_trap_but_the_fossil():
    assert reachable(Stage.DORMANT) == set(Stage)
    for stage in set(Stage) - {Stage.FOSSILIZED}:
        assert Stage.DORMANT in reachable(stage)
    assert reachable(Stage.FOSSILIZED) == {Stage.FOSSILIZED}


def test_every_op_moves_something_but_wait():
    assert {row.op for row in TRANSITIONS if row.op} == set(Op) - {Op.WAIT}


def test_every_way_is_chosen_or_automatic_and_unambiguous():
    assert all(row.op is not None or row.automatic for row in TRANSITIONS)
    chosen = [(row.source, row.op) for row in TRANSITIONS if row.op]
    automatic = [row.source for row in TRANSITIONS if row.automatic]
    assert len(set(chosen)) == len(chosen)
    assert len(set(automatic)) == len(automatic)


def test_every_gate_guards_something_and_has_a_function():
    assert {row.gate for row in TRANSITIONS} == set(Gate) == set(GATES)


def test_only_living_seeds_can_be_pruned():
    assert LIVING == (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING)
    assert {stage for stage in Stage if stage.voice is not Voice.EMPTY} == {*LIVING, Stage.FOSSILIZED, Stage.PRUNED}


def test_every_stage_has_a_colour():
    assert STAGE_COLORS.keys() == set(Stage)
    assert [int(stage) for stage in Stage] == list(range(len(Stage)))
