"""Normalize rows over space, with scale, shift and an optional ReLU."""

# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false, reportCallIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from esper.kasmina.kernels.gpu.launch import launch

LARGEST = 1 << 15
"""Most elements of an example that one program can hold."""
SMALL = 2048
"""Elements up to which one program holds several examples."""


@triton.jit
def _places(
    batch,
    positions,
    GROUPS: tl.constexpr,
    C: tl.constexpr,
    E: tl.constexpr,
    P: tl.constexpr,
    G: tl.constexpr,
    W: tl.constexpr,
):
    """Return the row of a program, its E examples, their G groups with W channels each, and what of it exists.

    Returns:
        The row; examples (E, 1); groups (1, G); channels (G, W); which of those exist; where the numbers (E, P, G, W)
        lie within the row; and which of them exist.
    """
    programs = tl.cdiv(batch, E)
    row = (tl.program_id(0) // programs).to(tl.int64)
    examples = ((tl.program_id(0) % programs) * E + tl.arange(0, E))[:, None]
    groups = (tl.program_id(1) * G + tl.arange(0, G))[None, :]
    w = tl.arange(0, W)[None, :]
    channels = tl.trans(groups) * C + w
    here = (w < C) & (tl.trans(groups) < GROUPS)
    e, p = examples[:, :, None, None], tl.arange(0, P)[None, :, None, None]
    known = (e < batch) & (p < positions) & here[None, None, :, :]
    at = (e * positions + p) * (GROUPS * C) + channels[None, None, :, :]
    return row, examples, groups, channels, here, at, known


@triton.jit
def _sums(values):
    """Sum over positions and the channels of each group, and return (E, 1, G, 1)."""
    return tl.sum(tl.sum(values, 3), 1)[:, None, :, None]


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
    E: tl.constexpr,
    P: tl.constexpr,
    G: tl.constexpr,
    W: tl.constexpr,
):
    """Normalize G groups of E examples of one row, with C channels in each group, in a tile of W."""
    row, examples, groups, channels, here, at, known = _places(batch, positions, GROUPS, C, E, P, G, W)
    values = tl.load(x + row * x_row + at, mask=known, other=0.0).to(tl.float32)
    count = positions * C
    center = _sums(values) / count
    apart = tl.where(known, values - center, 0.0)
    factor = tl.rsqrt(_sums(apart * apart) / count + eps)
    gain = tl.load(weight + row * weight_row + channels, mask=here, other=0.0).to(tl.float32)
    shift = tl.load(bias + row * bias_row + channels, mask=here, other=0.0).to(tl.float32)
    result = apart * factor * gain[None, None, :, :] + shift[None, None, :, :]
    if RELU:
        result = tl.where(result < 0, 0.0, result)  # lets NaN through, as torch does
    tl.store(out + row * batch * positions * (GROUPS * C) + at, result.to(out.dtype.element_ty), mask=known)
    statistic, exists = (row * batch + examples) * GROUPS + groups, (examples < batch) & (groups < GROUPS)
    tl.store(mean + statistic, tl.reshape(center, (E, G)), mask=exists)
    tl.store(scale + statistic, tl.reshape(factor, (E, G)), mask=exists)


@triton.jit(do_not_specialize=["batch", "positions", "programs"])
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
    programs,
    GROUPS: tl.constexpr,
    C: tl.constexpr,
    RELU: tl.constexpr,
    E: tl.constexpr,
    P: tl.constexpr,
    G: tl.constexpr,
    W: tl.constexpr,
):
    """Compute the gradient of G groups of E examples; parts are sums for weight and bias, (2, programs, channels)."""
    row, examples, groups, channels, here, at, known = _places(batch, positions, GROUPS, C, E, P, G, W)
    first = row * batch * positions * (GROUPS * C)
    values = tl.load(x + row * x_row + at, mask=known, other=0.0).to(tl.float32)
    into = tl.load(grad + first + at, mask=known, other=0.0).to(tl.float32)
    statistic, exists = (row * batch + examples) * GROUPS + groups, (examples < batch) & (groups < GROUPS)
    center = tl.load(mean + statistic, mask=exists, other=0.0)[:, None, :, None]
    factor = tl.load(scale + statistic, mask=exists, other=0.0)[:, None, :, None]
    gain = tl.load(weight + row * weight_row + channels, mask=here, other=0.0).to(tl.float32)[None, None, :, :]
    normal = tl.where(known, (values - center) * factor, 0.0)
    if RELU:
        shift = tl.load(bias + row * bias_row + channels, mask=here, other=0.0).to(tl.float32)
        into = tl.where(normal * gain + shift[None, None, :, :] > 0, into, 0.0)
    part = parts + tl.program_id(0).to(tl.int64) * (GROUPS * C) + channels
    tl.store(part, tl.sum(tl.sum(into * normal, 1), 0), mask=here)
    tl.store(part + programs.to(tl.int64) * (GROUPS * C), tl.sum(tl.sum(into, 1), 0), mask=here)
    into *= gain
    count = positions * C
    result = (into - _sums(into) / count - normal * (_sums(into * normal) / count)) * factor
    tl.store(out + first + at, result.to(out.dtype.element_ty), mask=known)


def fits(x: Tensor) -> bool:
    """Return whether one program can hold an example, and 32 bits the places within a row."""
    example = triton.next_power_of_2(x.shape[2:-1].numel()) * triton.next_power_of_2(x.shape[-1])
    return example <= LARGEST and x[0].numel() < 2**31


def norm(x: Tensor, weight: Tensor, bias: Tensor, groups: int, relu: bool, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    mean, scale = x.new_empty(2, *x.shape[:2], groups, dtype=torch.float32)
    flags, warps = _flags(x, groups, relu)
    programs = len(x) * triton.cdiv(x.shape[1], flags[3])
    sizes = (x.shape[1], x.shape[2:-1].numel(), x.stride(0), weight.stride(0), bias.stride(0))
    launch(
        _norm,
        (programs, groups // flags[-2]),
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
    flags, warps = _flags(x, groups, relu)
    parts = x.new_empty(2, rows, triton.cdiv(batch, flags[3]), channels, dtype=torch.float32)
    programs = parts.shape[1:3].numel()
    sizes = (batch, x.shape[2:-1].numel(), x.stride(0), weight.stride(0), bias.stride(0), programs)
    launch(
        _norm_backward,
        (programs, groups // flags[-2]),
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


def _flags(x: Tensor, groups: int, relu: bool) -> tuple[tuple[int, int, bool, int, int, int, int], int]:
    """Return what is compiled in, and the number of warps. Programs hold several small examples."""
    positions, channels = x.shape[2:-1].numel(), x.shape[-1] // groups
    p, w = triton.next_power_of_2(positions), triton.next_power_of_2(channels)
    together = groups if p * w * groups <= 4096 else 1
    examples = max(1, SMALL // (p * w * together))
    return (groups, channels, relu, examples, p, together, w), max(1, min(16, examples * p * w * together // 512))
