"""Convolve rows; patches are gathered while they are multiplied."""

# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false, reportCallIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from esper.kasmina.kernels.gpu.launch import launch
from esper.kasmina.kernels.gpu.sizes import PRECISION, RUNTIME, after, chunked, power, sizes_of, taps_of


@triton.jit(do_not_specialize=RUNTIME)
def _conv(
    x,
    weight,
    out,
    x_row,
    weight_row,
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
    at = row * size * OUT + m[:, None] * OUT + n[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=(m < size)[:, None] & (n < OUT)[None, :])


@triton.jit(do_not_specialize=[*RUNTIME, "chunk", "rows"])
def _conv_for_weight(
    grad,
    x,
    out,
    x_row,
    height,
    width,
    out_height,
    out_width,
    size,
    chunk,
    rows,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    STRIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    """Sum the weight gradient over one chunk of a row's positions: out is (chunks, rows, taps * IN, OUT)."""
    row = tl.program_id(2).to(tl.int64)
    tiles: tl.constexpr = (OUT + N - 1) // N
    n = (tl.program_id(0) % tiles) * N + tl.arange(0, N)
    k = (tl.program_id(0) // tiles) * K + tl.arange(0, K)
    c, tap = k % IN, k // IN
    ky, kz = (tap // KW)[:, None], (tap % KW)[:, None]
    area = out_height * out_width
    first = tl.program_id(1) * chunk
    total = tl.zeros((K, N), dtype=tl.float32)
    for start in range(first, tl.minimum(first + chunk, size), M):
        m = start + tl.arange(0, M)
        example, position = m // area, m % area
        sy = (position // out_width)[None, :] * STRIDE + ky - KH // 2
        sz = (position % out_width)[None, :] * STRIDE + kz - KW // 2
        inside = (m < size)[None, :] & (tap < KH * KW)[:, None]
        inside &= (sy >= 0) & (sz >= 0) & (sy < height) & (sz < width)
        at = ((example[None, :] * height + sy) * width + sz) * IN + c[:, None]
        a = tl.load(x + row * x_row + at, mask=inside, other=0.0)
        known = (n < OUT)[None, :] & (m < size)[:, None]
        g = tl.load(grad + row * size * OUT + m[:, None] * OUT + n[None, :], mask=known, other=0.0)
        total = tl.dot(a, g, total, input_precision=PRECISION)
    base = (tl.program_id(1) * rows + row) * (OUT * IN * KH * KW)
    at = base + k[:, None] * OUT + n[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=(n < OUT)[None, :] & (tap < KH * KW)[:, None])


def conv(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Convolve (R, B, *space, IN) with (R, *kernel, IN, OUT) to (R, B, *space / stride, OUT)."""
    return _run_conv(x, weight, stride, x.new_empty(*after(x, stride), weight.shape[-1]), backward=False)


def conv_for_input(grad: Tensor, weight: Tensor, stride: int, shape: torch.Size) -> Tensor:
    return _run_conv(grad, weight, stride, grad.new_empty(shape), backward=True)


def _run_conv(x: Tensor, weight: Tensor, stride: int, out: Tensor, backward: bool) -> Tensor:
    sizes, kernel = sizes_of(x, out), taps_of(weight.shape[1:-2])
    inner, outer = x.shape[-1], out.shape[-1]
    n, k = min(power(outer), 128), min(power(inner * kernel[0] * kernel[1]), 32)
    grid = (triton.cdiv(sizes[-1], 128), triton.cdiv(outer, n), len(x))
    flags = (inner, outer, *kernel, stride, backward, PRECISION, 128, n, k)
    launch(_conv, grid, x, weight, out, x.stride(0), weight.stride(0), *sizes, *flags)
    return out


def conv_for_weight(grad: Tensor, x: Tensor, weight: Tensor, stride: int) -> Tensor:
    rows, *_, inner, outer = weight.shape
    kernel = taps_of(weight.shape[1:-2])
    *space, size = sizes_of(x, grad)
    n, k = min(power(outer), 64), min(power(inner * kernel[0] * kernel[1]), 64)
    tiles = triton.cdiv(outer, n) * triton.cdiv(inner * kernel[0] * kernel[1], k)
    chunk, chunks = chunked(size, tiles * rows)
    parts = weight.new_empty(chunks, *weight.shape, dtype=weight.dtype if chunks == 1 else torch.float32)
    flags = (inner, outer, *kernel, stride, PRECISION, 64, n, k)
    launch(_conv_for_weight, (tiles, chunks, rows), grad, x, parts, x.stride(0), *space, size, chunk, rows, *flags)
    return parts[0] if chunks == 1 else parts.sum(0).to(weight.dtype)
