"""Compute the sizes, tiles and chunks that all convolution kernels use."""

# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false, reportCallIssue=false

import math

import torch
import triton
from torch import Tensor

PROGRAMS = 4096
"""Number of programs over which a sum over examples is spread."""
PRECISION = "ieee"
"""Precision of products in float32, instead of TF32; half precision is not affected."""
RUNTIME = ["height", "width", "out_height", "out_width", "size"]


def sizes_of(x: Tensor, out: Tensor) -> tuple[int, ...]:
    """Return height and width before and after, and the positions of a row. A signal is an image of height 1."""
    into, after = ((1, *t.shape[2:-1])[-2:] for t in (x, out))
    return *into, *after, out.shape[1] * after[0] * after[1]


def after(x: Tensor, stride: int) -> tuple[int, ...]:
    return *x.shape[:2], *(-(-size // stride) for size in x.shape[2:-1])


def taps_of(kernel: torch.Size) -> tuple[int, ...]:
    return (1, *kernel)[-2:]


def chunked(size: int, others: int) -> tuple[int, int]:
    """Return the number of positions that one program sums, and the number of programs."""
    chunks = max(1, min(PROGRAMS // others, size // 512))
    chunk = triton.cdiv(triton.cdiv(size, chunks), 64) * 64
    return chunk, triton.cdiv(size, chunk)


def periods_of(sizes: tuple[int, ...], tile: int) -> tuple[int, int, int]:
    """Divide the positions of a row into periods that hold whole examples and whole tiles.

    Returns:
        Positions of a period, number of periods, and number of tiles in one.
    """
    *_, height, width, size = sizes
    period = math.lcm(height * width, tile)
    return period, triton.cdiv(size, period), triton.cdiv(min(size, period), tile)


def power(size: int) -> int:
    return max(16, triton.next_power_of_2(size))
