"""Convolve rows; patches are gathered while they are multiplied."""

# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false, reportCallIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

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


@triton.jit(do_not_specialize=[*RUNTIME, "period", "periods", "steps", "tiles"])
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
    period,
    periods,
    steps,
    tiles,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    STRIDE: tl.constexpr,
    BACKWARD: tl.constexpr,
    NEAR: tl.constexpr,
    BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    """Compute tiles of positions and output channels of one row.

    Weight is (rows, taps, IN, OUT), or (rows, taps, OUT, IN) with BACKWARD, the gradient of the input. A program
    computes the same positions of the image in `steps` periods, so that their indices are computed once. NEAR: the
    indices of a patch are those of its first tap plus the same numbers everywhere.
    """
    row = tl.program_id(2).to(tl.int64)
    m = (tl.program_id(0) % tiles) * M + tl.arange(0, M)
    n = tl.program_id(1) * N + tl.arange(0, N)
    area = out_height * out_width
    example, position = m // area, m % area
    y, z = position // out_width, position % out_width
    flags = position
    if NEAR:
        y, z = y * STRIDE - KH // 2, z * STRIDE - KW // 2
        flags = _flags(y, z, height, width, KH, KW)
    place = ((example * height + y) * width + z) * IN
    first = (tl.program_id(0) // tiles) * steps
    for turn in range(first, tl.minimum(first + steps, periods)):
        beyond = turn * period
        source = x + row * x_row + (beyond // area) * (height * width * IN)
        known = m + beyond < size
        total = tl.zeros((M, N), dtype=tl.float32)
        for start in range(0, KH * KW * IN, K):
            k = start + tl.arange(0, K)
            c, tap = k % IN, k // IN
            ky, kz = tap // KW, tap % KW
            if NEAR:
                # Taps of the padding have bits that are never set.
                inside = known[:, None] & (((flags[:, None] >> tap[None, :]) & 1) != 0)
                at = place[:, None] + ((ky * width + kz) * IN + c)[None, :]
            else:
                if BACKWARD:
                    sy, sz = y[:, None] + KH // 2 - ky[None, :], z[:, None] + KW // 2 - kz[None, :]
                    inside = (sy >= 0) & (sz >= 0) & (sy % STRIDE == 0) & (sz % STRIDE == 0)
                    sy, sz = sy // STRIDE, sz // STRIDE
                else:
                    sy = y[:, None] * STRIDE + ky[None, :] - KH // 2
                    sz = z[:, None] * STRIDE + kz[None, :] - KW // 2
                    inside = (sy >= 0) & (sz >= 0)
                inside &= known[:, None] & (tap < KH * KW)[None, :] & (sy < height) & (sz < width)
                at = ((example[:, None] * height + sy) * width + sz) * IN + c[None, :]
            a = tl.load(source + at, mask=inside, other=0.0)
            real = (n < OUT)[None, :] & (tap < KH * KW)[:, None]
            if BACKWARD:
                used = KH * KW - 1 - tap if NEAR else tap  # the first tap of the gradient is the last of the weight
                of = (used[:, None] * OUT + n[None, :]) * IN + c[:, None]
            else:
                of = k[:, None] * OUT + n[None, :]
            b = tl.load(weight + row * weight_row + of, mask=real, other=0.0)
            total = tl.dot(a, b, total, input_precision=PRECISION)
        if BIAS:
            total += tl.load(bias + row * bias_row + n, mask=n < OUT, other=0.0).to(tl.float32)[None, :]
        at = (row * size + beyond) * OUT + m[:, None] * OUT + n[None, :]
        tl.store(out + at, total.to(out.dtype.element_ty), mask=known[:, None] & (n < OUT)[None, :])


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
    return _run_conv(x, weight, stride, x.new_empty(*after(x, stride), weight.shape[-1]), bias)


def conv_for_input(grad: Tensor, weight: Tensor, stride: int, shape: torch.Size) -> Tensor:
    return _run_conv(grad, weight, stride, grad.new_empty(shape), None, backward=True)


def _run_conv(
    x: Tensor, weight: Tensor, stride: int, out: Tensor, bias: Tensor | None, backward: bool = False
) -> Tensor:
    sizes, kernel = sizes_of(x, out), taps_of(weight.shape[1:-2])
    inner, outer = x.shape[-1], out.shape[-1]
    m, n, k = 128, min(power(outer), 128), min(power(inner * kernel[0] * kernel[1]), 32)
    period, periods, tiles = periods_of(sizes, m)
    across = triton.cdiv(outer, n)
    steps = max(1, min(8, periods * tiles * across * len(x) // PROGRAMS))
    near = kernel[0] * kernel[1] <= MOST_TAPS and not (backward and stride > 1)
    flags = (inner, outer, *kernel, stride, backward, near, bias is not None, PRECISION, m, n, k)
    rows = (x.stride(0), weight.stride(0), 0 if bias is None else bias.stride(0))
    grid = (triton.cdiv(periods, steps) * tiles, across, len(x))
    launch(
        _conv, grid, x, weight, x if bias is None else bias, out, *rows, *sizes, period, periods, steps, tiles, *flags
    )
    return out


def conv_for_weight(
    grad: Tensor, x: Tensor, weight: Tensor, stride: int, bias: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of weight and bias."""
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
