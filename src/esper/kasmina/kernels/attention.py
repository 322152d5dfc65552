"""Attend causally, all heads of all examples of all rows at once."""

# pyright: reportIncompatibleMethodOverride=false

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from esper.kasmina.kernels.rows import RowFunction, transformed, usable


def causal_attention(qkv: Tensor, heads: int) -> Tensor:
    """Mix the values of each head by the softmax of q · k over the positions up to each one's own.

    Args:
        qkv: Queries, keys and values of all heads, one after the other, (M, L, 3 * C).
        heads: Number of heads.

    Returns:
        Their mixture, (M, L, C).
    """
    if usable(qkv):
        from esper.kasmina.kernels import gpu

        if gpu.attends(qkv, heads):
            return _Attention.of(qkv, heads)
    q, k, v = qkv.view(*qkv.shape[:2], 3, heads, -1).permute(2, 0, 3, 1, 4)
    return _mixed(q, k, v).transpose(1, 2).reshape(*qkv.shape[:2], -1)


def _mixed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if not transformed():
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    # Under vmap, torch runs its fused attention example by example.
    future = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).triu(1)
    logits = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    return logits.masked_fill(future, -torch.inf).softmax(-1) @ v


class _Attention(RowFunction):
    """Runs on a GPU only."""

    @staticmethod
    def forward(qkv: Tensor, heads: int) -> Tensor:
        from esper.kasmina.kernels import gpu

        return gpu.attention(qkv.contiguous(), heads)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.heads = inputs[1]
        ctx.save_for_backward(inputs[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _AttentionBackward.once(grad, *ctx.saved_tensors, ctx.heads), None


class _AttentionBackward(RowFunction):
    """The gradient of queries, keys and values. Their softmax is computed again."""

    @staticmethod
    def forward(grad: Tensor, qkv: Tensor, heads: int) -> Tensor:
        from esper.kasmina.kernels import gpu

        return gpu.attention_backward(grad.contiguous(), qkv.contiguous(), heads)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass
