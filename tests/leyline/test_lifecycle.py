"""The transition table is complete: a new stage, op or gate without its row or its function fails here."""

from esper.dashboard.life import STAGE_COLORS
from esper.kasmina.gates import GATES
from esper.leyline.actions import Op
from esper.leyline.lifecycle import TRANSITIONS, Gate, Stage, Voice

LIFE = """
DORMANT     GERMINATE         SANE     GERMINATED
GERMINATED  ADVANCE,time      PLANTED  TRAINING
GERMINATED  ADVANCE,time      READY    BLENDING
TRAINING    ADVANCE,time      TRAINED  BLENDING
BLENDING    ADVANCE,time      SETTLED  HOLDING
BLENDING    SET_ALPHA_TARGET  OPEN     BLENDING
HOLDING     SET_ALPHA_TARGET  OPEN     BLENDING
HOLDING     FOSSILIZE         WORTHY   FOSSILIZED
GERMINATED  PRUNE             RIPE     PRUNED
TRAINING    PRUNE             RIPE     PRUNED
BLENDING    PRUNE             RIPE     PRUNED
HOLDING     PRUNE             RIPE     PRUNED
PRUNED      time              FADED    EMBARGOED
EMBARGOED   time              RESTED   RESETTING
RESETTING   time              OPEN     DORMANT
"""
VOICES = {
    Voice.EMPTY: {Stage.DORMANT, Stage.EMBARGOED, Stage.RESETTING},
    Voice.MUTE: {Stage.GERMINATED},
    Voice.INCUBATING: {Stage.TRAINING},
    Voice.RAMPING: {Stage.BLENDING, Stage.PRUNED},
    Voice.STEADY: {Stage.HOLDING, Stage.FOSSILIZED},
}


def test_the_life_of_a_seed_is_the_designs():
    """The requirement, written down apart from the code once: from, by whom, through which gate, to."""
    rows = set()
    for row in TRANSITIONS:
        by = [row.op.name] if row.op else []
        rows.add((row.source.name, ",".join(by + ["time"] * row.automatic), row.gate.name, row.target.name))
    assert rows == {tuple(line.split()) for line in LIFE.strip().splitlines()}
    assert {voice: {stage for stage in Stage if stage.voice is voice} for voice in Voice} == VOICES


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
    one_way = [row for row in TRANSITIONS if row.gate is not Gate.READY]  # closed wherever PLANTED is open
    chosen = [(row.source, row.op) for row in one_way if row.op]
    automatic = [row.source for row in one_way if row.automatic]
    assert len(set(chosen)) == len(chosen)
    assert len(set(automatic)) == len(automatic)


def test_every_gate_guards_something_and_has_a_function():
    assert {row.gate for row in TRANSITIONS} == set(Gate) == set(GATES)


def test_every_stage_has_a_colour():
    assert STAGE_COLORS.keys() == set(Stage)
    assert [int(stage) for stage in Stage] == list(range(len(Stage)))
