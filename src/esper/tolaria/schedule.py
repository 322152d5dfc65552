"""Schedule an epoch: read the slots of a fleet once, and assign their seeds to rows."""

from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from esper.kasmina.lifecycle import incubating, speaking
from esper.leyline.state import SlotState
from esper.tolaria.assignment import Assignment, Known, Wanted, assign

if TYPE_CHECKING:
    from esper.tolaria.fleet import Fleet

Switch = Bool[Tensor, "N S"] | Literal["bare"]
"""Seeds to switch, audible ones off and silent ones on; or that all are left out."""


def copied(fleet: "Fleet") -> Known:
    """Copy what assignments depend on from the device, in one transfer."""
    return Known(*rows_to_copy(fleet, fleet.state, fleet.seed_lr, fleet.is_measured).cpu().numpy())


def rows_to_copy(
    fleet: "Fleet", state: SlotState, seed_lr: Float[Tensor, "N S"], is_measured: Bool[Tensor, " N"]
) -> Float[Tensor, "F N S"]:
    """Return what assignments depend on: the fields of `Known`."""
    lr = seed_lr * fleet.config.seed_rate(state.seed_age)
    loud, silent, due = speaking(state), incubating(state), fleet.lifecycle.measured(state) & is_measured[:, None]
    fields = (state.graft, state.alpha, state.alpha_target, silent, lr, loud, due)
    return torch.stack([x.double() for x in fields])


def schedule(
    fleet: "Fleet", known: Known, measuring: bool, switch: Switch | None = None, lessons: bool = True
) -> Assignment:
    """Assign all seeds to rows.

    Args:
        fleet: Fleet that the seeds belong to.
        known: Its slots as copied to the CPU.
        measuring: Whether side rows start at every seed of hosts that are measured, or, for training, at silent
            ones.
        switch: Mask of seeds to switch, or "bare". No side rows start then.
        lessons: Whether silent seeds are taught.
    """
    hosts = {kind: bucket.hosts for kind, bucket in fleet.buckets.items()}
    if switch is None:
        known = known._replace(silent=known.silent * lessons)
        starts = known.due if measuring else known.silent
        return assign(hosts, Wanted(known, starts, measuring, fleet.padding))
    if isinstance(switch, str):
        hosts, alpha = {}, known.alpha
    else:
        over = np.where(known.loud, 0.0, known.target)
        alpha = np.where(switch.cpu().numpy(), over, known.alpha)
    none = np.zeros_like(known.silent)
    return assign(hosts, Wanted(known._replace(alpha=alpha, silent=none), none, False, fleet.padding))
