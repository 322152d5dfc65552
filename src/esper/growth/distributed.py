"""Average the gradients of new parameters over processes: `DistributedDataParallel` only knows those it was given."""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def is_distributed() -> bool:
    """Whether several processes train together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def is_first() -> bool:
    """Whether this process is alone, or the first of several."""
    return not is_distributed() or dist.get_rank() == 0


class SharedGradients:
    """Averages the gradients of its parameters once, at the end of every backward pass.

    Averaging is harmless where gradients are the same on all processes already.
    """

    def __init__(self) -> None:
        self.parameters: list[nn.Parameter] = []
        self.handles: dict[int, Any] = {}
        self.queued = False

    def add(self, parameters: Iterable[nn.Parameter]) -> None:
        """Average these as well. Every process must add the same parameters in the same order."""
        for parameter in parameters:
            self.parameters.append(parameter)
            self.handles[id(parameter)] = parameter.register_post_accumulate_grad_hook(self._ready)

    def remove(self, parameters: Iterable[nn.Parameter]) -> None:
        """Leave these alone from now on."""
        gone = {id(parameter) for parameter in parameters}
        for key in gone & self.handles.keys():
            self.handles.pop(key).remove()
        self.parameters = [p for p in self.parameters if id(p) not in gone]

    def _ready(self, parameter: Tensor) -> None:
        if not self.queued:
            self.queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._average)  # pyright: ignore

    def _average(self) -> None:
        self.queued = False
        with torch.no_grad():
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
            flat = torch.cat([g.float().flatten() for g in gradients])
            dist.all_reduce(flat)
            flat /= dist.get_world_size()
            for p, g in zip(self.parameters, flat.split([g.numel() for g in gradients]), strict=True):
                if p.grad is not None:
                    p.grad.copy_(g.view_as(p))
