"""Normalize the channels of every position, with scale and shift."""

# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false, reportCallIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from esper.kasmina.kernels.gpu.launch import launch

TILE = 4096
"""Elements that one program holds, unless a single position has more channels."""


@triton.jit
def _read(x, row, positions, channels, stride, T: tl.constexpr, C: tl.constexpr):
    """Return T positions of a row in single precision, where they lie within it, and which of them exist."""
    p, c = tl.program_id(0) * T + tl.arange(0, T)[:, None], tl.arange(0, C)[None, :]
    known = (p < positions) & (c < channels)
    at = p.to(tl.int64) * channels + c
    return tl.load(x + row * stride + at, mask=known, other=0.0).to(tl.float32), at, known


@triton.jit
def _standardized(values, known, channels, eps):
    """Return values with mean 0 and variance 1 at every position, and the reciprocal deviations."""
    apart = tl.where(known, values - (tl.sum(values, 1) / channels)[:, None], 0.0)
    factor = tl.rsqrt(tl.sum(apart * apart, 1) / channels + eps)[:, None]
    return apart * factor, factor


@triton.jit(do_not_specialize=["positions", "eps"])
def _layer_norm(
    x, weight, bias, out, positions, channels, x_row, weight_row, bias_row, eps, T: tl.constexpr, C: tl.constexpr
):
    row, c = tl.program_id(1).to(tl.int64), tl.arange(0, C)
    values, at, known = _read(x, row, positions, channels, x_row, T, C)
    normal, _ = _standardized(values, known, channels, eps)
    gain = tl.load(weight + row * weight_row + c, mask=c < channels, other=0.0).to(tl.float32)
    shift = tl.load(bias + row * bias_row + c, mask=c < channels, other=0.0).to(tl.float32)
    result = normal * gain[None, :] + shift[None, :]
    tl.store(out + row * positions * channels + at, result.to(out.dtype.element_ty), mask=known)


@triton.jit(do_not_specialize=["positions", "tiles", "eps"])
def _layer_norm_backward(
    grad,
    x,
    weight,
    out,
    parts,
    positions,
    channels,
    tiles,
    grad_row,
    x_row,
    weight_row,
    eps,
    T: tl.constexpr,
    C: tl.constexpr,
):
    """Compute the gradient of T positions; parts are their sums for weight and bias, (R, tiles, 2, channels)."""
    row, c = tl.program_id(1).to(tl.int64), tl.arange(0, C)
    values, at, known = _read(x, row, positions, channels, x_row, T, C)
    into, _, _ = _read(grad, row, positions, channels, grad_row, T, C)
    normal, factor = _standardized(values, known, channels, eps)
    part = parts + (row * tiles + tl.program_id(0)) * 2 * channels + c
    tl.store(part, tl.sum(into * normal, 0), mask=c < channels)
    tl.store(part + channels, tl.sum(into, 0), mask=c < channels)
    gain = tl.load(weight + row * weight_row + c, mask=c < channels, other=0.0).to(tl.float32)
    into *= gain[None, :]
    level, slope = tl.sum(into, 1) / channels, tl.sum(into * normal, 1) / channels
    result = (into - level[:, None] - normal * slope[:, None]) * factor
    tl.store(out + row * positions * channels + at, result.to(out.dtype.element_ty), mask=known)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    positions, channels, tile = _sizes(x)
    rows = x.stride(0), weight.stride(0), bias.stride(0)
    grid = triton.cdiv(positions, tile[0]), len(x)
    launch(_layer_norm, grid, x, weight, bias, out, positions, channels, *rows, eps, *tile)
    return out


def layer_norm_backward(grad: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    positions, channels, tile = _sizes(x)
    rows = grad.stride(0), x.stride(0), weight.stride(0)
    tiles = triton.cdiv(positions, tile[0])
    parts = x.new_empty(len(x), tiles, 2, channels, dtype=torch.float32)
    sizes = positions, channels, tiles
    launch(_layer_norm_backward, (tiles, len(x)), grad, x, weight, out, parts, *sizes, *rows, eps, *tile)
    into_weight, into_bias = parts.sum(1).to(weight.dtype).unbind(1)
    return out, into_weight, into_bias


def _sizes(x: Tensor) -> tuple[int, int, tuple[int, int]]:
    """Return the positions of a row, the channels, and the tile that one program holds."""
    wide = triton.next_power_of_2(x.shape[-1])
    return x.shape[1:-1].numel(), x.shape[-1], (max(1, TILE // wide), wide)
