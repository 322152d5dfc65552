"""The life of a seed: its stages, and every way from one stage to another.

This table is the only statement of the lifecycle. Legality, masks, gates, docs and pictures are derived from it.
"""

from enum import Enum, IntEnum
from typing import NamedTuple

from esper.leyline.actions import Op


class Voice(Enum):
    """What a slot adds to its host's stream during an epoch."""

    EMPTY = "no seed"
    MUTE = "a seed that neither speaks nor learns"
    INCUBATING = "a seed that learns beside the host, unheard"
    RAMPING = "a seed whose alpha moves every epoch"
    STEADY = "a seed whose alpha stands still"


class Stage(IntEnum):
    """Where a seed is in its life. Each stage is declared with its voice."""

    voice: Voice

    def __new__(cls, voice: Voice) -> "Stage":
        stage = int.__new__(cls, len(cls.__members__))
        stage._value_ = len(cls.__members__)
        stage.voice = voice
        return stage

    DORMANT = Voice.EMPTY
    """The slot is open."""
    GERMINATED = Voice.MUTE
    """A seed has been planted."""
    TRAINING = Voice.INCUBATING
    """It learns in silence."""
    BLENDING = Voice.RAMPING
    """Its alpha is on the way to its target."""
    HOLDING = Voice.STEADY
    """Its alpha has arrived; it is on probation."""
    FOSSILIZED = Voice.STEADY
    """It is part of the host for good."""
    PRUNED = Voice.RAMPING
    """It is condemned and fades out."""
    EMBARGOED = Voice.EMPTY
    """The slot stays closed for a while."""
    RESETTING = Voice.EMPTY
    """The slot opens with the next epoch."""


class Gate(IntEnum):
    """A condition on a transition. `kasmina/gates.py` holds one function for each."""

    SANE = 0
    """G0: the host itself is healthy."""
    PLANTED = 1
    """G1: the seed is in place and finite."""
    TRAINED = 2
    """G2: it has trained long enough and its gradients are healthy."""
    SETTLED = 3
    """G3: its alpha has reached the target."""
    WORTHY = 5
    """G5: its measured contribution earns its keep."""
    RIPE = 6
    """It is old enough to be judged, or sick."""
    FADED = 7
    """Nothing of it would be heard in the coming epoch."""
    RESTED = 8
    """The embargo has been served."""
    OPEN = 9
    """No condition."""


class Transition(NamedTuple):
    """One way from a stage to another: chosen by an op, automatic, or (ADVANCE) either."""

    source: Stage
    target: Stage
    gate: Gate
    op: Op | None = None
    automatic: bool = False


TRANSITIONS = (
    Transition(Stage.DORMANT, Stage.GERMINATED, Gate.SANE, op=Op.GERMINATE),
    Transition(Stage.GERMINATED, Stage.TRAINING, Gate.PLANTED, op=Op.ADVANCE, automatic=True),
    Transition(Stage.TRAINING, Stage.BLENDING, Gate.TRAINED, op=Op.ADVANCE, automatic=True),
    Transition(Stage.BLENDING, Stage.HOLDING, Gate.SETTLED, op=Op.ADVANCE, automatic=True),
    Transition(Stage.BLENDING, Stage.BLENDING, Gate.OPEN, op=Op.SET_ALPHA_TARGET),
    Transition(Stage.HOLDING, Stage.BLENDING, Gate.OPEN, op=Op.SET_ALPHA_TARGET),
    Transition(Stage.HOLDING, Stage.FOSSILIZED, Gate.WORTHY, op=Op.FOSSILIZE),
    Transition(Stage.GERMINATED, Stage.PRUNED, Gate.RIPE, op=Op.PRUNE),
    Transition(Stage.TRAINING, Stage.PRUNED, Gate.RIPE, op=Op.PRUNE),
    Transition(Stage.BLENDING, Stage.PRUNED, Gate.RIPE, op=Op.PRUNE),
    Transition(Stage.HOLDING, Stage.PRUNED, Gate.RIPE, op=Op.PRUNE),
    Transition(Stage.PRUNED, Stage.EMBARGOED, Gate.FADED, automatic=True),
    Transition(Stage.EMBARGOED, Stage.RESETTING, Gate.RESTED, automatic=True),
    Transition(Stage.RESETTING, Stage.DORMANT, Gate.OPEN, automatic=True),
)

LIVING = tuple(row.source for row in TRANSITIONS if row.op is Op.PRUNE)
"""The stages in which a seed's fate is still open."""
