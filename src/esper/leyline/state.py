"""Define the tensor records of a fleet's state. Axes, everywhere in the project:

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
    """The lifecycle state of every slot of every host."""

    stage: Int[Tensor, "N S"]
    """The value of the slot's `Stage`."""
    age: Int[Tensor, "N S"]
    """Epochs since the slot entered its stage."""
    seed_age: Int[Tensor, "N S"]
    """Epochs since the seed was planted; 0 without a seed."""
    births: Int[Tensor, "N S"]
    """Number of seeds planted in the slot so far."""
    blueprint: Int[Tensor, "N S"]
    """Index of the seed's blueprint; `NO_BLUEPRINT` without a seed."""
    graft: Int[Tensor, "N S"]
    """The value of the seed's `Graft`."""
    alpha: Float[Tensor, "N S"]
    """Weight of the seed's delta in the host's stream, from 0 to 1."""
    alpha_start: Float[Tensor, "N S"]
    """Alpha at the beginning of the present ramp."""
    alpha_target: Float[Tensor, "N S"]
    """Alpha at the end of the present ramp."""
    ramp: Int[Tensor, "N S"]
    """The curve of the seed's style, applied to progress first."""
    curve: Int[Tensor, "N S"]
    """The curve chosen by the alpha_curve head, applied second."""
    ramp_epochs: Int[Tensor, "N S"]
    """Length of the present ramp in epochs; 0: alpha jumps to its target."""
    ramp_elapsed: Int[Tensor, "N S"]
    """Epochs of the present ramp that have passed."""


class Vitals(NamedTuple):
    """Health and usefulness of hosts and seeds, measured in every epoch."""

    sane: Bool[Tensor, " N"]
    """Whether the host's loss and weights are finite."""
    healthy: Bool[Tensor, "N S"]
    """Whether the seed's weights and gradients are finite, and its gradients not zero while it trains."""
    contribution: Float[Tensor, "N S"]
    """Validation score with the seed minus the score without it; NaN without a seed."""
    share: Float[Tensor, "N S"]
    """Mean gradient norm of the seed divided by that of the host; NaN without a seed."""
    pull: Float[Tensor, "N S"]
    """Mean norm of the gradient of the loss with respect to the stream at the slot, with or without a seed."""


class Signals(NamedTuple):
    """Raw measurements of every host, at the end of an epoch or the beginning of an episode."""

    score: Float[Tensor, " N"]
    """Validation score, from 0 to 1."""
    metric: Float[Tensor, " N"]
    """Mean validation metric."""
    loss: Float[Tensor, " N"]
    """Mean validation loss."""
    train_loss: Float[Tensor, " N"]
    """Mean training loss of the last epoch; NaN before the first."""
    growth: Float[Tensor, " N"]
    """Parameters of all seeds divided by those of the bare host."""
    flops: Float[Tensor, " N"]
    """Floating-point operations of the last epoch; 0 before the first."""
    age: Int[Tensor, " N"]
    """Decisions since the beginning of the episode."""
    sibling: Bool[Tensor, " N"]
    """Whether the host began its episode together with its group, so that they can be compared."""
    legal: Bool[Tensor, "N O S"]
    """Whether an op may be used on a slot."""
    slots: SlotState
    """Lifecycle state of the slots."""
    vitals: Vitals
    """Health and usefulness of hosts and seeds."""
    spent: Float[Tensor, " N"] | None = None
    """Share of the episode's budget that is spent; None if episodes are counted in epochs."""
    pace: Float[Tensor, " N"] | None = None
    """Cost of an epoch in the present state, divided by that of a bare host; None if episodes are counted in epochs."""


class Setting(NamedTuple):
    """The facts about a fleet that a controller uses: they are equal for all its hosts and do not change."""

    space: ActionSpace
    """The choices of every head."""
    episode: int
    """Decisions in an episode."""
    chance: float
    """The score of guessing."""
    guess: float
    """The loss of guessing."""
    parameters: int
    """Number of parameters of a bare host."""
    families: tuple[str, ...]
    """The family of each blueprint."""
    seed_parameters: Float[Tensor, "S K"]
    """Parameters of a seed of each blueprint in each slot, divided by those of the bare host."""
    seed_costs: Float[Tensor, "S K"] | None = None
    """FLOPs that an audible seed of each blueprint in each slot adds to a training step, divided by those of the bare
    host; None if episodes are counted in epochs, where compute is free."""
    slots_each: int = 1
    """Slots behind each segment."""


class Split(NamedTuple):
    """Examples and their targets."""

    x: Tensor
    """Examples, (B, *inputs)."""
    y: Tensor
    """Targets: classes (B,), tokens (B, positions), or numbers (B, outputs)."""


class Task(NamedTuple):
    """A task with its training and validation data. `load_test` returns its test data, which only exams use."""

    spec: TaskSpec
    """The description of the task."""
    train: Split
    """The data that hosts are trained on."""
    validation: Split
    """The data that controllers measure hosts and seeds on."""
