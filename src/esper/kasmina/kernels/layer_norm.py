"""Normalize the channels of every position, with scale and shift."""

# pyright: reportIncompatibleMethodOverride=false

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from esper.kasmina.kernels.norm import EPS
from esper.kasmina.kernels.rows import RowFunction, along, dense, usable


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the layer norm of (R, B, ..., C) over its channels, scaled and shifted by the numbers of each row, (R, C).

    Statistics are computed in single precision at least.
    """
    if usable(x, weight, bias) and not torch.is_autocast_enabled(x.device.type):
        return _LayerNorm.of(x, weight, bias)
    out = functional.layer_norm(x, x.shape[-1:], eps=EPS)
    return torch.addcmul(along(bias, x), out, along(weight, x)).to(out.dtype)


class _LayerNorm(RowFunction):
    """Runs on a GPU only."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        from esper.kasmina.kernels import gpu

        return gpu.layer_norm(dense(x), dense(weight), dense(bias), EPS)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return _LayerNormBackward.once(grad, *ctx.saved_tensors)


class _LayerNormBackward(RowFunction):
    """Gradients of x, scale and shift. Statistics are computed again, from channels that are read anyway."""

    @staticmethod
    def forward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        from esper.kasmina.kernels import gpu

        return gpu.layer_norm_backward(dense(grad), dense(x), dense(weight), EPS)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass
