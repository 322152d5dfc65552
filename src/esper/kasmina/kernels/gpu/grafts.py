"""Compute the deltas of rows of seeds with different grafts."""

# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false, reportCallIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from esper.kasmina.kernels.gpu.launch import launch
from esper.leyline.actions import Graft


@triton.jit(do_not_specialize=["positions"])
def _delta(
    graft,
    host,
    f,
    g,
    out,
    positions,
    MULTIPLY: tl.constexpr,
    GATE: tl.constexpr,
    REPLACE: tl.constexpr,
    C: tl.constexpr,
    P: tl.constexpr,
    W: tl.constexpr,
):
    """Compute P positions of one row."""
    row = tl.program_id(0).to(tl.int64)
    p, c = tl.program_id(1) * P + tl.arange(0, P), tl.arange(0, W)
    at = (row * positions + p)[:, None] * C + c[None, :]
    known = (p < positions)[:, None] & (c < C)[None, :]
    body = tl.load(f + at, mask=known, other=0.0).to(tl.float32)
    how = tl.load(graft + row)
    if how == MULTIPLY:
        body = tl.load(host + at, mask=known, other=0.0).to(tl.float32) * (2 * tl.sigmoid(2 * body) - 1)
    elif how == REPLACE:
        body -= tl.load(host + at, mask=known, other=0.0).to(tl.float32)
    elif how == GATE:
        body *= tl.sigmoid(tl.load(g + row * positions + p, mask=p < positions, other=0.0).to(tl.float32))[:, None]
    tl.store(out + at, body.to(out.dtype.element_ty), mask=known)


@triton.jit(do_not_specialize=["positions"])
def _delta_backward(
    grad,
    graft,
    host,
    f,
    g,
    into_host,
    into_f,
    into_g,
    positions,
    MULTIPLY: tl.constexpr,
    GATE: tl.constexpr,
    REPLACE: tl.constexpr,
    C: tl.constexpr,
    P: tl.constexpr,
    W: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    p, c = tl.program_id(1) * P + tl.arange(0, P), tl.arange(0, W)
    at = (row * positions + p)[:, None] * C + c[None, :]
    known = (p < positions)[:, None] & (c < C)[None, :]
    back = tl.load(grad + at, mask=known, other=0.0).to(tl.float32)
    to_host = tl.zeros((P, W), dtype=tl.float32)
    to_gate = tl.zeros((P,), dtype=tl.float32)
    to_body = back
    how = tl.load(graft + row)
    if how == MULTIPLY:
        bent = 2 * tl.sigmoid(2 * tl.load(f + at, mask=known, other=0.0).to(tl.float32)) - 1
        to_host = back * bent
        to_body = back * tl.load(host + at, mask=known, other=0.0).to(tl.float32) * (1 - bent * bent)
    elif how == REPLACE:
        to_host = -back
    elif how == GATE:
        opened = tl.sigmoid(tl.load(g + row * positions + p, mask=p < positions, other=0.0).to(tl.float32))
        body = tl.load(f + at, mask=known, other=0.0).to(tl.float32)
        to_gate = tl.sum(back * body, 1) * opened * (1 - opened)
        to_body = back * opened[:, None]
    tl.store(into_host + at, to_host.to(into_host.dtype.element_ty), mask=known)
    tl.store(into_f + at, to_body.to(into_f.dtype.element_ty), mask=known)
    tl.store(into_g + row * positions + p, to_gate.to(into_g.dtype.element_ty), mask=p < positions)


def delta(graft: Tensor, host: Tensor, f: Tensor, g: Tensor) -> Tensor:
    out = torch.empty_like(f)
    grid, flags = _positions(f)
    launch(_delta, grid, graft, host, f, g, out, *flags)
    return out


def delta_backward(grad: Tensor, graft: Tensor, host: Tensor, f: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    into = torch.empty_like(host), torch.empty_like(f), torch.empty_like(g)
    grid, flags = _positions(f)
    launch(_delta_backward, grid, grad, graft, host, f, g, *into, *flags)
    return into


def _positions(x: Tensor) -> tuple[tuple[int, int], tuple[int, ...]]:
    """Return the grid and arguments for tiles of about 1,000 numbers."""
    positions, width = x.shape[1:-1].numel(), triton.next_power_of_2(x.shape[-1])
    tile = max(1, 1024 // width)
    grafts = Graft.MULTIPLY, Graft.GATE, Graft.REPLACE
    return (len(x), triton.cdiv(positions, tile)), (positions, *grafts, x.shape[-1], tile, width)
