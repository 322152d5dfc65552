"""Begin an epoch: apply one action to every host, and find what each can afford."""

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor

from esper.kasmina.cost import epoch_cost
from esper.kasmina.lifecycle import apply, tick
from esper.leyline.state import SlotState, Vitals
from esper.tolaria.assignment import Known
from esper.tolaria.budget import Clock, Pace, paced
from esper.tolaria.recording import replayed
from esper.tolaria.schedule import rows_to_copy

if TYPE_CHECKING:
    from esper.tolaria.fleet import Fleet


class Beginning(NamedTuple):
    """What an epoch begins with."""

    state: SlotState
    refused: Bool[Tensor, " N"]
    rows: Float[Tensor, "F N S"]
    """What assignments depend on: the fields of `Known`."""
    pace: Pace | None
    """What every host can afford in the epoch; None if lives are counted in epochs."""

    def copied(self) -> Known:
        """Copy what assignments depend on from the device, in one transfer."""
        return Known(*self.rows.cpu().numpy())


class Spending(NamedTuple):
    """What hosts on a budget have spent, and what they are charged for."""

    budget: Float[Tensor, " N"] | None
    spent: Float[Tensor, " N"]
    charges_measuring: bool | Bool[Tensor, " N"]
    pauses: Float[Tensor, "P N"] | None


def spending_of(fleet: "Fleet") -> Spending:
    """Return what hosts have spent by now."""
    return Spending(fleet.budget, fleet.spent, fleet.charges_measuring, fleet.pauses)


def begin(fleet: "Fleet", actions: Int[Tensor, "N H"]) -> Beginning:
    """Apply one action to every host, by a captured program if there is one. The fleet itself stays as it is."""
    inputs = (fleet.state, fleet.vitals, actions, fleet.epoch, fleet.seed_lr, spending_of(fleet))
    return replayed(fleet.programs, "begin", partial(beginning_of, fleet), inputs)


def beginning_of(
    fleet: "Fleet",
    state: SlotState,
    vitals: Vitals,
    actions: Int[Tensor, "N H"],
    epoch: Int[Tensor, " N"],
    seed_lr: Float[Tensor, "N S"],
    spending: Spending,
) -> Beginning:
    """Return what the coming epoch begins with. Of the fleet, this reads what never changes."""
    state, refused = apply(state, actions, vitals, fleet.lifecycle, fleet.space)
    state = tick(state, vitals, fleet.lifecycle)
    is_measured = fleet.lifecycle.measures(epoch + 1)
    rows = rows_to_copy(fleet, state, seed_lr, is_measured)
    return Beginning(state, refused, rows, pace_of(fleet, state, is_measured, spending))


def pace_of(fleet: "Fleet", state: SlotState, is_measured: Bool[Tensor, " N"], spending: Spending) -> Pace | None:
    """Return what every host can afford in its next epoch; None if lives are counted in epochs."""
    if spending.budget is None:
        return None
    cost = epoch_cost(fleet.costs, state, fleet.lifecycle)
    measured = len(fleet.validation_data.x) * (is_measured & spending.charges_measuring)
    every = fleet.lifecycle.lesson_every
    clock = Clock(spending.budget, fleet.config.batch_size, fleet.num_steps, every, spending.pauses)
    return paced(clock, spending.spent, cost, measured)
