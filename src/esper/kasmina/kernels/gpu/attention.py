"""Attend causally within short contexts: one program holds all positions of one head of one example."""

# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false, reportCallIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from esper.kasmina.kernels.gpu.launch import launch
from esper.kasmina.kernels.gpu.sizes import PRECISION, power

LONGEST = {2: 128, 4: 64}
"""Longest context that one program holds, by the bytes of a number."""
WIDEST = 64
"""Most channels of a head."""


@triton.jit
def _read(qkv, length, channels, HEAD: tl.constexpr, L: tl.constexpr, C: tl.constexpr):
    """Return queries, keys and values (L, C) of a head; where they and their mixture lie; and which exist."""
    p, c = tl.arange(0, L)[:, None], tl.arange(0, C)[None, :]
    known = (p < length) & (c < HEAD)
    first = tl.program_id(0).to(tl.int64) * length * channels
    at = first + p * channels + tl.program_id(1) * HEAD + c
    place = at + 2 * first + 2 * p * channels
    own = qkv + place
    q, k, v = tl.load(own, known, 0.0), tl.load(own + channels, known, 0.0), tl.load(own + 2 * channels, known, 0.0)
    return q, k, v, place, at, known


@triton.jit
def _softmax(q, k, factor, L: tl.constexpr, PRECISION: tl.constexpr):
    """Return the weights (L, L) of each position's values in single precision, and the reciprocals of their sums."""
    after, before = tl.arange(0, L)[:, None], tl.arange(0, L)[None, :]
    logits = tl.where(before <= after, tl.dot(q, tl.trans(k), input_precision=PRECISION) * factor, -float("inf"))
    weights = tl.exp(logits - tl.max(logits, 1)[:, None])
    return weights, 1 / tl.sum(weights, 1)[:, None]


@triton.jit(do_not_specialize=["length", "factor"])
def _attention(
    qkv,
    out,
    length,
    channels,
    factor,
    HEAD: tl.constexpr,
    L: tl.constexpr,
    C: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Mix the values of one head of one example."""
    q, k, v, _, at, known = _read(qkv, length, channels, HEAD, L, C)
    weights, share = _softmax(q, k, factor, L, PRECISION)
    mixed = tl.dot(weights.to(v.dtype), v, input_precision=PRECISION) * share
    tl.store(out + at, mixed.to(out.dtype.element_ty), mask=known)


@triton.jit(do_not_specialize=["length", "factor"])
def _attention_backward(
    grad,
    qkv,
    out,
    length,
    channels,
    factor,
    HEAD: tl.constexpr,
    L: tl.constexpr,
    C: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute the gradients of the queries, keys and values of one head of one example."""
    q, k, v, place, at, known = _read(qkv, length, channels, HEAD, L, C)
    into = tl.load(grad + at, known, 0.0)
    weights, share = _softmax(q, k, factor, L, PRECISION)
    weights *= share
    into_v = tl.dot(tl.trans(weights.to(v.dtype)), into, input_precision=PRECISION)
    slopes = tl.dot(into, tl.trans(v), input_precision=PRECISION)
    slopes = (weights * (slopes - tl.sum(weights * slopes, 1)[:, None]) * factor).to(v.dtype)
    into_q = tl.dot(slopes, k, input_precision=PRECISION)
    into_k = tl.dot(tl.trans(slopes), q, input_precision=PRECISION)
    kind = out.dtype.element_ty
    tl.store(out + place, into_q.to(kind), mask=known)
    tl.store(out + place + channels, into_k.to(kind), mask=known)
    tl.store(out + place + 2 * channels, into_v.to(kind), mask=known)


def attends(qkv: Tensor, heads: int) -> bool:
    """Return whether one program can hold a head of an example."""
    head = qkv.shape[-1] // 3 // heads
    return qkv.shape[1] <= LONGEST.get(qkv.element_size(), 0) and head <= WIDEST


def attention(qkv: Tensor, heads: int) -> Tensor:
    out = qkv.new_empty(*qkv.shape[:2], qkv.shape[-1] // 3)
    sizes, warps = _sizes(out, heads)
    launch(_attention, (len(qkv), heads), qkv, out, *sizes, num_warps=warps)
    return out


def attention_backward(grad: Tensor, qkv: Tensor, heads: int) -> Tensor:
    out = torch.empty_like(qkv)
    sizes, warps = _sizes(grad, heads)
    launch(_attention_backward, (len(qkv), heads), grad, qkv, out, *sizes, num_warps=warps)
    return out


def _sizes(mixed: Tensor, heads: int) -> tuple[tuple[int | float | str, ...], int]:
    """Return the sizes that both kernels take, and the number of warps."""
    _, length, channels = mixed.shape
    head, positions = channels // heads, power(length)
    sizes = length, channels, head**-0.5, head, positions, power(head), PRECISION
    return sizes, max(1, positions * positions // (2048 if mixed.element_size() == 2 else 512))
