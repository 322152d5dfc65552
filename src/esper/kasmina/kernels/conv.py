"""Convolutions of rows, each with its own weights.

On a GPU one kernel gathers the patches while it multiplies them. Elsewhere patches are copied and multiplied in
batches, and one row alone takes torch's own convolution, which is faster for it.
"""

# pyright: reportIncompatibleMethodOverride=false

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from esper.kasmina.kernels.rows import RowFunction, alone, dense, usable


def convolve(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """(R, B, *space, C), (R, O, C, *kernel) to (R, B, *space / stride, O), between zeros, over one or two axes."""
    device = x.device.type
    if torch.is_autocast_enabled(device) and x.dtype != torch.float64:
        x, weight = (t.to(torch.get_autocast_dtype(device)) for t in (x, weight))
    if alone(x, weight):
        conv = functional.conv1d if weight.ndim == 4 else functional.conv2d
        padding = tuple(size // 2 for size in weight.shape[3:])
        return conv(x[0].movedim(-1, 1), weight[0], None, stride, padding).movedim(1, -1)[None]
    return _Conv.of(x, weight, stride)


class _Conv(RowFunction):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, stride: int) -> Tensor:
        if usable(x, weight):
            from esper.kasmina.kernels import gpu

            return gpu.conv(dense(x), dense(weight), stride)
        out = _patches(x, weight.shape[3:], stride) @ _matrix(weight).mT
        return out.unflatten(1, (x.shape[1], *(-(-size // stride) for size in x.shape[2:-1])))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.stride = inputs[2]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[:2]
        return *_ConvBackward.once(grads[0], *ctx.saved_tensors, ctx.stride, *wanted), None


class _ConvBackward(RowFunction):
    @staticmethod
    def forward(
        grad: Tensor, x: Tensor, weight: Tensor, stride: int, for_x: bool, for_weight: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        if usable(grad, x, weight):
            from esper.kasmina.kernels import gpu

            grad, x, weight = dense(grad), dense(x), dense(weight)
            return (
                gpu.conv_for_input(grad, weight, stride, x.shape) if for_x else None,
                gpu.conv_for_weight(grad, x, weight, stride) if for_weight else None,
            )
        flat, kernel = grad.flatten(1, -2), weight.shape[3:]
        into_x = into_weight = None
        if for_x:
            into_x = _scattered((flat @ _matrix(weight)).view(*grad.shape[:-1], *kernel, -1), x.shape, kernel, stride)
        if for_weight:
            into_weight = (flat.mT @ _patches(x, kernel, stride)).unflatten(2, (*kernel, -1)).movedim(-1, 2)
        return into_x, into_weight

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass


def _matrix(weight: Tensor) -> Tensor:
    """(R, O, taps * C)."""
    return weight.movedim(2, -1).flatten(2)


def _patches(x: Tensor, kernel: Sequence[int], stride: int) -> Tensor:
    """What each output position sees, (R, B * positions, taps * C)."""
    x = functional.pad(x, [0, 0, *(side for size in reversed(kernel) for side in (size // 2, size // 2))])
    for axis, size in enumerate(kernel, start=2):
        x = x.unfold(axis, size, stride)
    axes = len(kernel)
    x = x.movedim(2 + axes, -1)  # R B *positions *kernel C
    return x.reshape(len(x), x.shape[1 : -1 - axes].numel(), -1)


def _scattered(patches: Tensor, shape: Sequence[int], kernel: Sequence[int], stride: int) -> Tensor:
    """Adds patches, (R, B, *positions, *kernel, C), up where they were seen: the transpose of `_patches`."""
    rows, batch, *space, channels = shape
    out = patches.new_zeros(rows, batch, *(size + k // 2 * 2 for size, k in zip(space, kernel, strict=True)), channels)
    positions = patches.shape[2 : 2 + len(kernel)]
    for tap in itertools.product(*map(range, kernel)):
        window = tuple(slice(t, t + (n - 1) * stride + 1, stride) for t, n in zip(tap, positions, strict=True))
        out[:, :, *window] += patches[..., *tap, :]
    inner = tuple(slice(k // 2, k // 2 + size) for size, k in zip(space, kernel, strict=True))
    return out[:, :, *inner]
