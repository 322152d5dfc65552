"""What evolves: tensor records. Axes, everywhere in the project:

`N` hosts, `S` slots, `K` blueprints, `T` decisions, `B` examples, `F` features, `H` heads, `O` ops, `A` all choices of
all heads.
"""

from typing import NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor

from esper.leyline.actions import ActionSpace
from esper.leyline.specs import TaskSpec

__all__ = ["Setting", "Signals", "SlotState", "Split", "Task", "Vitals"]

NO_BLUEPRINT = -1
"""The blueprint index of a slot that holds no seed."""


class SlotState(NamedTuple):
    """The life of every slot of every host."""

    stage: Int[Tensor, "N S"]
    age: Int[Tensor, "N S"]
    """Epochs in this stage."""
    seed_age: Int[Tensor, "N S"]
    """Epochs since germination; 0 without a seed."""
    births: Int[Tensor, "N S"]
    """Seeds planted here so far."""
    blueprint: Int[Tensor, "N S"]
    graft: Int[Tensor, "N S"]
    alpha: Float[Tensor, "N S"]
    alpha_start: Float[Tensor, "N S"]
    """Where the present ramp began."""
    alpha_target: Float[Tensor, "N S"]
    ramp: Int[Tensor, "N S"]
    """The style's curve, applied to progress first."""
    curve: Int[Tensor, "N S"]
    """The alpha_curve head's curve, applied second."""
    ramp_epochs: Int[Tensor, "N S"]
    ramp_elapsed: Int[Tensor, "N S"]


class Vitals(NamedTuple):
    """What the last epoch says about hosts and seeds; always measured, whoever listens."""

    sane: Bool[Tensor, " N"]
    """The host's loss and weights are finite."""
    healthy: Bool[Tensor, "N S"]
    """The seed's weights and gradients are finite, and it is learning if it should be."""
    contribution: Float[Tensor, "N S"]
    """Validation score with the seed minus the score without it; NaN where there is none."""
    share: Float[Tensor, "N S"]
    """The seed's mean gradient norm over the host's; NaN where there is no seed."""
    pull: Float[Tensor, "N S"]
    """How much the loss would change with the stream at the slot, seed or none: the mean norm of that gradient."""


class Signals(NamedTuple):
    """Raw measurements of every host, at the end of an epoch or at the beginning of a life."""

    score: Float[Tensor, " N"]
    metric: Float[Tensor, " N"]
    loss: Float[Tensor, " N"]
    train_loss: Float[Tensor, " N"]
    """NaN before the first epoch."""
    growth: Float[Tensor, " N"]
    flops: Float[Tensor, " N"]
    """What the last epoch cost; 0 before the first."""
    age: Int[Tensor, " N"]
    """Decisions lived."""
    sibling: Bool[Tensor, " N"]
    """Still comparable with its group: born with it."""
    legal: Bool[Tensor, "N O S"]
    slots: SlotState
    vitals: Vitals


class Setting(NamedTuple):
    """What all hosts of a fleet have in common, as far as a controller needs to know."""

    space: ActionSpace
    episode: int
    """Decisions in a life."""
    chance: float
    """The score of a host that has learned nothing."""
    guess: float
    """The loss of one."""
    parameters: int
    """Of a bare host."""
    families: tuple[str, ...]
    """What each blueprint is made of."""
    seed_parameters: Float[Tensor, "S K"]
    """Of each possible seed, over the bare host's."""


class Split(NamedTuple):
    """Examples and their targets."""

    x: Tensor
    y: Tensor


class Task(NamedTuple):
    """A task with the data to train and to validate on. Test data is loaded apart, by whoever holds an exam."""

    spec: TaskSpec
    train: Split
    validation: Split
