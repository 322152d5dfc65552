"""What may be chosen: legality from the lifecycle's tables, blueprints within the budget."""

from functools import cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esper.leyline.actions import Head, Op


@cache
def _listens(device: torch.device) -> Bool[Tensor, "O H"]:
    """Leyline's table on a device, copied there once."""
    return torch.tensor([[head in op.heads for head in Head] for op in Op], device=device)


def relevant(ops: Int[Tensor, "*N"]) -> Bool[Tensor, "*N H"]:
    """The heads that the chosen op listens to."""
    return _listens(ops.device)[ops]


def affordable(
    growth: Float[Tensor, " N"], budget: Float[Tensor, " N"], seed_parameters: Float[Tensor, "S K"]
) -> Bool[Tensor, "N S K"]:
    """The blueprints that a slot may still be given."""
    return growth[:, None, None] + seed_parameters.to(growth) <= budget[:, None, None]


def within_budget(legal: Bool[Tensor, "N O S"], affordable: Bool[Tensor, "N S K"]) -> Bool[Tensor, "N O S"]:
    """Germination needs a blueprint that can be paid for."""
    legal = legal.clone()
    legal[:, Op.GERMINATE] &= affordable.any(2)
    return legal
