"""Max-pool rows of images."""

# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false, reportCallIssue=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from esper.kasmina.kernels.gpu.launch import launch


@triton.jit(do_not_specialize=["height", "width", "count"])
def _pool(
    x,
    out,
    height,
    width,
    count,
    C: tl.constexpr,
    SY: tl.constexpr,
    SZ: tl.constexpr,
    B: tl.constexpr,
    INDEX: tl.constexpr,
):
    """Compute the maximum of each block of SY × SZ pixels."""
    at = tl.program_id(0).to(INDEX) * B + tl.arange(0, B)
    pixel, c = at // C, at % C
    z, rest = pixel % (width // SZ), pixel // (width // SZ)
    y, example = rest % (height // SY), rest // (height // SY)
    corner = x + ((example * height + y * SY) * width + z * SZ) * C + c
    known = at < count
    best = tl.load(corner, mask=known)
    for tap in tl.static_range(1, SY * SZ):
        other = tl.load(corner + ((tap // SZ) * width + tap % SZ) * C, mask=known)
        best = tl.where((other > best) | (other != other), other, best)
    tl.store(out + at, best, mask=known)


@triton.jit(do_not_specialize=["height", "width", "count"])
def _pool_backward(
    grad,
    x,
    into,
    height,
    width,
    count,
    C: tl.constexpr,
    SY: tl.constexpr,
    SZ: tl.constexpr,
    B: tl.constexpr,
    INDEX: tl.constexpr,
):
    """Pass the gradient to the first maximum of each block."""
    at = tl.program_id(0).to(INDEX) * B + tl.arange(0, B)
    pixel, c = at // C, at % C
    z, rest = pixel % (width // SZ), pixel // (width // SZ)
    y, example = rest % (height // SY), rest // (height // SY)
    corner = ((example * height + y * SY) * width + z * SZ) * C + c
    known = at < count
    best = tl.load(x + corner, mask=known)
    chosen = tl.zeros((B,), dtype=tl.int32)
    for tap in tl.static_range(1, SY * SZ):
        other = tl.load(x + corner + ((tap // SZ) * width + tap % SZ) * C, mask=known)
        better = (other > best) | (other != other)
        best, chosen = tl.where(better, other, best), tl.where(better, tap, chosen)
    g = tl.load(grad + at, mask=known)
    for tap in tl.static_range(0, SY * SZ):
        place = into + corner + ((tap // SZ) * width + tap % SZ) * C
        tl.store(place, tl.where(chosen == tap, g, 0.0), mask=known)


def _index(x: Tensor) -> Any:
    return tl.int32 if x.numel() < 1 << 31 else tl.int64


def pool(x: Tensor, sides: tuple[int, int]) -> Tensor:
    """Max-pool a contiguous (R, B, height, width, C); incomplete blocks are dropped."""
    rows, batch, height, width, channels = x.shape
    out = x.new_empty(rows, batch, height // sides[0], width // sides[1], channels)
    launch(
        _pool, (triton.cdiv(out.numel(), 1024),), x, out, height, width, out.numel(), channels, *sides, 1024, _index(x)
    )
    return out


def pool_backward(grad: Tensor, x: Tensor, sides: tuple[int, int]) -> Tensor:
    height, width, channels = x.shape[2:]
    whole = height % sides[0] == 0 and width % sides[1] == 0
    into = torch.empty_like(x) if whole else torch.zeros_like(x)
    flags = (height, width, grad.numel(), channels, *sides, 1024, _index(x))
    launch(_pool_backward, (triton.cdiv(grad.numel(), 1024),), grad, x, into, *flags)
    return into
