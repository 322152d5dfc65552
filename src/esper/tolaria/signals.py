"""Make signals of what is known of hosts."""

from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esper.kasmina.cost import epoch_cost
from esper.kasmina.lifecycle import legal
from esper.leyline.state import Signals, SlotState, Vitals
from esper.tolaria.beginning import Purse
from esper.tolaria.budget import relative_cost
from esper.tolaria.measuring import Measured

if TYPE_CHECKING:
    from esper.tolaria.fleet import Fleet


class Moment(NamedTuple):
    """What is known of all hosts after an epoch, or at the beginning of an episode."""

    slots: SlotState
    vitals: Vitals
    measured: Measured
    train_loss: Float[Tensor, " N"]
    flops: Float[Tensor, " N"]
    age: Int[Tensor, " N"]
    """Decisions since the beginning of the episode."""
    sibling: Bool[Tensor, " N"]
    """Whether the host began its episode together with its group."""
    purse: Purse


def signals_of(fleet: "Fleet", moment: Moment) -> Signals:
    """Return the signals of all hosts. Of the fleet, this reads what never changes."""
    slots, vitals, purse = moment.slots, moment.vitals, moment.purse
    return Signals(
        score=moment.measured.score,
        metric=moment.measured.metric,
        loss=moment.measured.loss,
        train_loss=moment.train_loss,
        growth=fleet.growth(slots),
        flops=moment.flops,
        age=moment.age,
        sibling=moment.sibling,
        legal=legal(slots, vitals, fleet.lifecycle),
        slots=slots,
        vitals=vitals,
        spent=None if purse.budget is None else purse.spent / purse.budget,
        pace=None if purse.budget is None else pace(fleet, slots, purse.charges_measuring),
    )


def pace(fleet: "Fleet", state: SlotState, charges_measuring: bool | Bool[Tensor, " N"]) -> Float[Tensor, " N"]:
    """Return what an epoch costs in a state, contributions included, divided by that of a bare host.

    Where lessons and measurements do not happen at every step and epoch, they count on average.
    """
    trained = fleet.num_steps * fleet.config.batch_size
    validation = len(fleet.validation_data.x) * torch.ones_like(fleet.everyone) * charges_measuring
    cost = relative_cost(epoch_cost(fleet.costs, state, fleet.lifecycle), trained, validation, fleet.lifecycle)
    return cost / (trained * fleet.costs.host.train)
