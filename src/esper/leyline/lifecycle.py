"""Define the lifecycle of a seed: its stages, and every transition between them.

Legality, masks, gates, docs and pictures are derived from this table.
"""

from enum import Enum, IntEnum
from typing import NamedTuple

from esper.leyline.actions import Op


class Voice(Enum):
    """What a slot does during an epoch: whether it holds a seed, and whether the seed trains and is heard."""

    EMPTY = "no seed"
    MUTE = "a seed that neither trains nor is heard"
    INCUBATING = "a seed that trains beside the host and is not heard"
    RAMPING = "a seed whose alpha changes every epoch"
    STEADY = "a seed whose alpha is constant"


class Stage(IntEnum):
    """The stage of a slot in the lifecycle of a seed.

    Attributes:
        voice: Whether the slot holds a seed in this stage, and whether the seed trains and is heard.
    """

    voice: Voice

    def __new__(cls, voice: Voice) -> "Stage":
        stage = int.__new__(cls, len(cls.__members__))
        stage._value_ = len(cls.__members__)
        stage.voice = voice
        return stage

    DORMANT = Voice.EMPTY
    """The slot is empty, and a seed may be planted."""
    GERMINATED = Voice.MUTE
    """A seed has been planted."""
    TRAINING = Voice.INCUBATING
    """The seed trains at alpha 0: the host does not hear it."""
    BLENDING = Voice.RAMPING
    """Alpha moves to its target."""
    HOLDING = Voice.STEADY
    """Alpha has reached its target; the seed is on probation."""
    FOSSILIZED = Voice.STEADY
    """The seed is a permanent part of the host."""
    PRUNED = Voice.RAMPING
    """The seed fades out and is then removed."""
    EMBARGOED = Voice.EMPTY
    """The slot is empty and stays closed for some epochs."""
    RESETTING = Voice.EMPTY
    """The slot is empty and opens with the next epoch."""


class Gate(IntEnum):
    """The condition of a transition, implemented in `kasmina/gates.py`."""

    SANE = 0
    """G0: the loss and weights of the host are finite."""
    PLANTED = 1
    """G1: the seed is planted, its weights are finite, and it needs silent training."""
    TRAINED = 2
    """G2: the seed has trained for `min_training` epochs and its gradients are finite and not zero."""
    SETTLED = 3
    """G3: alpha has reached its target."""
    WORTHY = 5
    """G5: the seed has held for `min_holding` epochs and its contribution exceeds `min_contribution`."""
    RIPE = 6
    """The seed is `min_prune_age` epochs old, or its weights or gradients are not healthy."""
    FADED = 7
    """Alpha will be 0 in the coming epoch."""
    RESTED = 8
    """The embargo is over."""
    OPEN = 9
    """Always."""
    READY = 10
    """G1, and the seed needs no silent training: it is a twin, or `training` is 0."""


class Transition(NamedTuple):
    """A transition between stages: chosen by an op, automatic, or (ADVANCE) both."""

    source: Stage
    target: Stage
    gate: Gate
    op: Op | None = None
    automatic: bool = False


TRANSITIONS = (
    Transition(Stage.DORMANT, Stage.GERMINATED, Gate.SANE, op=Op.GERMINATE),
    Transition(Stage.GERMINATED, Stage.TRAINING, Gate.PLANTED, op=Op.ADVANCE, automatic=True),
    Transition(Stage.GERMINATED, Stage.BLENDING, Gate.READY, op=Op.ADVANCE, automatic=True),
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
"""The stages in which a seed can still be pruned."""
