"""Convolve rows, each with its own weights.

On a GPU one kernel gathers patches while it multiplies them. Elsewhere patches are copied and multiplied in batches.
A single row takes torch's own convolution, which is faster for it.
"""

# pyright: reportIncompatibleMethodOverride=false

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from esper.kasmina.kernels.rows import RowFunction, alone, along, dense, usable


def convolve(x: Tensor, weight: Tensor, stride: int, bias: Tensor | None = None) -> Tensor:
    """Convolve (R, B, *space, C) with (R, *kernel, C, O) to (R, B, *space / stride, O), and add the bias (R, O).

    Space is padded with zeros.
    """
    if bias is not None and not usable(x, weight, bias):
        out = convolve(x, weight, stride)
        return out + along(bias, out)
    x, weight = _autocast(x, weight)
    if alone(x, weight):
        return _torchs(x, weight.squeeze(0).movedim((-1, -2), (0, 1)), stride)
    return _Conv.of(x, weight, bias, stride)


def convolve_channels(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Convolve each channel separately, with weights (R, *kernel, C)."""
    x, weight = _autocast(x, weight)
    if alone(x, weight):
        return _torchs(x, weight.squeeze(0).movedim(-1, 0)[:, None], stride, groups=x.shape[-1])
    return _Depthwise.of(x, weight, stride)


def _autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    device = tensors[0].device.type
    if torch.is_autocast_enabled(device) and tensors[0].dtype != torch.float64:
        return tuple(t.to(torch.get_autocast_dtype(device)) for t in tensors)
    return tensors


def _torchs(x: Tensor, weight: Tensor, stride: int, groups: int = 1) -> Tensor:
    conv = functional.conv1d if weight.ndim == 3 else functional.conv2d
    padding = tuple(size // 2 for size in weight.shape[2:])
    return conv(x.squeeze(0).movedim(-1, 1), weight, None, stride, padding, groups=groups).movedim(1, -1)[None]


class _Conv(RowFunction):
    """A convolution; a bias is added by the GPU kernel only."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> Tensor:
        if usable(x, weight):
            from esper.kasmina.kernels import gpu

            return gpu.conv(dense(x), dense(weight), stride, None if bias is None else dense(bias))
        assert bias is None
        *kernel, inner, outer = weight.shape[1:]
        if stride == 1 and inner >= 2 * outer:  # products with all taps are smaller than patches
            seen = x.flatten(1, -2) @ _mirrored(weight)
            return _scattered(seen.view(*x.shape[:-1], *kernel, outer), (*x.shape[:-1], outer), kernel, stride)
        return (_patches(x, kernel, stride) @ weight.flatten(1, -2)).unflatten(1, _after(x, stride))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, int], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.stride = inputs[3]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return *_ConvBackward.once(grads[0], *ctx.saved_tensors, ctx.stride, *ctx.needs_input_grad[:3]), None


