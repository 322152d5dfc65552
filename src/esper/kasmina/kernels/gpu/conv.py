"""Convolve rows; patches are gathered while they are multiplied."""

# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false, reportCallIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from esper.kasmina.kernels.gpu.band import band_conv, band_conv_for_weight, banded
from esper.kasmina.kernels.gpu.launch import launch
from esper.kasmina.kernels.gpu.sizes import PRECISION, PROGRAMS, RUNTIME, after, periods_of, power, sizes_of, taps_of

MOST_TAPS = 25
"""Most taps whose flags fit the bits of an integer, with some to spare for padding."""


@triton.jit
def _flags(y, z, height, width, KH: tl.constexpr, KW: tl.constexpr):
    """Return one bit for each tap: whether it lies inside, for patches whose first tap is at (y, z)."""
    along = tl.zeros_like(z)
    for kz in tl.static_range(KW):
        along |= ((z + kz >= 0) & (z + kz < width)).to(tl.int32) << kz
    flags = tl.zeros_like(y)
    for ky in tl.static_range(KH):
        flags |= tl.where((y + ky >= 0) & (y + ky < height), along, 0) << (ky * KW)
    return flags


@triton.jit(do_not_specialize=RUNTIME)
def _conv(
    x,
    weight,
    bias,
    out,
    x_row,
    weight_row,
    bias_row,
    height,
    width,
    out_height,
    out_width,
    size,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    STRIDE: tl.constexpr,
    BACKWARD: tl.constexpr,
    BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    """Compute one tile of positions and output channels of one row.

    Weight is (rows, taps, IN, OUT), or (rows, taps, OUT, IN) with BACKWARD, the gradient of the input.
    """
    row = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * M + tl.arange(0, M)
    n = tl.program_id(1) * N + tl.arange(0, N)
    area = out_height * out_width
    example, position = m // area, m % area
    y, z = (position // out_width)[:, None], (position % out_width)[:, None]
    total = tl.zeros((M, N), dtype=tl.float32)
    for start in range(0, KH * KW * IN, K):
        k = start + tl.arange(0, K)
        c, tap = k % IN, k // IN
        ky, kz = (tap // KW)[None, :], (tap % KW)[None, :]
        inside = (m < size)[:, None] & (tap < KH * KW)[None, :]
        if BACKWARD:
            sy, sz = y + KH // 2 - ky, z + KW // 2 - kz
            inside &= (sy >= 0) & (sz >= 0) & (sy % STRIDE == 0) & (sz % STRIDE == 0)
            sy, sz = sy // STRIDE, sz // STRIDE
        else:
            sy, sz = y * STRIDE + ky - KH // 2, z * STRIDE + kz - KW // 2
            inside &= (sy >= 0) & (sz >= 0)
        inside &= (sy < height) & (sz < width)
        at = ((example[:, None] * height + sy) * width + sz) * IN + c[None, :]
        a = tl.load(x + row * x_row + at, mask=inside, other=0.0)
        known = (n < OUT)[None, :] & (tap < KH * KW)[:, None]
        if BACKWARD:  # noqa: SIM108  # Triton compiles one branch
            place = (tap[:, None] * OUT + n[None, :]) * IN + c[:, None]
        else:
            place = k[:, None] * OUT + n[None, :]
        b = tl.load(weight + row * weight_row + place, mask=known, other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    if BIAS:
        total += tl.load(bias + row * bias_row + n, mask=n < OUT, other=0.0).to(tl.float32)[None, :]
    at = row * size * OUT + m[:, None] * OUT + n[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=(m < size)[:, None] & (n < OUT)[None, :])


@triton.jit(do_not_specialize=[*RUNTIME, "period", "periods", "steps", "tiles", "rows"])
def _conv_for_weight(
    grad,
    x,
    out,
    out_bias,
    x_row,
    height,
    width,
    out_height,
    out_width,
    size,
    period,
    periods,
    steps,
    tiles,
    rows,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    STRIDE: tl.constexpr,
    NEAR: tl.constexpr,
    BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    """Sum the gradients of weight and bias over some periods of a row: (chunks, rows, taps * IN, OUT) and (…, OUT).

    The positions of a tile are the same in every period, and their indices are computed once.
    """
    row = tl.program_id(2).to(tl.int64)
    across: tl.constexpr = (OUT + N - 1) // N
    n = (tl.program_id(0) % across) * N + tl.arange(0, N)
    k = (tl.program_id(0) // across) * K + tl.arange(0, K)
    c, tap = k % IN, k // IN
    ky, kz = tap // KW, tap % KW
    area = out_height * out_width
    first = tl.program_id(1) * steps
    total = tl.zeros((K, N), dtype=tl.float32)
    shift = tl.zeros((N,), dtype=tl.float32)
    for tile in range(0, tiles):
        m = tile * M + tl.arange(0, M)
        example, position = m // area, m % area
        y, z = (position // out_width) * STRIDE - KH // 2, (position % out_width) * STRIDE - KW // 2
        if NEAR:
            flags = _flags(y, z, height, width, KH, KW)
            reached = ((flags[None, :] >> tap[:, None]) & 1) != 0
        else:
            sy, sz = y[None, :] + ky[:, None], z[None, :] + kz[:, None]
            reached = (tap < KH * KW)[:, None] & (sy >= 0) & (sz >= 0) & (sy < height) & (sz < width)
        at = (((example * height + y) * width + z) * IN)[None, :] + ((ky * width + kz) * IN + c)[:, None]
        of = m[:, None] * OUT + n[None, :]
        for turn in range(first, tl.minimum(first + steps, periods)):
            beyond = turn * period
            known = m + beyond < size
            source = x + row * x_row + (beyond // area) * (height * width * IN)
            a = tl.load(source + at, mask=reached & known[None, :], other=0.0)
            real = (n < OUT)[None, :] & known[:, None]
            g = tl.load(grad + (row * size + beyond) * OUT + of, mask=real, other=0.0)
            total = tl.dot(a, g, total, input_precision=PRECISION)
            if BIAS:
                shift += tl.sum(g.to(tl.float32), 0)
    base = tl.program_id(1) * rows + row
    at = base * (OUT * IN * KH * KW) + k[:, None] * OUT + n[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=(n < OUT)[None, :] & (tap < KH * KW)[:, None])
    if BIAS:
        tl.store(
            out_bias + base * OUT + n, shift.to(out_bias.dtype.element_ty), mask=(n < OUT) & (tl.program_id(0) < across)
        )


def conv(x: Tensor, weight: Tensor, stride: int, bias: Tensor | None = None) -> Tensor:
    """Convolve (R, B, *space, IN) with (R, *kernel, IN, OUT) to (R, B, *space / stride, OUT), and add (R, OUT)."""
    if banded(x, weight, stride):
        return band_conv(x, weight, bias)
    return _run_conv(x, weight, stride, x.new_empty(*after(x, stride), weight.shape[-1]), bias)


def conv_for_input(grad: Tensor, weight: Tensor, stride: int, shape: torch.Size) -> Tensor:
    if banded(grad, weight, stride):
        return band_conv(grad, weight, mirrored=True)
    return _run_conv(grad, weight, stride, grad.new_empty(shape), None, backward=True)


def _run_conv(
    x: Tensor, weight: Tensor, stride: int, out: Tensor, bias: Tensor | None, backward: bool = False
) -> Tensor:
    sizes, kernel = sizes_of(x, out), taps_of(weight.shape[1:-2])
    inner, outer = x.shape[-1], out.shape[-1]
    n, k = min(power(outer), 128), min(power(inner * kernel[0] * kernel[1]), 32)
    grid = (triton.cdiv(sizes[-1], 128), triton.cdiv(outer, n), len(x))
    rows = (x.stride(0), weight.stride(0), 0 if bias is None else bias.stride(0))
    flags = (inner, outer, *kernel, stride, backward, bias is not None, PRECISION, 128, n, k)
    launch(_conv, grid, x, weight, x if bias is None else bias, out, *rows, *sizes, *flags)
    return out


def conv_for_weight(
    grad: Tensor, x: Tensor, weight: Tensor, stride: int, bias: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of weight and bias."""
    if banded(x, weight, stride):
        into_bias = grad.flatten(1, -2).sum(1, dtype=torch.float32).to(weight.dtype) if bias else None
        return band_conv_for_weight(grad, x, weight), into_bias
    rows, *_, inner, outer = weight.shape
    kernel = taps_of(weight.shape[1:-2])
    sizes = sizes_of(x, grad)
    m, n, k = 64, min(power(outer), 64), min(power(inner * kernel[0] * kernel[1]), 64)
    programs = triton.cdiv(outer, n) * triton.cdiv(inner * kernel[0] * kernel[1], k)
    period, periods, tiles = periods_of(sizes, m)
    steps = triton.cdiv(periods, max(1, min(PROGRAMS // (programs * rows), sizes[-1] // 512)))
    chunks = triton.cdiv(periods, steps)
    dtype = weight.dtype if chunks == 1 else torch.float32
    parts = weight.new_empty(chunks, *weight.shape, dtype=dtype)
    shifts = weight.new_empty(chunks if bias else 0, rows, outer, dtype=dtype)
    flags = (inner, outer, *kernel, stride, kernel[0] * kernel[1] <= MOST_TAPS, bias, PRECISION, m, n, k)
    grid = (programs, chunks, rows)
    counts = (period, periods, steps, tiles, rows)
    launch(_conv_for_weight, grid, grad, x, parts, shifts, x.stride(0), *sizes, *counts, *flags)
    into = [part[0] if chunks == 1 else part.sum(0).to(weight.dtype) for part in (parts, shifts) if len(part)]
    return into[0], into[1] if bias else None
