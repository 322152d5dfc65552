"""Normalize images over space, apply a ReLU and max-pool them."""

# pyright: reportIncompatibleMethodOverride=false

from typing import Any

from torch import Tensor

from esper.kasmina.kernels.norm import EPS, group_norm
from esper.kasmina.kernels.pool import max_pool
from esper.kasmina.kernels.rows import RowFunction, dense, usable


def norm_pool(x: Tensor, weight: Tensor, bias: Tensor, groups: int) -> Tensor:
    """Return the group norm of images (R, B, height, width, C) after a ReLU, max-pooled over blocks of 2×2 pixels.

    An odd last row or column is dropped; a side of 1 is kept.
    """
    if usable(x, weight, bias):
        from esper.kasmina.kernels import gpu

        if gpu.pools(x, groups):
            return _NormPool.of(x, weight, bias, groups)[0]
    out = group_norm(x, weight, bias, groups, relu=True)
    height, width = (2 if side > 1 else 1 for side in x.shape[2:4])
    return max_pool(out, height, width) if height * width > 1 else out


class _NormPool(RowFunction):
    """Runs on a GPU only. It also returns the mean and reciprocal deviation of each group, for the backward pass."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, groups: int) -> tuple[Tensor, Tensor, Tensor]:
        from esper.kasmina.kernels import gpu

        return gpu.norm_pool(dense(x), dense(weight), dense(bias), groups, EPS)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.groups = inputs[3]
        ctx.save_for_backward(*inputs[:3], *output[1:])
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return *_NormPoolBackward.once(grads[0], *ctx.saved_tensors, ctx.groups), None


class _NormPoolBackward(RowFunction):
    @staticmethod
    def forward(
        grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, scale: Tensor, groups: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        from esper.kasmina.kernels import gpu

        return gpu.norm_pool_backward(grad, dense(x), dense(weight), dense(bias), mean, scale, groups)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass
