"""Take optimizer steps in stacks: row by row clipped, each row with its own rate and step count."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from esper.kasmina.kernels import usable
from esper.tolaria.config import TrainConfig
from esper.tolaria.stack import Stack

EPS = 1e-8
CLIP_EPS = 1e-6

Tensors = Sequence[Tensor]
"""One tensor of every stack."""


class Update(NamedTuple):
    """The gradients of one stack, and which rows take a step at which rate."""

    stack: Stack
    grad: Float[Tensor, "R P"]
    active: Bool[Tensor, " R"]
    lr: Float[Tensor, " R"]


class Rates(NamedTuple):
    """Numbers of each row that its step needs, (R, 1) for each stack."""

    clip: Tensors
    lr: Tensors
    correction1: Tensors
    correction2: Tensors


@torch.no_grad()
def step(updates: Sequence[Update], config: TrainConfig) -> None:
    """Take an optimizer step in the active rows of stacks, clipping row by row, each with its own step count.

    Inactive rows stay bit-identical. The gradient norm of every row is added to its stack's norms.
    """
    if all(usable(update.grad) for update in updates):
        from esper.tolaria import gpu

        for stack, grad, active, lr in updates:
            flat, first, second, steps = stack.tensors.values()
            gpu.step(flat, first, second, steps, grad, stack.norms, active, lr, config, EPS, CLIP_EPS)
        return
    stacks = [update.stack for update in updates]
    grads = [update.grad.to(stack.flat.dtype) for stack, update in zip(stacks, updates, strict=True)]
    norms = torch._foreach_sqrt([square.sum(1) for square in torch._foreach_mul(grads, grads)])
    torch._foreach_add_([stack.norms for stack in stacks], norms)
    rates = _rates(updates, torch.cat(norms), config)
    grads = torch._foreach_mul(grads, rates.clip)
    change = _sgd if config.optimizer == "sgd" else _adamw
    old = [[stack.whole[name][: stack.rows] for stack in stacks] for name in ("flat", "first", "second")]
    for was, now in zip(old, change(*old, grads, rates, config), strict=True):
        for before, after, update in zip(was, now, updates, strict=True):
            before.copy_(torch.where(update.active[:, None], after, before))


def _rates(updates: Sequence[Update], norm: Tensor, config: TrainConfig) -> Rates:
    """Compute the numbers of all rows of all stacks at once, and count the steps of active rows."""
    sizes = [len(update.grad) for update in updates]
    taken = torch.cat([update.stack.tensors["steps"] + update.active for update in updates])
    for update, counted in zip(updates, taken.split(sizes), strict=True):
        update.stack.tensors["steps"].copy_(counted)
    beta1, beta2 = config.betas
    rows = (
        (config.clip / (norm + CLIP_EPS)).clamp(max=1),
        torch.cat([update.lr for update in updates]).to(norm.dtype),
        (1 - beta1**taken).to(norm.dtype),
        (1 - beta2**taken).to(norm.dtype).sqrt(),
    )
    return Rates(*(row[:, None].split(sizes) for row in rows))


Lists = tuple[Tensors, Tensors, Tensors]
"""Weights, first and second moments of all stacks."""


def _sgd(flat: Tensors, first: Tensors, second: Tensors, grads: Tensors, rates: Rates, config: TrainConfig) -> Lists:
    torch._foreach_add_(grads, torch._foreach_mul(flat, config.weight_decay))
    momentum = torch._foreach_mul(first, config.momentum)
    torch._foreach_add_(momentum, grads)
    return torch._foreach_sub(flat, torch._foreach_mul(momentum, rates.lr)), momentum, second


def _adamw(flat: Tensors, first: Tensors, second: Tensors, grads: Tensors, rates: Rates, config: TrainConfig) -> Lists:
    beta1, beta2 = config.betas
    momentum = torch._foreach_lerp(first, grads, 1 - beta1)
    variance, squares = torch._foreach_mul(second, beta2), torch._foreach_mul(grads, grads)
    torch._foreach_mul_(squares, 1 - beta2)
    torch._foreach_add_(variance, squares)
    scale = torch._foreach_sqrt(variance)
    torch._foreach_div_(scale, rates.correction2)
    torch._foreach_add_(scale, EPS)
    change = torch._foreach_mul(momentum, torch._foreach_div(rates.lr, rates.correction1))
    torch._foreach_div_(change, scale)
    kept = torch._foreach_mul(rates.lr, -config.weight_decay)
    torch._foreach_add_(kept, 1.0)
    moved = torch._foreach_mul(flat, kept)
    torch._foreach_sub_(moved, change)
    return moved, momentum, variance
