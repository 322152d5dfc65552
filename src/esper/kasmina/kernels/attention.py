"""Attend causally, all heads of all examples of all rows at once."""

import torch
from torch import Tensor
from torch.nn import functional

from esper.kasmina.kernels.rows import transformed


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return the values of (M, heads, L, c), mixed by the softmax of q · k over positions up to each one's own."""
    if not transformed():
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    # Under vmap, torch runs its fused attention example by example.
    future = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).triu(1)
    logits = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    return logits.masked_fill(future, -torch.inf).softmax(-1) @ v
