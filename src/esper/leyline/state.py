"""What evolves: tensor records. Axes, everywhere in the project:

`N` hosts, `S` slots, `K` blueprints, `T` decisions, `B` examples, `F` features, `H` heads, `O` ops, `A` all choices of
all heads.
"""

from typing import NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor

from esper.leyline.specs import TaskSpec

__all__ = ["SlotState", "Split", "Task", "Vitals"]

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


class Split(NamedTuple):
    """Examples and their targets."""

    x: Tensor
    y: Tensor


class Task(NamedTuple):
    """A task with the data to train and to validate on. Test data is loaded apart, by whoever holds an exam."""

    spec: TaskSpec
    train: Split
    validation: Split
