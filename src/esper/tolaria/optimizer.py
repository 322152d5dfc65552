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
from esper.tolaria.lanes import Lanes
from esper.tolaria.stack import ALIGNMENT, Stack

EPS = 1e-8
CLIP_EPS = 1e-6
PARTS = ("flat", "first", "second")
"""Parameters and moments of a stack."""
SMALL = 2**16
"""Elements up to which a stack on a CPU takes its step together with others: copies cost less than more calls."""


class Update(NamedTuple):
    """What one optimizer step in a stack depends on."""

    stack: Stack
    grad: Float[Tensor, "R P"]
    active: Bool[Tensor, " R"]
    lr: Float[Tensor, " R"]


@torch.no_grad()
def step_all(updates: Sequence[Update], config: TrainConfig, lanes: Lanes) -> None:
    """Take an optimizer step in the active rows of all stacks, on a GPU side by side.

    Inactive rows stay bit-identical. The gradient norm of every row is added to its stack's norms.
    """
    small = [_is_small(update.grad) for update in updates]
    for n, (update, is_small) in enumerate(zip(updates, small, strict=True)):
        if not is_small:
            with lanes.lane(n):
                step(*update, config)
    lanes.join()
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
    _move((flat, first, second), grad, norm, active, lr, taken, config, lambda row: row[:, None])
    steps.copy_(taken)


def _is_small(grad: Tensor) -> bool:
    """Return whether a stack may take its step with others.

    Not in double precision, where the last bits of powers on a CPU depend on how many are computed at once.
    """
    return grad.device.type == "cpu" and grad.dtype == torch.float32 and grad.numel() <= SMALL


def _step_together(updates: Sequence[Update], config: TrainConfig) -> None:
    """Take a step in all stacks as if they were one, whose rows are the aligned pieces of theirs."""
    stacks = [update.stack.tensors for update in updates]
    parts = [[tensors[name].view(-1, ALIGNMENT) for tensors in stacks] for name in PARTS]
    grads = [update.grad.reshape(-1, ALIGNMENT) for update in updates]
    pieces, rows = [len(grad) for grad in grads], [len(update.grad) for update in updates]
    whole, grad = tuple(torch.cat(part) for part in parts), torch.cat(grads)
    squares = zip(grad.square().split(pieces), rows, strict=True)
    norm = torch.cat([square.view(count, -1).sum(1) for square, count in squares]).sqrt()
    active, lr = torch.cat([update.active for update in updates]), torch.cat([update.lr for update in updates])
    steps = [tensors["steps"] for tensors in stacks]
    taken = torch.cat(steps) + active
    each = np.repeat([piece // row for piece, row in zip(pieces, rows, strict=True)], rows)
    row_of = torch.from_numpy(np.repeat(np.arange(len(each)), each))
    _move(whole, grad, norm, active, lr, taken, config, lambda row: row.index_select(0, row_of)[:, None])
    torch._foreach_add_([update.stack.norms for update in updates], norm.split(rows))
    torch._foreach_copy_(steps, taken.split(rows))
    for part, moved in zip(parts, whole, strict=True):
        torch._foreach_copy_(part, moved.split(pieces))


def _move(
    parts: tuple[Tensor, ...],
    grad: Tensor,
    norm: Float[Tensor, " R"],
    active: Bool[Tensor, " R"],
    lr: Float[Tensor, " R"],
    taken: Float[Tensor, " R"],
    config: TrainConfig,
    spread: Callable[[Tensor], Tensor],
) -> None:
    """Change parameters and moments. `spread` lets a number of each row broadcast with them."""
    flat, first, second = parts
    grad = grad * spread((config.clip / (norm + CLIP_EPS)).clamp(max=1))
    rate = lr.to(grad.dtype)
    if config.optimizer == "sgd":
        momentum = (first * config.momentum).add_(grad.add_(config.weight_decay * flat))
        new = flat - spread(rate) * momentum, momentum, second
    else:
        beta1, beta2 = config.betas
        momentum = torch.lerp(first, grad, 1 - beta1)
        variance = (second * beta2).add_(grad.square_().mul_(1 - beta2))
        correction1 = (1 - beta1**taken).to(grad.dtype)
        correction2 = (1 - beta2**taken).to(grad.dtype).sqrt()
        scale = variance.sqrt().div_(spread(correction2)).add_(EPS)
        decayed = flat * spread(1 - rate * config.weight_decay)
        new = decayed.sub_((spread(rate / correction1) * momentum).div_(scale)), momentum, variance
    rows = spread(active).expand_as(flat).contiguous()
    for before, after in zip(parts, new, strict=True):
        torch.where(rows, after, before, out=before)
