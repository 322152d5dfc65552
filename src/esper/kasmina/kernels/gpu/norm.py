"""Normalize rows over space, with scale, shift and an optional ReLU."""

# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false, reportCallIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from esper.kasmina.kernels.gpu.launch import launch

LARGEST = 1 << 15
"""Most elements of an example that one program can hold."""


@triton.jit(do_not_specialize=["batch", "positions", "eps"])
def _norm(
    x,
    weight,
    bias,
    out,
    mean,
    scale,
    batch,
    positions,
    x_row,
    weight_row,
    bias_row,
    eps,
    GROUPS: tl.constexpr,
    C: tl.constexpr,
    RELU: tl.constexpr,
    P: tl.constexpr,
    G: tl.constexpr,
    W: tl.constexpr,
):
    """Normalize G groups of one example, with C channels in each group, in a tile of W."""
    example = tl.program_id(0).to(tl.int64)
    row = example // batch
    groups = tl.program_id(1) * G + tl.arange(0, G)
    p, g, w = tl.arange(0, P)[:, None, None], groups[None, :, None], tl.arange(0, W)[None, None, :]
    here = (w < C) & (g < GROUPS)
    known = (p < positions) & here
    channel = g * C + w
    at = p * (GROUPS * C) + channel
    values = tl.load(x + row * x_row + (example % batch) * positions * (GROUPS * C) + at, mask=known, other=0.0)
    values = values.to(tl.float32)
    count = positions * C
    center = tl.sum(tl.sum(values, 2), 0) / count
    apart = tl.where(known, values - center[None, :, None], 0.0)
    factor = tl.rsqrt(tl.sum(tl.sum(apart * apart, 2), 0) / count + eps)
    gain = tl.load(weight + row * weight_row + channel, mask=here, other=0.0).to(tl.float32)
    shift = tl.load(bias + row * bias_row + channel, mask=here, other=0.0).to(tl.float32)
    result = apart * factor[None, :, None] * gain + shift
    if RELU:
        result = tl.where(result < 0, 0.0, result)  # lets NaN through, as torch does
    tl.store(out + example * positions * (GROUPS * C) + at, result.to(out.dtype.element_ty), mask=known)
    tl.store(mean + example * GROUPS + groups, center)
    tl.store(scale + example * GROUPS + groups, factor)


@triton.jit(do_not_specialize=["batch", "positions", "examples"])
def _norm_backward(
    grad,
    x,
    weight,
    bias,
    mean,
    scale,
    out,
    parts,
    batch,
    positions,
    x_row,
    weight_row,
    bias_row,
    examples,
    GROUPS: tl.constexpr,
    C: tl.constexpr,
    RELU: tl.constexpr,
    P: tl.constexpr,
    G: tl.constexpr,
    W: tl.constexpr,
):
    """Compute the gradient of G groups of one example; parts are sums for weight and bias, (2, examples, channels)."""
    example = tl.program_id(0).to(tl.int64)
    row = example // batch
    groups = tl.program_id(1) * G + tl.arange(0, G)
    p, g, w = tl.arange(0, P)[:, None, None], groups[None, :, None], tl.arange(0, W)[None, None, :]
    here = (w < C) & (g < GROUPS)
    known = (p < positions) & here
    channel = g * C + w
    at = p * (GROUPS * C) + channel
    values = tl.load(x + row * x_row + (example % batch) * positions * (GROUPS * C) + at, mask=known, other=0.0)
    into = tl.load(grad + example * positions * (GROUPS * C) + at, mask=known, other=0.0).to(tl.float32)
    center = tl.load(mean + example * GROUPS + groups)[None, :, None]
    factor = tl.load(scale + example * GROUPS + groups)[None, :, None]
    gain = tl.load(weight + row * weight_row + channel, mask=here, other=0.0).to(tl.float32)
    normal = tl.where(known, (values.to(tl.float32) - center) * factor, 0.0)
    if RELU:
        shift = tl.load(bias + row * bias_row + channel, mask=here, other=0.0).to(tl.float32)
        into = tl.where(normal * gain + shift > 0, into, 0.0)
    at_part = tl.reshape(channel, (G, W))
    here = tl.reshape(here, (G, W))
    tl.store(parts + example * (GROUPS * C) + at_part, tl.sum(into * normal, 0), mask=here)
    tl.store(parts + (examples + example) * (GROUPS * C) + at_part, tl.sum(into, 0), mask=here)
    into *= gain
    count = positions * C
    level = (tl.sum(tl.sum(into, 2), 0) / count)[None, :, None]
    slope = (tl.sum(tl.sum(into * normal, 2), 0) / count)[None, :, None]
    result = (into - level - normal * slope) * factor
    tl.store(out + example * positions * (GROUPS * C) + at, result.to(out.dtype.element_ty), mask=known)


def fits(x: Tensor) -> bool:
    return triton.next_power_of_2(x.shape[2:-1].numel()) * triton.next_power_of_2(x.shape[-1]) <= LARGEST


def norm(x: Tensor, weight: Tensor, bias: Tensor, groups: int, relu: bool, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    mean, scale = x.new_empty(2, *x.shape[:2], groups, dtype=torch.float32)
    flags, warps = _tile(x, groups, relu)
    sizes = (x.shape[1], x.shape[2:-1].numel(), x.stride(0), weight.stride(0), bias.stride(0))
    launch(
        _norm,
        (x.shape[0] * x.shape[1], groups // flags[-2]),
        x,
        weight,
        bias,
        out,
        mean,
        scale,
        *sizes,
        eps,
        *flags,
        num_warps=warps,
    )
    return out, mean, scale


def norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, scale: Tensor, groups: int, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    rows, batch, channels = *x.shape[:2], x.shape[-1]
    grad = grad.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    parts = x.new_empty(2, rows, batch, channels, dtype=torch.float32)
    flags, warps = _tile(x, groups, relu)
    sizes = (batch, x.shape[2:-1].numel(), x.stride(0), weight.stride(0), bias.stride(0), rows * batch)
    launch(
        _norm_backward,
        (rows * batch, groups // flags[-2]),
        grad,
        x,
        weight,
        bias,
        mean,
        scale,
        out,
        parts,
        *sizes,
        *flags,
        num_warps=warps,
    )
    into_weight, into_bias = parts.sum(2).to(weight.dtype)
    return out, into_weight, into_bias


def _tile(x: Tensor, groups: int, relu: bool) -> tuple[tuple[int, int, bool, int, int, int], int]:
    positions, channels = x.shape[2:-1].numel(), x.shape[-1] // groups
    p, w = triton.next_power_of_2(positions), triton.next_power_of_2(channels)
    together = groups if p * w * groups <= 4096 else 1
    return (groups, channels, relu, p, together, w), max(1, min(16, p * w * together // 512))
