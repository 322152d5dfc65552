"""What the kernels of convolutions have in common: sizes, tiles, and how to share out a sum."""

# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false, reportCallIssue=false

import torch
import triton
from torch import Tensor

PROGRAMS = 4096
"""How many programs to spread a sum over examples on."""
PRECISION = "ieee"
"""Single precision is single precision; half precision is not touched by this."""
RUNTIME = ["height", "width", "out_height", "out_width", "size"]


def sizes_of(x: Tensor, out: Tensor) -> tuple[int, ...]:
    """Heights and widths before and after, a signal being an image of height 1, and all positions of a row."""
    into, after = ((1, *t.shape[2:-1])[-2:] for t in (x, out))
    return *into, *after, out.shape[1] * after[0] * after[1]


def after(x: Tensor, stride: int) -> tuple[int, ...]:
    return *x.shape[:2], *(-(-size // stride) for size in x.shape[2:-1])


def taps_of(kernel: torch.Size) -> tuple[int, ...]:
    return (1, *kernel)[-2:]


def chunked(size: int, others: int) -> tuple[int, int]:
    """How many positions to add up in one program, and how many programs that makes of them."""
    chunks = max(1, min(PROGRAMS // others, size // 512))
    chunk = triton.cdiv(triton.cdiv(size, chunks), 64) * 64
    return chunk, triton.cdiv(size, chunk)


def power(size: int) -> int:
    return max(16, triton.next_power_of_2(size))
