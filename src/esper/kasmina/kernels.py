"""Normalisation over space with a backward of its own: autograd of the plain formula is several times slower.

It has no parameters, so that to it the rows of a stack are just more examples.
"""

# pyright: reportIncompatibleMethodOverride=false

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

EPS = 1e-5


class _Normalize(Function):
    """Returns the normalised examples, and the mean and reciprocal deviation of each group, for the backward."""

    @staticmethod
    def forward(x: Tensor, groups: int) -> tuple[Tensor, Tensor, Tensor]:
        if x.device.type == "cpu":
            y = _channels_second(x)
            batch, channels, _, positions = y.shape
            out, mean, scale = torch.native_group_norm(y, None, None, batch, channels, positions, groups, EPS)
            return _channels_last(out, x), mean, scale
        grouped = _grouped(x, groups)
        variance, mean = torch.var_mean(grouped, (1, 3), correction=0)
        scale = torch.rsqrt(variance + EPS)
        out = (grouped - mean[:, None, :, None]) * scale[:, None, :, None]
        return out.reshape(x.shape), mean, scale

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.groups = inputs[1]
        ctx.save_for_backward(inputs[0], *output[1:])
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _NormalizeBackward.apply(grads[0], *ctx.saved_tensors, ctx.groups), None  # pyright: ignore

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, groups: int) -> tuple[Any, tuple[int, ...]]:
        x = _rows_first(x, in_dims[0])
        results = _Normalize.apply(x.flatten(0, 1), groups)
        return tuple(result.unflatten(0, x.shape[:2]) for result in results), (0, 0, 0)  # pyright: ignore


class _NormalizeBackward(Function):
    """grad - mean(grad) - out * mean(grad * out), over the group, times the scale."""

    @staticmethod
    def forward(grad: Tensor, x: Tensor, mean: Tensor, scale: Tensor, groups: int) -> Tensor:
        if x.device.type == "cpu":
            y, g = _channels_second(x), _channels_second(grad)
            sizes, wanted = (*y.shape[:2], y.shape[3], groups), [True, False, False]
            back = torch.ops.aten.native_group_norm_backward(g, y, mean, scale, None, *sizes, wanted)[0]
            return _channels_last(back, x)
        g, s = _grouped(grad, groups), scale[:, None, :, None]
        out = (_grouped(x, groups) - mean[:, None, :, None]) * s
        back = (g - g.mean((1, 3), keepdim=True) - out * (g * out).mean((1, 3), keepdim=True)) * s
        return back.reshape(x.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        *tensors, groups = inputs
        tensors = [_rows_first(t, dim) for t, dim in zip(tensors, in_dims, strict=False)]
        back = _NormalizeBackward.apply(*(t.flatten(0, 1) for t in tensors), groups)
        return back.unflatten(0, tensors[0].shape[:2]), 0  # pyright: ignore


def normalize(x: Tensor, groups: int) -> Tensor:
    """Zero mean and unit variance over all positions of each group of channels; (B, *space, C)."""
    return _Normalize.apply(x, groups)[0]  # pyright: ignore


def _rows_first(x: Tensor, dim: int | None) -> Tensor:
    assert dim is not None
    return x.movedim(dim, 0)


def _grouped(x: Tensor, groups: int) -> Tensor:
    return x.reshape(len(x), -1, groups, x.shape[-1] // groups)


def _channels_second(x: Tensor) -> Tensor:
    """A view as a flat image, whose memory torch recognises as channels last."""
    return x.reshape(len(x), 1, -1, x.shape[-1]).permute(0, 3, 1, 2)


def _channels_last(y: Tensor, like: Tensor) -> Tensor:
    return y.permute(0, 2, 3, 1).reshape(like.shape)
