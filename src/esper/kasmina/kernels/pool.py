"""Max-pool rows of images."""

# pyright: reportIncompatibleMethodOverride=false

from typing import Any

import torch
from torch import Tensor

from esper.kasmina.kernels.rows import RowFunction, usable


def max_pool(x: Tensor, height: int, width: int) -> Tensor:
    """Return the maximum of each block and channel of (R, B, height, width, C); incomplete blocks are dropped."""
    return _Pool.of(x, height, width)


class _Pool(RowFunction):
    @staticmethod
    def forward(x: Tensor, height: int, width: int) -> Tensor:
        sides = (height, width)
        if usable(x):
            from esper.kasmina.kernels import gpu

            return gpu.pool(x.contiguous(), sides)
        pooled, _ = torch.ops.aten.max_pool2d_with_indices(_images(x), sides)
        return pooled.permute(0, 2, 3, 1).unflatten(0, x.shape[:2])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, int], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.sides = inputs[1:]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _PoolBackward.once(grads[0], *ctx.saved_tensors, *ctx.sides), None, None


class _PoolBackward(RowFunction):
    @staticmethod
    def forward(grad: Tensor, x: Tensor, height: int, width: int) -> Tensor:
        sides = (height, width)
        if usable(grad, x):
            from esper.kasmina.kernels import gpu

            return gpu.pool_backward(grad.contiguous(), x.contiguous(), sides)
        _, indices = torch.ops.aten.max_pool2d_with_indices(_images(x), sides)
        back = torch.ops.aten.max_pool2d_with_indices_backward(
            _images(grad), _images(x), sides, sides, [0, 0], [1, 1], False, indices
        )
        return back.permute(0, 2, 3, 1).unflatten(0, x.shape[:2])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass


def _images(x: Tensor) -> Tensor:
    """Reshape to torch's layout, channels first."""
    return x.flatten(0, 1).permute(0, 3, 1, 2)
