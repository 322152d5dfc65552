"""Draw initial weights: the hash of `leyline.rng` and the uniform numbers from it, in one kernel."""

# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false, reportCallIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from esper.kasmina.kernels.gpu.launch import launch
from esper.leyline.rng import GOLDEN, MIX1, MIX2


@triton.jit
def _mix(x, MIX1: tl.constexpr, MIX2: tl.constexpr):
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * MIX1
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * MIX2
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


@triton.jit(do_not_specialize=["count"])
def _draw(
    keys,
    names,
    index,
    bound,
    out,
    count,
    GOLDEN: tl.constexpr,
    MIX1: tl.constexpr,
    MIX2: tl.constexpr,
    W: tl.constexpr,
):
    """Draw W weights of one module."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * W + tl.arange(0, W)
    known = at < count
    own = _mix(tl.load(keys + row) + GOLDEN, MIX1, MIX2)
    named = _mix((own ^ tl.load(names + at, mask=known, other=0)) + GOLDEN, MIX1, MIX2)
    again = _mix(named + GOLDEN, MIX1, MIX2)
    drawn = _mix((again ^ tl.load(index + at, mask=known, other=0)) + GOLDEN, MIX1, MIX2)
    uniform = (((drawn >> 41) & 0x7FFFFF).to(tl.float64) + 0.5) / 8388608.0
    value = (2 * uniform - 1) * tl.load(bound + at, mask=known, other=0.0)
    tl.store(out + row * count + at, value.to(tl.float32), mask=known)


def draw(keys: Tensor, names: Tensor, index: Tensor, bound: Tensor) -> Tensor:
    """Return the weights of one module for each key, (R, P), uniform within ±bound."""
    out = torch.empty(len(keys), len(names), device=keys.device)
    width = 1024
    grid = (len(keys), triton.cdiv(len(names), width))
    launch(_draw, grid, keys, names, index, bound, out, len(names), GOLDEN, MIX1, MIX2, width)
    return out
