"""Normalize images over space, apply a ReLU and max-pool 2×2 blocks, in one pass over memory."""

# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false, reportCallIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from esper.kasmina.kernels.gpu.launch import launch
from esper.kasmina.kernels.gpu.norm import LARGEST

SECTOR = 32
"""Bytes that the device's memory is read in: narrower groups of channels are computed together."""
TOGETHER = 1 << 14
"""Most elements of an example whose groups are computed together."""


@triton.jit
def _relu(normal, gain, shift, out):
    """Return scaled and shifted values after a ReLU, rounded as they would be stored; lets NaN through."""
    value = normal * gain + shift
    return tl.where(value < 0, 0.0, value).to(out.dtype.element_ty)


@triton.jit
def _larger(best, other):
    """Return whether a value takes the place of the best before it, as torch's max-pooling has it."""
    return (other > best) | (other != other)


@triton.jit(do_not_specialize=["batch", "height", "width", "eps"])
def _norm_pool(
    x,
    weight,
    bias,
    out,
    mean,
    scale,
    batch,
    height,
    width,
    x_row,
    weight_row,
    bias_row,
    eps,
    GROUPS: tl.constexpr,
    C: tl.constexpr,
    Q: tl.constexpr,
    G: tl.constexpr,
    W: tl.constexpr,
):
    """Compute Q blocks, G groups of one example; the four pixels of each block are four tensors."""
    ALL: tl.constexpr = GROUPS * C
    example = tl.program_id(0).to(tl.int64)
    row = example // batch
    groups = tl.program_id(1) * G + tl.arange(0, G)
    q, g, w = tl.arange(0, Q)[:, None, None], groups[None, :, None], tl.arange(0, W)[None, None, :]
    blocks, across = (height // 2) * (width // 2), width // 2
    here = (w < C) & (g < GROUPS)
    known = (q < blocks) & here
    channel = g * C + w
    corner = x + row * x_row + (example % batch) * height * width * ALL
    corner += ((q // across) * 2 * width + (q % across) * 2) * ALL + channel
    below = width * ALL
    v0 = tl.load(corner, mask=known, other=0.0).to(tl.float32)
    v1 = tl.load(corner + ALL, mask=known, other=0.0).to(tl.float32)
    v2 = tl.load(corner + below, mask=known, other=0.0).to(tl.float32)
    v3 = tl.load(corner + below + ALL, mask=known, other=0.0).to(tl.float32)
    count = height * width * C
    center = tl.sum(tl.sum(v0 + v1 + v2 + v3, 2), 0) / count
    middle = center[None, :, None]
    v0, v1 = tl.where(known, v0 - middle, 0.0), tl.where(known, v1 - middle, 0.0)
    v2, v3 = tl.where(known, v2 - middle, 0.0), tl.where(known, v3 - middle, 0.0)
    factor = tl.rsqrt(tl.sum(tl.sum(v0 * v0 + v1 * v1 + v2 * v2 + v3 * v3, 2), 0) / count + eps)
    by = factor[None, :, None]
    gain = tl.load(weight + row * weight_row + channel, mask=here, other=0.0).to(tl.float32)
    shift = tl.load(bias + row * bias_row + channel, mask=here, other=0.0).to(tl.float32)
    best = _relu(v0 * by, gain, shift, out)
    other = _relu(v1 * by, gain, shift, out)
    best = tl.where(_larger(best, other), other, best)
    other = _relu(v2 * by, gain, shift, out)
    best = tl.where(_larger(best, other), other, best)
    other = _relu(v3 * by, gain, shift, out)
    best = tl.where(_larger(best, other), other, best)
    tl.store(out + example * blocks * ALL + q * ALL + channel, best, mask=known)
    tl.store(mean + example * GROUPS + groups, center)
    tl.store(scale + example * GROUPS + groups, factor)


@triton.jit(do_not_specialize=["batch", "height", "width", "examples"])
def _norm_pool_backward(
    grad,
    x,
    weight,
    bias,
    mean,
    scale,
    out,
    parts,
    batch,
    height,
    width,
    x_row,
    weight_row,
    bias_row,
    examples,
    GROUPS: tl.constexpr,
    C: tl.constexpr,
    Q: tl.constexpr,
    G: tl.constexpr,
    W: tl.constexpr,
):
    """Compute the gradient of Q blocks, G groups of one example; parts are sums for weight and bias."""
    ALL: tl.constexpr = GROUPS * C
    example = tl.program_id(0).to(tl.int64)
    row = example // batch
    groups = tl.program_id(1) * G + tl.arange(0, G)
    q, g, w = tl.arange(0, Q)[:, None, None], groups[None, :, None], tl.arange(0, W)[None, None, :]
    blocks, across = (height // 2) * (width // 2), width // 2
    here = (w < C) & (g < GROUPS)
    known = (q < blocks) & here
    channel = g * C + w
    corner = ((q // across) * 2 * width + (q % across) * 2) * ALL + channel
    below = width * ALL
    source = x + row * x_row + (example % batch) * height * width * ALL + corner
    middle = tl.load(mean + example * GROUPS + groups)[None, :, None]
    by = tl.load(scale + example * GROUPS + groups)[None, :, None]
    gain = tl.load(weight + row * weight_row + channel, mask=here, other=0.0).to(tl.float32)
    shift = tl.load(bias + row * bias_row + channel, mask=here, other=0.0).to(tl.float32)
    n0 = tl.where(known, (tl.load(source, mask=known, other=0.0).to(tl.float32) - middle) * by, 0.0)
    n1 = tl.where(known, (tl.load(source + ALL, mask=known, other=0.0).to(tl.float32) - middle) * by, 0.0)
    n2 = tl.where(known, (tl.load(source + below, mask=known, other=0.0).to(tl.float32) - middle) * by, 0.0)
    n3 = tl.where(known, (tl.load(source + below + ALL, mask=known, other=0.0).to(tl.float32) - middle) * by, 0.0)
    best = _relu(n0, gain, shift, out)
    normal = n0  # that of the pixel which the gradient goes to
    chosen = tl.zeros((Q, G, W), dtype=tl.int32)
    other = _relu(n1, gain, shift, out)
    better = _larger(best, other)
    best, normal, chosen = tl.where(better, other, best), tl.where(better, n1, normal), tl.where(better, 1, chosen)
    other = _relu(n2, gain, shift, out)
    better = _larger(best, other)
    best, normal, chosen = tl.where(better, other, best), tl.where(better, n2, normal), tl.where(better, 2, chosen)
    other = _relu(n3, gain, shift, out)
    better = _larger(best, other)
    normal, chosen = tl.where(better, n3, normal), tl.where(better, 3, chosen)
    into = tl.load(grad + example * blocks * ALL + q * ALL + channel, mask=known, other=0.0).to(tl.float32)
    into = tl.where(normal * gain + shift > 0, into, 0.0)
    at_part = tl.reshape(channel, (G, W))
    here = tl.reshape(here, (G, W))
    tl.store(parts + example * ALL + at_part, tl.sum(into * normal, 0), mask=here)
    tl.store(parts + (examples + example) * ALL + at_part, tl.sum(into, 0), mask=here)
    into *= gain
    count = height * width * C
    level = (tl.sum(tl.sum(into, 2), 0) / count)[None, :, None]
    slope = (tl.sum(tl.sum(into * normal, 2), 0) / count)[None, :, None]
    target = out + example * height * width * ALL + corner
    n0 = (tl.where(chosen == 0, into, 0.0) - level - n0 * slope) * by
    n1 = (tl.where(chosen == 1, into, 0.0) - level - n1 * slope) * by
    n2 = (tl.where(chosen == 2, into, 0.0) - level - n2 * slope) * by
    n3 = (tl.where(chosen == 3, into, 0.0) - level - n3 * slope) * by
    tl.store(target, n0.to(out.dtype.element_ty), mask=known)
    tl.store(target + ALL, n1.to(out.dtype.element_ty), mask=known)
    tl.store(target + below, n2.to(out.dtype.element_ty), mask=known)
    tl.store(target + below + ALL, n3.to(out.dtype.element_ty), mask=known)


def pools(x: Tensor, groups: int) -> bool:
    """Return whether the kernels apply to images (R, B, height, width, C): even sides, and groups that fit."""
    (height, width), width_of_group = x.shape[2:4], x.shape[-1] // groups
    blocks = triton.next_power_of_2(height * width // 4)
    return height % 2 == 0 and width % 2 == 0 and 4 * blocks * triton.next_power_of_2(width_of_group) <= LARGEST


def norm_pool(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    rows, batch, height, width, channels = x.shape
    out = x.new_empty(rows, batch, height // 2, width // 2, channels)
    mean, scale = x.new_empty(2, rows, batch, groups, dtype=torch.float32)
    flags, warps = _tile(x, groups)
    sizes = (batch, height, width, x.stride(0), weight.stride(0), bias.stride(0))
    grid = (rows * batch, groups // flags[-2])
    launch(_norm_pool, grid, x, weight, bias, out, mean, scale, *sizes, eps, *flags, num_warps=warps)
    return out, mean, scale


def norm_pool_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, scale: Tensor, groups: int
) -> tuple[Tensor, Tensor, Tensor]:
    rows, batch, height, width, channels = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    parts = x.new_empty(2, rows, batch, channels, dtype=torch.float32)
    flags, warps = _tile(x, groups)
    sizes = (batch, height, width, x.stride(0), weight.stride(0), bias.stride(0), rows * batch)
    grid = (rows * batch, groups // flags[-2])
    tensors = (grad.contiguous(), x, weight, bias, mean, scale, out, parts)
    launch(_norm_pool_backward, grid, *tensors, *sizes, *flags, num_warps=warps)
    into_weight, into_bias = parts.sum(2).to(weight.dtype)
    return out, into_weight, into_bias


def _tile(x: Tensor, groups: int) -> tuple[tuple[int, int, int, int, int], int]:
    channels = x.shape[-1] // groups
    q, w = triton.next_power_of_2(x.shape[2] * x.shape[3] // 4), triton.next_power_of_2(channels)
    narrow = channels * x.element_size() < SECTOR and 4 * q * w * groups <= TOGETHER
    together = groups if narrow or 4 * q * w * groups <= 4096 else 1
    return (groups, channels, q, together, w), max(1, min(16, 4 * q * w * together // 512))
