"""Normalize rows over space, with scale, shift and an optional ReLU."""

# pyright: reportIncompatibleMethodOverride=false

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from esper.kasmina.kernels.rows import RowFunction, alone, along, dense, usable

EPS = 1e-5


def group_norm(x: Tensor, weight: Tensor, bias: Tensor, groups: int, relu: bool) -> Tensor:
    """Return the group norm of (R, B, *space, C), with statistics over the positions and channels of each group.

    Statistics are computed in single precision at least.
    """
    if alone(x, weight, bias):
        wide = torch.promote_types(x.dtype, torch.float32)
        signal, gain, shift = (t.squeeze(0).to(wide) for t in (x, weight, bias))
        # As a contiguous signal: torch's backward can crash on channels-last images.
        out = functional.group_norm(signal.flatten(1, -2).mT.contiguous(), groups, gain, shift, EPS)
        return (out.relu() if relu else out).mT.reshape(x.shape).to(x.dtype)
    return _Norm.of(x, weight, bias, groups, relu)[0]


class _Norm(RowFunction):
    """A group norm that also returns the mean and reciprocal deviation of each group, for the backward pass."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, groups: int, relu: bool) -> tuple[Tensor, Tensor, Tensor]:
        if usable(x, weight, bias):
            from esper.kasmina.kernels import gpu

            if gpu.fits(x):
                return gpu.norm(dense(x), dense(weight), dense(bias), groups, relu, EPS)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        if x.device.type == "cpu":
            y = _channels_second(wide)
            batch, channels, _, positions = y.shape
            out, mean, scale = torch.native_group_norm(y, None, None, batch, channels, positions, groups, EPS)
            out = _channels_last(out, x)
        else:
            grouped = _grouped(wide, groups)
            variance, mean = torch.var_mean(grouped, (1, 3), correction=0)
            scale = torch.rsqrt(variance + EPS)
            out = _normalized(grouped, mean, scale).reshape(x.shape)
        out = torch.addcmul(along(bias, x), out, along(weight, x))
        mean, scale = (statistic.view(*x.shape[:2], groups) for statistic in (mean, scale))
        return (out.relu_() if relu else out).to(x.dtype), mean, scale

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.groups, ctx.relu = inputs[3:]
        ctx.save_for_backward(*inputs[:3], *output)
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return *_NormBackward.once(grads[0], *ctx.saved_tensors, ctx.groups, ctx.relu), None, None


class _NormBackward(RowFunction):
    """The gradient (g - mean(g) - n * mean(g * n)) * scale over a group; n is normalized x and g is grad * weight."""

    @staticmethod
    def forward(
        grad: Tensor,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        out: Tensor,
        mean: Tensor,
        scale: Tensor,
        groups: int,
        relu: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        if usable(grad, x, weight, bias):
            from esper.kasmina.kernels import gpu

            if gpu.fits(x):
                return gpu.norm_backward(dense(grad), dense(x), dense(weight), dense(bias), mean, scale, groups, relu)
        wide = mean.dtype
        grad, image = grad.to(wide), x.to(wide)
        if relu:
            grad = torch.ops.aten.threshold_backward(grad, out, 0)
        mean, scale = mean.flatten(0, 1).contiguous(), scale.flatten(0, 1).contiguous()
        space, rows = tuple(range(2, x.ndim - 1)), x.shape[:2]
        level, product = grad.sum(space), (grad * image).sum(space)  # R B C
        each = [t.view(*rows, groups, 1).expand(*rows, groups, x.shape[-1] // groups).flatten(2) for t in (mean, scale)]
        into_weight, into_bias = ((product - each[0] * level) * each[1]).sum(1), level.sum(1)
        into = into_weight.to(weight.dtype), into_bias.to(bias.dtype)
        grad = grad * along(weight, x)
        if x.device.type == "cpu":
            y, g = _channels_second(image), _channels_second(grad)
            sizes, wanted = (*y.shape[:2], y.shape[3], groups), [True, False, False]
            back = torch.ops.aten.native_group_norm_backward(g, y, mean, scale, None, *sizes, wanted)[0]
            return _channels_last(back, x).to(x.dtype), *into
        g, normalized = _grouped(grad, groups), _normalized(_grouped(image, groups), mean, scale)
        shift, slope = g.mean((1, 3), keepdim=True), (g * normalized).mean((1, 3), keepdim=True)
        back = (g - shift - normalized * slope) * scale[:, None, :, None]
        return back.reshape(x.shape).to(x.dtype), *into

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass


def _grouped(x: Tensor, groups: int) -> Tensor:
    """Reshape to (examples, positions, groups, channels of a group)."""
    return x.reshape(x.shape[0] * x.shape[1], -1, groups, x.shape[-1] // groups)


def _normalized(grouped: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    return (grouped - mean[:, None, :, None]) * scale[:, None, :, None]


def _channels_second(x: Tensor) -> Tensor:
    """Reshape to images of height 1 in channels-last memory: torch's backward is wrong if layouts differ."""
    return x.contiguous().view(x.shape[0] * x.shape[1], 1, -1, x.shape[-1]).permute(0, 3, 1, 2)


def _channels_last(y: Tensor, like: Tensor) -> Tensor:
    return y.permute(0, 2, 3, 1).reshape(like.shape)
