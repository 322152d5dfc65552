"""Make signals of what is known of hosts."""

from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esper.kasmina.cost import epoch_cost
from esper.kasmina.lifecycle import legal
from esper.leyline.state import Signals, SlotState, Vitals
from esper.tolaria.beginning import Spending
from esper.tolaria.budget import relative_cost
from esper.tolaria.measuring import Measured

if TYPE_CHECKING:
    from esper.tolaria.fleet import Fleet


class Situation(NamedTuple):
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
    spending: Spending


def signals_of(fleet: "Fleet", situation: Situation) -> Signals:
    """Return the signals of all hosts. Of the fleet, this reads what never changes."""
    slots, vitals, spending = situation.slots, situation.vitals, situation.spending
    return Signals(
        score=situation.measured.score,
        metric=situation.measured.metric,
        loss=situation.measured.loss,
        train_loss=situation.train_loss,
        growth=fleet.growth(slots),
        flops=situation.flops,
        age=situation.age,
        sibling=situation.sibling,
        legal=legal(slots, vitals, fleet.lifecycle),
        slots=slots,
        vitals=vitals,
        spent=None if spending.budget is None else spending.spent / spending.budget,
        pace=None if spending.budget is None else pace(fleet, slots, spending.charges_measuring),
    )


def pace(fleet: "Fleet", state: SlotState, charges_measuring: bool | Bool[Tensor, " N"]) -> Float[Tensor, " N"]:
    """Return what an epoch costs in a state, contributions included, divided by that of a bare host.

    Where lessons and measurements do not happen at every step and epoch, they count on average.
    """
    trained = fleet.num_steps * fleet.config.batch_size
    validation = len(fleet.validation_data.x) * torch.ones_like(fleet.everyone) * charges_measuring
    cost = relative_cost(epoch_cost(fleet.costs, state, fleet.lifecycle), trained, validation, fleet.lifecycle)
    return cost / (trained * fleet.costs.host.train)
