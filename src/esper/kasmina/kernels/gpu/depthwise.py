"""Convolve each channel separately."""

# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false, reportCallIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from esper.kasmina.kernels.gpu.launch import launch
from esper.kasmina.kernels.gpu.sizes import RUNTIME, after, chunked, sizes_of, taps_of


@triton.jit(do_not_specialize=RUNTIME)
def _depthwise(
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
    C: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    STRIDE: tl.constexpr,
    BACKWARD: tl.constexpr,
    M: tl.constexpr,
    W: tl.constexpr,
):
    """Compute M positions of one row, all channels."""
    row = tl.program_id(1).to(tl.int64)
    m, c = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, W)
    area = out_height * out_width
    example, position = m // area, m % area
    y, z = position // out_width, position % out_width
    total = tl.zeros((M, W), dtype=tl.float32)
    for tap in tl.static_range(KH * KW):
        inside = m < size
        if BACKWARD:
            sy, sz = y + KH // 2 - tap // KW, z + KW // 2 - tap % KW
            inside &= (sy >= 0) & (sz >= 0) & (sy % STRIDE == 0) & (sz % STRIDE == 0)
            sy, sz = sy // STRIDE, sz // STRIDE
        else:
            sy, sz = y * STRIDE + tap // KW - KH // 2, z * STRIDE + tap % KW - KW // 2
            inside &= (sy >= 0) & (sz >= 0)
        inside &= (sy < height) & (sz < width)
        at = ((example * height + sy) * width + sz)[:, None] * C + c[None, :]
        a = tl.load(x + row * x_row + at, mask=inside[:, None] & (c < C)[None, :], other=0.0).to(tl.float32)
        b = tl.load(weight + row * weight_row + tap * C + c, mask=c < C, other=0.0).to(tl.float32)
        total += a * b[None, :]
    at = row * size * C + m[:, None] * C + c[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=(m < size)[:, None] & (c < C)[None, :])


@triton.jit(do_not_specialize=[*RUNTIME, "chunk", "rows"])
def _depthwise_for_weight(
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
    C: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    STRIDE: tl.constexpr,
    M: tl.constexpr,
    W: tl.constexpr,
):
    """Sum the gradient of one tap over one chunk of a row's positions: out is (chunks, rows, taps, C)."""
    row, tap = tl.program_id(2).to(tl.int64), tl.program_id(0)
    c = tl.arange(0, W)
    area = out_height * out_width
    first = tl.program_id(1) * chunk
    total = tl.zeros((M, W), dtype=tl.float32)
    for start in range(first, tl.minimum(first + chunk, size), M):
        m = start + tl.arange(0, M)
        example, position = m // area, m % area
        sy = position // out_width * STRIDE + tap // KW - KH // 2
        sz = position % out_width * STRIDE + tap % KW - KW // 2
        inside = (m < size) & (sy >= 0) & (sz >= 0) & (sy < height) & (sz < width)
        at = ((example * height + sy) * width + sz)[:, None] * C + c[None, :]
        known = inside[:, None] & (c < C)[None, :]
        a = tl.load(x + row * x_row + at, mask=known, other=0.0).to(tl.float32)
        g = tl.load(grad + row * size * C + m[:, None] * C + c[None, :], mask=known, other=0.0).to(tl.float32)
        total += a * g
    at = ((tl.program_id(1) * rows + row) * (KH * KW) + tap) * C + c
    tl.store(out + at, tl.sum(total, 0).to(out.dtype.element_ty), mask=c < C)


def depthwise(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Convolve (R, B, *space, C) with (R, *kernel, C) to (R, B, *space / stride, C)."""
    return _run_depthwise(x, weight, stride, x.new_empty(*after(x, stride), x.shape[-1]), backward=False)


def depthwise_for_input(grad: Tensor, weight: Tensor, stride: int, shape: torch.Size) -> Tensor:
    return _run_depthwise(grad, weight, stride, grad.new_empty(shape), backward=True)


def _run_depthwise(x: Tensor, weight: Tensor, stride: int, out: Tensor, backward: bool) -> Tensor:
    sizes, channels = sizes_of(x, out), x.shape[-1]
    w = triton.next_power_of_2(channels)
    m = max(1, 1024 // w)
    flags = (channels, *taps_of(weight.shape[1:-1]), stride, backward, m, w)
    grid = (triton.cdiv(sizes[-1], m), len(x))
    launch(_depthwise, grid, x, weight, out, x.stride(0), weight.stride(0), *sizes, *flags)
    return out


def depthwise_for_weight(grad: Tensor, x: Tensor, weight: Tensor, stride: int) -> Tensor:
    kernel, channels = taps_of(weight.shape[1:-1]), x.shape[-1]
    *space, size = sizes_of(x, grad)
    w = triton.next_power_of_2(channels)
    chunk, chunks = chunked(size, kernel[0] * kernel[1] * len(x))
    parts = weight.new_empty(chunks, *weight.shape, dtype=weight.dtype if chunks == 1 else torch.float32)
    grid = (kernel[0] * kernel[1], chunks, len(x))
    flags = (channels, *kernel, stride, max(1, 1024 // w), w)
    launch(_depthwise_for_weight, grid, grad, x, parts, x.stride(0), *space, size, chunk, len(x), *flags)
    return parts[0] if chunks == 1 else parts.sum(0).to(weight.dtype)
