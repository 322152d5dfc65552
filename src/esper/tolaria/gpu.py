"""Run optimizer steps and sums of squares on CUDA devices with Triton kernels, for rows of any size."""

# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false, reportCallIssue=false

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from esper.kasmina.kernels.gpu import launch
from esper.tolaria.config import TrainConfig

BLOCK = 2048


@triton.jit(do_not_specialize=["width", "grad_row", "parts"])
def _squares(grad, sums, steps, active, width, grad_row, parts, B: tl.constexpr):
    """Sum the squares of one part of one row's gradient; the first part of an active row counts the step."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = part * B + tl.arange(0, B)
    g = tl.load(grad + row * grad_row + at, mask=at < width, other=0.0).to(tl.float32)
    tl.store(sums + row * parts + part, tl.sum(g * g, 0))
    if part == 0:
        tl.store(steps + row, tl.load(steps + row) + tl.load(active + row).to(tl.float64))


@triton.jit(do_not_specialize=["width", "grad_row", "parts"])
def _step(
    flat,
    first,
    second,
    steps,
    grad,
    sums,
    norms,
    active,
    lr,
    width,
    grad_row,
    parts,
    MOMENTUM: tl.constexpr,
    BETA1: tl.constexpr,
    BETA2: tl.constexpr,
    LOG_BETA1: tl.constexpr,
    LOG_BETA2: tl.constexpr,
    DECAY: tl.constexpr,
    CLIP: tl.constexpr,
    EPS: tl.constexpr,
    CLIP_EPS: tl.constexpr,
    SGD: tl.constexpr,
    B: tl.constexpr,
    S: tl.constexpr,
):
    """Update one part of one row."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    s = tl.arange(0, S)
    norm = tl.sqrt(tl.sum(tl.load(sums + row * parts + s, mask=s < parts, other=0.0), 0))
    if part == 0:
        tl.store(norms + row, tl.load(norms + row) + norm)
    if tl.load(active + row):
        rate = tl.load(lr + row).to(tl.float32)
        ratio = CLIP / (norm + CLIP_EPS)
        scale = tl.where(ratio > 1, 1.0, ratio)  # NaN propagates
        at = part * B + tl.arange(0, B)
        here = at < width
        place = row * width + at
        g = tl.load(grad + row * grad_row + at, mask=here, other=0.0).to(tl.float32) * scale
        p = tl.load(flat + place, mask=here, other=0.0)
        m = tl.load(first + place, mask=here, other=0.0)
        if SGD:
            m = m * MOMENTUM + (g + DECAY * p)
            p = p - rate * m
        else:
            taken = tl.load(steps + row)
            correction1 = (1 - tl.exp(taken * LOG_BETA1)).to(tl.float32)
            correction2 = tl.sqrt((1 - tl.exp(taken * LOG_BETA2)).to(tl.float32))
            v = tl.load(second + place, mask=here, other=0.0)
            m = m + (1 - BETA1) * (g - m)
            v = v * BETA2 + (1 - BETA2) * (g * g)
            p = p * (1 - rate * DECAY) - rate / correction1 * m / (tl.sqrt(v) / correction2 + EPS)
            tl.store(second + place, v, mask=here)
        tl.store(first + place, m, mask=here)
        tl.store(flat + place, p, mask=here)


@triton.jit(do_not_specialize=["width", "parts"])
def _sum_squares(x, sums, width, x_row, parts, B: tl.constexpr):
    """Sum the squares of one part of one row."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = part * B + tl.arange(0, B)
    values = tl.load(x + row * x_row + at, mask=at < width, other=0.0).to(tl.float32)
    tl.store(sums + row * parts + part, tl.sum(values * values, 0))


def squares(x: Tensor) -> Tensor:
    """Return the squared norm of each row of x (R, W), as `stack.squares` does on a CPU."""
    rows, width = x.shape
    block = min(2 * BLOCK, triton.next_power_of_2(width))
    sums = x.new_empty(rows, triton.cdiv(width, block), dtype=torch.float32)
    launch(_sum_squares, tuple(sums.shape), x, sums, width, x.stride(0), sums.shape[1], block)
    return sums.sum(1)


def step(
    flat: Tensor,
    first: Tensor,
    second: Tensor,
    steps: Tensor,
    grad: Tensor,
    norms: Tensor,
    active: Tensor,
    lr: Tensor,
    config: TrainConfig,
    eps: float,
    clip_eps: float,
) -> None:
    """Update a stack in place, as `stack.step` does on a CPU."""
    rows, width = flat.shape
    block = min(BLOCK, triton.next_power_of_2(width))
    parts = triton.cdiv(width, block)
    sums = flat.new_empty(rows, parts)
    sizes = (width, grad.stride(0), parts)
    launch(_squares, (rows, parts), grad, sums, steps, active, *sizes, block)
    logs = (math.log(beta) if beta else -math.inf for beta in config.betas)
    constants = (config.momentum, *config.betas, *logs, config.weight_decay, config.clip, eps, clip_eps)
    flags = (config.optimizer == "sgd", block, triton.next_power_of_2(parts))
    tensors = (flat, first, second, steps, grad, sums, norms, active, lr)
    launch(_step, (rows, parts), *tensors, *sizes, *constants, *flags)
