"""Convolve images with few channels by products with band matrices, which tensor cores compute faster than patches.

A line of an image, all its pixels and channels, times a matrix gives a line of the output. In that matrix the weights
of a line of the kernel stand around the diagonal, and zeros elsewhere. Only tiles on the band are multiplied.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false, reportCallIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from esper.kasmina.kernels.gpu.launch import launch
from esper.kasmina.kernels.gpu.sizes import PRECISION, PROGRAMS, sizes_of

M, N, K = 128, 128, 32
WIDEST = 1024
"""Most numbers in a line: the matrix has as many rows, and columns."""
MOST_WEIGHTS = 512
"""Most weights of a tap; with more of them patches fill the tensor cores."""


def banded(x: Tensor, weight: Tensor, stride: int) -> bool:
    """Return whether band matrices are faster for these images and weights."""
    if x.dtype == torch.float32 or x.ndim != 5 or stride != 1:
        return False
    lines = [x.shape[3] * channels for channels in weight.shape[-2:]]
    fitting = all(line % K == 0 and line <= WIDEST for line in lines)
    return fitting and weight.shape[-2] * weight.shape[-1] <= MOST_WEIGHTS and x.shape[3] >= weight.shape[2]


@triton.jit
def _spread(
    weight,
    out,
    weight_row,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    WIDTH: tl.constexpr,
    MIRRORED: tl.constexpr,
    J: tl.constexpr,
    N: tl.constexpr,
):
    """Write a tile of the band matrix of one line of the kernel.

    MIRRORED: for the gradient of the input; the weights are (rows, taps, OUT, IN) then.
    """
    row, ky = tl.program_id(2).to(tl.int64), tl.program_id(1)
    wide = tl.cdiv(WIDTH * OUT, N)
    j = (tl.program_id(0) // wide) * J + tl.arange(0, J)
    n = (tl.program_id(0) % wide) * N + tl.arange(0, N)
    kz = (j // IN)[:, None] - (n // OUT)[None, :] + KW // 2
    c, o = (j % IN)[:, None], (n % OUT)[None, :]
    known = (kz >= 0) & (kz < KW) & (j < WIDTH * IN)[:, None] & (n < WIDTH * OUT)[None, :]
    if MIRRORED:
        at = ((KH - 1 - ky) * KW + KW - 1 - kz) * OUT * IN + o * IN + c
    else:
        at = (ky * KW + kz) * IN * OUT + c * OUT + o
    value = tl.load(weight + row * weight_row + at, mask=known, other=0.0)
    to = ((row * KH + ky) * WIDTH * IN + j)[:, None] * (WIDTH * OUT) + n[None, :]
    tl.store(out + to, value, mask=(j < WIDTH * IN)[:, None] & (n < WIDTH * OUT)[None, :])


@triton.jit(do_not_specialize=["height", "lines"])
def _lines(
    x,
    band,
    bias,
    out,
    x_row,
    bias_row,
    height,
    lines,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    WIDTH: tl.constexpr,
    BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    """Compute a tile of lines and of their numbers, for one row."""
    row = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * M + tl.arange(0, M)
    n = tl.program_id(1) * N + tl.arange(0, N)
    y = m % height
    first = tl.maximum(tl.program_id(1) * N // OUT - KW // 2, 0) * IN // K
    last = tl.cdiv(tl.minimum((tl.program_id(1) * N + N - 1) // OUT + KW // 2 + 1, WIDTH) * IN, K)
    chunks = last - first
    total = tl.zeros((M, N), dtype=tl.float32)
    for step in range(0, KH * chunks):
        ky, j = step // chunks, (first + step % chunks) * K + tl.arange(0, K)
        inside = (m < lines) & (y + ky >= KH // 2) & (y + ky < height + KH // 2)
        at = (m + ky - KH // 2)[:, None] * (WIDTH * IN) + j[None, :]
        a = tl.load(x + row * x_row + at, mask=inside[:, None], other=0.0)
        of = ((row * KH + ky) * (WIDTH * IN) + j)[:, None] * (WIDTH * OUT) + n[None, :]
        b = tl.load(band + of, mask=(n < WIDTH * OUT)[None, :], other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    if BIAS:
        total += tl.load(bias + row * bias_row + n % OUT).to(tl.float32)[None, :]
    to = (row * lines + m)[:, None] * (WIDTH * OUT) + n[None, :]
    tl.store(out + to, total.to(out.dtype.element_ty), mask=(m < lines)[:, None] & (n < WIDTH * OUT)[None, :])


@triton.jit(do_not_specialize=["height", "lines", "chunk", "rows"])
def _for_band(
    grad,
    x,
    out,
    x_row,
    height,
    lines,
    chunk,
    rows,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    J: tl.constexpr,
):
    """Sum the gradient of a tile of the band matrix over a chunk of lines. Tiles beside the band are left out."""
    row = tl.program_id(2).to(tl.int64)
    wide, high = tl.cdiv(WIDTH * OUT, N), tl.cdiv(WIDTH * IN, J)
    tile = tl.program_id(0)
    ky, left, top = tile // (wide * high), (tile % wide) * N, (tile // wide % high) * J
    beyond = (left // OUT > (top + J - 1) // IN + KW // 2) | ((left + N - 1) // OUT + KW // 2 < top // IN)
    if not beyond:
        n, j = left + tl.arange(0, N), top + tl.arange(0, J)
        total = tl.zeros((J, N), dtype=tl.float32)
        start = tl.program_id(1) * chunk
        for begin in range(start, tl.minimum(start + chunk, lines), M):
            m = begin + tl.arange(0, M)
            y = m % height
            inside = (m < lines) & (y + ky >= KH // 2) & (y + ky < height + KH // 2)
            at = (m + ky - KH // 2)[:, None] * (WIDTH * IN) + j[None, :]
            a = tl.load(x + row * x_row + at, mask=inside[:, None] & (j < WIDTH * IN)[None, :], other=0.0)
            of = (row * lines + m)[:, None] * (WIDTH * OUT) + n[None, :]
            g = tl.load(grad + of, mask=(m < lines)[:, None] & (n < WIDTH * OUT)[None, :], other=0.0)
            total = tl.dot(tl.trans(a), g, total, input_precision=PRECISION)
        base = ((tl.program_id(1) * rows + row) * KH + ky) * (WIDTH * IN)
        to = (base + j)[:, None] * (WIDTH * OUT) + n[None, :]
        tl.store(out + to, total, mask=(j < WIDTH * IN)[:, None] & (n < WIDTH * OUT)[None, :])


@triton.jit(do_not_specialize=["chunks", "rows"])
def _along_band(
    parts,
    out,
    chunks,
    rows,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    WIDTH: tl.constexpr,
    CS: tl.constexpr,
    OS: tl.constexpr,
):
    """Sum the gradients of one tap over chunks and along the band."""
    row, tap = tl.program_id(1).to(tl.int64), tl.program_id(0)
    ky, kz = tap // KW, tap % KW
    c, o = tl.arange(0, CS), tl.arange(0, OS)
    known = (c < IN)[:, None] & (o < OUT)[None, :]
    total = tl.zeros((CS, OS), dtype=tl.float32)
    for chunk in range(0, chunks):
        part = parts + ((chunk * rows + row) * KH + ky) * (WIDTH * IN * WIDTH * OUT)
        for z in range(tl.maximum(KW // 2 - kz, 0), tl.minimum(WIDTH + KW // 2 - kz, WIDTH)):
            at = ((z + kz - KW // 2) * IN + c)[:, None] * (WIDTH * OUT) + (z * OUT + o)[None, :]
            total += tl.load(part + at, mask=known, other=0.0)
    to = (row * KH * KW + tap) * IN * OUT + c[:, None] * OUT + o[None, :]
    tl.store(out + to, total.to(out.dtype.element_ty), mask=known)


def band_conv(x: Tensor, weight: Tensor, bias: Tensor | None = None, mirrored: bool = False) -> Tensor:
    """Convolve images (R, B, height, width, IN). `mirrored` computes the gradient of a convolution's input."""
    rows, batch, height, width, inner = x.shape
    kernel, outer = weight.shape[1:3], weight.shape[-2 if mirrored else -1]
    sizes = (inner, outer, *kernel, width)
    band = x.new_empty(rows, kernel[0], width * inner, width * outer)
    tiles = triton.cdiv(width * inner, K) * triton.cdiv(width * outer, N)
    launch(_spread, (tiles, kernel[0], rows), weight, band, weight.stride(0), *sizes, mirrored, K, N)
    out, lines = x.new_empty(*x.shape[:-1], outer), batch * height
    grid = (triton.cdiv(lines, M), triton.cdiv(width * outer, N), rows)
    bias_row = 0 if bias is None else bias.stride(0)
    flags = (*sizes, bias is not None, PRECISION, M, N, K)
    launch(
        _lines,
        grid,
        x,
        band,
        x if bias is None else bias,
        out,
        x.stride(0),
        bias_row,
        height,
        lines,
        *flags,
        num_warps=8,
    )
    return out


def band_conv_for_weight(grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient of the weights (R, *kernel, IN, OUT)."""
    rows, *kernel, inner, outer = weight.shape
    height, width = sizes_of(x, grad)[:2]
    lines, sizes = x.shape[1] * height, (inner, outer, *kernel, width)
    j = 64 if width * inner > K else K
    tiles = kernel[0] * triton.cdiv(width * inner, j) * triton.cdiv(width * outer, N)
    chunks = max(1, min(PROGRAMS // (tiles * rows), lines // 512))
    chunk = triton.cdiv(triton.cdiv(lines, chunks), 64) * 64
    chunks = triton.cdiv(lines, chunk)
    parts = x.new_empty(chunks, rows, kernel[0], width * inner, width * outer, dtype=torch.float32)
    flags = (*sizes, PRECISION, 64, N, j)
    launch(
        _for_band, (tiles, chunks, rows), grad, x, parts, x.stride(0), height, lines, chunk, rows, *flags, num_warps=8
    )
    out = weight.new_empty(weight.shape)
    powers = (triton.next_power_of_2(inner), triton.next_power_of_2(outer))
    launch(_along_band, (kernel[0] * kernel[1], rows), parts, out, chunks, rows, *sizes, *powers)
    return out