class _ConvBackward(RowFunction):
    @staticmethod
    def forward(
        grad: Tensor, x: Tensor, weight: Tensor, stride: int, for_x: bool, for_weight: bool, for_bias: bool
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        if usable(grad, x, weight):
            from esper.kasmina.kernels import gpu

            grad, x, weight = dense(grad), dense(x), dense(weight)
            into_x = gpu.conv_for_input(grad, weight, stride, x.shape) if for_x else None
            into_weight = into_bias = None
            if for_weight or for_bias:
                into_weight, into_bias = gpu.conv_for_weight(grad, x, weight, stride, for_bias)
            return into_x, into_weight, into_bias
        if for_x and for_weight and stride == 1 and weight.shape[-1] <= weight.shape[-2]:
            into_x, into_weight = _both_from_patches(grad, x, weight)
            return into_x, into_weight, None
        flat, kernel = grad.flatten(1, -2), weight.shape[1:-2]
        into_x = into_weight = None
        if for_x:
            seen = (flat @ weight.flatten(1, -2).mT).view(*grad.shape[:-1], *kernel, -1)
            into_x = _scattered(seen, x.shape, kernel, stride)
        if for_weight:
            into_weight = (_patches(x, kernel, stride).mT @ flat).view(weight.shape)
        return into_x, into_weight, None

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass


def _both_from_patches(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Multiply the patches of the output's gradient with both factors, instead of scattering and of patching x.

    They are the smaller patches, since the output has no more channels than the input.
    """
    kernel = weight.shape[1:-2]
    taps = tuple(range(1, 1 + len(kernel)))
    patches = _patches(grad, kernel, 1)  # R (B positions) (taps O)
    into_weight = (x.flatten(1, -2).mT @ patches).view(len(x), -1, *kernel, grad.shape[-1])
    return (patches @ _mirrored(weight).mT).view(x.shape), into_weight.movedim(1, -2).flip(taps)


def _mirrored(weight: Tensor) -> Tensor:
    """Return the weights as matrices (R, C, taps * O), with the taps in reverse order."""
    return weight.flip(tuple(range(1, weight.ndim - 2))).movedim(-2, 1).flatten(2)


class _Depthwise(RowFunction):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, stride: int) -> Tensor:
        if usable(x, weight):
            from esper.kasmina.kernels import gpu

            return gpu.depthwise(dense(x), dense(weight), stride)
        kernel = weight.shape[1:-1]
        axes = tuple(range(-1 - len(kernel), -1))
        return (_windows(x, kernel, stride) * _to_windows(weight)).sum(axes)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.stride = inputs[2]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return *_DepthwiseBackward.once(grads[0], *ctx.saved_tensors, ctx.stride), None


class _DepthwiseBackward(RowFunction):
    @staticmethod
    def forward(grad: Tensor, x: Tensor, weight: Tensor, stride: int) -> tuple[Tensor, Tensor]:
        if usable(grad, x, weight):
            from esper.kasmina.kernels import gpu

            grad, x, weight = dense(grad), dense(x), dense(weight)
            into_x = gpu.depthwise_for_input(grad, weight, stride, x.shape)
            return into_x, gpu.depthwise_for_weight(grad, x, weight, stride)
        kernel = weight.shape[1:-1]
        spread = grad.view(*grad.shape[:-1], *[1] * len(kernel), -1)
        into_weight = (_windows(x, kernel, stride) * spread).sum(tuple(range(1, grad.ndim - 1)))
        return _scattered(spread * _to_windows(weight), x.shape, kernel, stride), into_weight

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass


def _after(x: Tensor, stride: int) -> tuple[int, ...]:
    """Return the number of examples and the size of their space after a stride."""
    return x.shape[1], *(-(-size // stride) for size in x.shape[2:-1])


def _to_windows(weight: Tensor) -> Tensor:
    """Reshape weights (R, *kernel, C) so that they broadcast with windows."""
    return weight.view(len(weight), *[1] * (weight.ndim - 1), *weight.shape[1:])


def _windows(x: Tensor, kernel: Sequence[int], stride: int) -> Tensor:
    """Return a view of the inputs of each output position, (R, B, *positions, *kernel, C)."""
    x = functional.pad(x, [0, 0, *(side for size in reversed(kernel) for side in (size // 2, size // 2))])
    for axis, size in enumerate(kernel, start=2):
        x = x.unfold(axis, size, stride)
    return x.movedim(2 + len(kernel), -1)


def _patches(x: Tensor, kernel: Sequence[int], stride: int) -> Tensor:
    """Return the inputs of each output position as matrices, (R, B * positions, taps * C)."""
    return _windows(x, kernel, stride).flatten(-1 - len(kernel)).flatten(1, -2)


def _scattered(windows: Tensor, shape: Sequence[int], kernel: Sequence[int], stride: int) -> Tensor:
    """Add windows up at their positions: the transpose of `_windows`."""
    rows, batch, *space, channels = shape
    out = windows.new_zeros(rows, batch, *(size + k // 2 * 2 for size, k in zip(space, kernel, strict=True)), channels)
    positions = windows.shape[2 : 2 + len(kernel)]
    for tap in itertools.product(*map(range, kernel)):
        window = tuple(slice(t, t + (n - 1) * stride + 1, stride) for t, n in zip(tap, positions, strict=True))
        out[:, :, *window] += windows[..., *tap, :]
    inner = tuple(slice(k // 2, k // 2 + size) for size, k in zip(space, kernel, strict=True))
    return out[:, :, *inner]
