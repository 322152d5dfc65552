"""Gather rows, and add rows to others, in one pass each."""

# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false, reportCallIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from esper.kasmina.kernels.gpu.launch import launch

BLOCK = 2048


@triton.jit
def _gather(x, rows, real, factors, out, width, SCALED: tl.constexpr, B: tl.constexpr):
    """Copy one part of one row. SCALED: times the factor of a real row, and zeros elsewhere."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * B + tl.arange(0, B)
    known = at < width
    read = known
    if SCALED:
        read = known & (tl.load(real + row) != 0)
    value = tl.load(x + tl.load(rows + row) * width + at, mask=read, other=0.0).to(tl.float32)
    if SCALED:
        value *= tl.load(factors + row).to(tl.float32)
    tl.store(out + row * width + at, value.to(out.dtype.element_ty), mask=known)


@triton.jit
def _add(x, others, sources, factors, out, width, SCALED: tl.constexpr, B: tl.constexpr):
    """Add to one part of one row that of its source; a row whose source is negative is copied."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * B + tl.arange(0, B)
    known = at < width
    value = tl.load(x + row * width + at, mask=known, other=0.0).to(tl.float32)
    source = tl.load(sources + row)
    if source >= 0:
        other = tl.load(others + source * width + at, mask=known, other=0.0).to(tl.float32)
        if SCALED:
            other *= tl.load(factors + source).to(tl.float32)
        value += other
    tl.store(out + row * width + at, value.to(out.dtype.element_ty), mask=known)


def gather_rows(x: Tensor, rows: Tensor, real: Tensor | None = None, factors: Tensor | None = None) -> Tensor:
    """Return rows of x; with factors, times those of real rows, and zeros elsewhere."""
    x = x.contiguous()
    out = x.new_empty(len(rows), *x.shape[1:])
    grid, sizes = _parts(out)
    if factors is None or real is None:
        launch(_gather, grid, x, rows, rows, rows, out, *sizes[:1], False, *sizes[1:])
    else:
        launch(_gather, grid, x, rows, real, factors, out, *sizes[:1], True, *sizes[1:])
    return out


def add_rows(x: Tensor, others: Tensor, sources: Tensor, factors: Tensor | None = None) -> Tensor:
    """Return x with `others[sources]` added, times the factors of others; a source of −1 adds nothing."""
    x, others = x.contiguous(), others.contiguous()
    out = torch.empty_like(x)
    grid, sizes = _parts(out)
    scaled = factors is not None
    launch(_add, grid, x, others, sources, factors if scaled else sources, out, *sizes[:1], scaled, *sizes[1:])
    return out


def _parts(x: Tensor) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the grid, the numbers of a row, and those of a part."""
    width = x[0].numel()
    block = min(BLOCK, triton.next_power_of_2(width))
    return (len(x), triton.cdiv(width, block)), (width, block)
