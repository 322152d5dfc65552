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
    weight,
    bias,
    out,
    positions,
    MULTIPLY: tl.constexpr,
    GATE: tl.constexpr,
    REPLACE: tl.constexpr,
    C: tl.constexpr,
    P: tl.constexpr,
    W: tl.constexpr,
):
    """Compute P positions of one row. A gate's logits are the products of the host's channels with its weights."""
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
        seen = tl.load(host + at, mask=known, other=0.0).to(tl.float32)
        weights = tl.load(weight + row * C + c, mask=c < C, other=0.0).to(tl.float32)
        body *= tl.sigmoid(tl.sum(seen * weights[None, :], 1) + tl.load(bias + row).to(tl.float32))[:, None]
    tl.store(out + at, body.to(out.dtype.element_ty), mask=known)


@triton.jit(do_not_specialize=["positions", "tiles"])
def _delta_backward(
    grad,
    graft,
    host,
    f,
    weight,
    bias,
    into_host,
    into_f,
    into_weight,
    into_bias,
    positions,
    tiles,
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
    to_weights = tl.zeros((W,), dtype=tl.float32)
    to_logits = tl.zeros((P,), dtype=tl.float32)
    to_body = back
    how = tl.load(graft + row)
    if how == MULTIPLY:
        bent = 2 * tl.sigmoid(2 * tl.load(f + at, mask=known, other=0.0).to(tl.float32)) - 1
        to_host = back * bent
        to_body = back * tl.load(host + at, mask=known, other=0.0).to(tl.float32) * (1 - bent * bent)
    elif how == REPLACE:
        to_host = -back
    elif how == GATE:
        seen = tl.load(host + at, mask=known, other=0.0).to(tl.float32)
        weights = tl.load(weight + row * C + c, mask=c < C, other=0.0).to(tl.float32)
        opened = tl.sigmoid(tl.sum(seen * weights[None, :], 1) + tl.load(bias + row).to(tl.float32))
        body = tl.load(f + at, mask=known, other=0.0).to(tl.float32)
        to_logits = tl.sum(back * body, 1) * opened * (1 - opened)
        to_body = back * opened[:, None]
        to_host = to_logits[:, None] * weights[None, :]
        to_weights = tl.sum(to_logits[:, None] * seen, 0)
    tl.store(into_host + at, to_host.to(into_host.dtype.element_ty), mask=known)
    tl.store(into_f + at, to_body.to(into_f.dtype.element_ty), mask=known)
    part = row * tiles + tl.program_id(1)
    tl.store(into_weight + part * C + c, to_weights, mask=c < C)
    tl.store(into_bias + part, tl.sum(to_logits, 0))


def delta(graft: Tensor, host: Tensor, f: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the deltas of rows; gates have weights (R, C) and biases (R,)."""
    out = torch.empty_like(f)
    grid, flags = _positions(f)
    launch(_delta, grid, graft, host, f, weight, bias, out, *flags)
    return out


def delta_backward(
    grad: Tensor, graft: Tensor, host: Tensor, f: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of host, f, weight and bias."""
    grid, (positions, *flags) = _positions(f)
    into_host, into_f = torch.empty_like(host), torch.empty_like(f)
    into_weight = weight.new_empty(*grid, f.shape[-1], dtype=torch.float32)
    into_bias = bias.new_empty(*grid, dtype=torch.float32)
    into = into_host, into_f, into_weight, into_bias
    launch(_delta_backward, grid, grad, graft, host, f, weight, bias, *into, positions, grid[1], *flags)
    return into_host, into_f, into_weight.sum(1).to(weight.dtype), into_bias.sum(1).to(bias.dtype)


def _positions(x: Tensor) -> tuple[tuple[int, int], tuple[int, ...]]:
    """Return the grid and arguments for tiles of about 1,000 numbers."""
    positions, width = x.shape[1:-1].numel(), triton.next_power_of_2(x.shape[-1])
    tile = max(1, 1024 // width)
    grafts = Graft.MULTIPLY, Graft.GATE, Graft.REPLACE
    return (len(x), triton.cdiv(positions, tile)), (positions, *grafts, x.shape[-1], tile, width)
