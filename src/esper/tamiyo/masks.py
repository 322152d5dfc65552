"""Mask choices: heads that an op does not use, and blueprints beyond the budget."""

from functools import cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esper.leyline.actions import Head, Op


@cache
def _listens(device: torch.device) -> Bool[Tensor, "O H"]:
    """Return the table of ops and the heads they use, copied to a device once."""
    return torch.tensor([[head in op.heads for head in Head] for op in Op], device=device)


def relevant(ops: Int[Tensor, "*N"]) -> Bool[Tensor, "*N H"]:
    """Return a mask of the heads that the chosen op uses."""
    return _listens(ops.device)[ops]


def affordable(
    growth: Float[Tensor, " N"], budget: Float[Tensor, " N"], seed_parameters: Float[Tensor, "S K"]
) -> Bool[Tensor, "N S K"]:
    """Return a mask of the seeds that keep growth within the budget."""
    return growth[:, None, None] + seed_parameters.to(growth) <= budget[:, None, None]


def within_budget(legal: Bool[Tensor, "N O S"], affordable: Bool[Tensor, "N S K"]) -> Bool[Tensor, "N O S"]:
    """Return the legal ops without germination in slots for which no blueprint is affordable."""
    legal = legal.clone()
    legal[:, Op.GERMINATE] &= affordable.any(2)
    return legal
