"""Take optimizer steps in stacks: row by row clipped, each row with its own rate and step count."""

# pyright: reportPrivateImportUsage=false

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from esper.kasmina.kernels import usable
from esper.tolaria.config import TrainConfig
from esper.tolaria.stack import ALIGNMENT, Stack

EPS = 1e-8
CLIP_EPS = 1e-6
SMALL = 2**16
"""Elements up to which a stack on a CPU takes its step together with others: copies cost less than more calls."""


class Update(NamedTuple):
    """What one optimizer step in a stack depends on."""

    stack: Stack
    grad: Float[Tensor, "R P"]
    active: Bool[Tensor, " R"]
    lr: Float[Tensor, " R"]


class Moved(NamedTuple):
    """Parameters and moments, before a step or after it."""

    flat: Tensor
    first: Tensor
    second: Tensor


@torch.no_grad()
def step_all(updates: Sequence[Update], config: TrainConfig) -> None:
    """Take an optimizer step in the active rows of all stacks.

    Inactive rows stay bit-identical. The gradient norm of every row is added to its stack's norms.
    """
    small = [update.grad.device.type == "cpu" and update.grad.numel() <= SMALL for update in updates]
    for update, is_small in zip(updates, small, strict=True):
        if not is_small:
            step(*update, config)
    if any(small):
        _step_together([update for update, is_small in zip(updates, small, strict=True) if is_small], config)


@torch.no_grad()
def step(
    stack: Stack,
    grad: Float[Tensor, "R P"],
    active: Bool[Tensor, " R"],
    lr: Float[Tensor, " R"],
    config: TrainConfig,
) -> None:
    """Take an optimizer step in the active rows of one stack, clipping row by row, each with its own step count."""
    flat, first, second, steps = stack.tensors.values()
    if usable(grad):
        from esper.tolaria import gpu

        gpu.step(flat, first, second, steps, grad, stack.norms, active, lr, config, EPS, CLIP_EPS)
        return
    grad = grad.to(flat.dtype)
    norm, taken = grad.square().sum(1).sqrt(), steps + active
    stack.norms.add_(norm)
    old = Moved(flat, first, second)
    for before, after in zip(
        old, _moved(old, grad, norm, active, lr, taken, config, lambda row: row[:, None]), strict=True
    ):
        before.copy_(after)
    steps.copy_(taken)


def _step_together(updates: Sequence[Update], config: TrainConfig) -> None:
    """Take a step in all stacks as if they were one, whose rows are the aligned pieces of theirs."""
    stacks = [update.stack.tensors for update in updates]
    parts = [[tensors[name].view(-1, ALIGNMENT) for tensors in stacks] for name in Moved._fields]
    grads = [update.grad.reshape(-1, ALIGNMENT) for update in updates]
    pieces, rows = [len(grad) for grad in grads], [len(update.grad) for update in updates]
    old, grad = Moved(*(torch.cat(part) for part in parts)), torch.cat(grads)
    squares = zip(grad.square().split(pieces), rows, strict=True)
    norm = torch.cat([square.view(count, -1).sum(1) for square, count in squares]).sqrt()
    active, lr = torch.cat([update.active for update in updates]), torch.cat([update.lr for update in updates])
    steps = [tensors["steps"] for tensors in stacks]
    taken = torch.cat(steps) + active
    each = np.repeat([piece // row for piece, row in zip(pieces, rows, strict=True)], rows)
    row_of = torch.from_numpy(np.repeat(np.arange(len(each)), each))
    new = _moved(old, grad, norm, active, lr, taken, config, lambda row: row.index_select(0, row_of)[:, None])
    torch._foreach_add_([update.stack.norms for update in updates], norm.split(rows))
    torch._foreach_copy_(steps, taken.split(rows))
    for part, moved in zip(parts, new, strict=True):
        torch._foreach_copy_(part, moved.split(pieces))


def _moved(
    old: Moved,
    grad: Tensor,
    norm: Float[Tensor, " R"],
    active: Bool[Tensor, " R"],
    lr: Float[Tensor, " R"],
    taken: Float[Tensor, " R"],
    config: TrainConfig,
    spread: Callable[[Tensor], Tensor],
) -> Moved:
    """Return parameters and moments after a step. `spread` lets a number of each row broadcast with parameters."""
    flat, first, second = old
    grad = grad * spread((config.clip / (norm + CLIP_EPS)).clamp(max=1))
    rate = lr.to(grad.dtype)
    if config.optimizer == "sgd":
        grad = grad + config.weight_decay * flat
        momentum, variance = first * config.momentum + grad, second
        moved = flat - spread(rate) * momentum
    else:
        beta1, beta2 = config.betas
        momentum = torch.lerp(first, grad, 1 - beta1)
        variance = second * beta2 + (1 - beta2) * grad.square()
        correction1 = (1 - beta1**taken).to(grad.dtype)
        correction2 = (1 - beta2**taken).to(grad.dtype).sqrt()
        decayed = flat * spread(1 - rate * config.weight_decay)
        moved = decayed - spread(rate / correction1) * momentum / (variance.sqrt() / spread(correction2) + EPS)
    rows = spread(active).expand_as(flat).contiguous()
    return Moved(*(torch.where(rows, new, old) for old, new in zip(old, (moved, momentum, variance), strict=True)))
