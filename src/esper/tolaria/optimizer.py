"""Take optimizer steps in a stack: row by row clipped, each row with its own rate and step count."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from esper.kasmina.kernels import usable
from esper.tolaria.config import TrainConfig
from esper.tolaria.stack import Stack

EPS = 1e-8
CLIP_EPS = 1e-6


@torch.no_grad()
def step(
    stack: Stack,
    grad: Float[Tensor, "R P"],
    active: Bool[Tensor, " R"],
    lr: Float[Tensor, " R"],
    config: TrainConfig,
) -> None:
    """Take an optimizer step in the active rows, clipping row by row, each with its own step count.

    Inactive rows stay bit-identical. The gradient norm of every row is added to the stack's norms.
    """
    flat, first, second, steps = stack.tensors.values()
    if usable(grad):
        from esper.tolaria import gpu

        gpu.step(flat, first, second, steps, grad, stack.norms, active, lr, config, EPS, CLIP_EPS)
        return
    grad = grad.to(flat.dtype)
    norm = grad.square().sum(1).sqrt()
    stack.norms.add_(norm)
    grad = grad * (config.clip / (norm + CLIP_EPS)).clamp(max=1)[:, None]
    rows, taken = active[:, None], steps + active
    rate = lr.to(grad.dtype)[:, None]
    if config.optimizer == "sgd":
        grad = grad + config.weight_decay * flat
        momentum, variance = first * config.momentum + grad, second
        moved = flat - rate * momentum
    else:
        beta1, beta2 = config.betas
        momentum = torch.lerp(first, grad, 1 - beta1)
        variance = second * beta2 + (1 - beta2) * grad.square()
        correction1 = (1 - beta1**taken).to(grad.dtype)[:, None]
        correction2 = (1 - beta2**taken).to(grad.dtype).sqrt()[:, None]
        decayed = flat * (1 - rate * config.weight_decay)
        moved = decayed - rate / correction1 * momentum / (variance.sqrt() / correction2 + EPS)
    for old, new in ((flat, moved), (first, momentum), (second, variance)):
        old.copy_(torch.where(rows, new, old))
    steps.copy_(taken)
