"""Take rows of streams to seeds, and add what comes back to the rows.

On a GPU each direction, forward and backward, is one pass over memory.
"""

# pyright: reportIncompatibleMethodOverride=false

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd import Function

from esper.kasmina.kernels.rows import spread, usable, where


class Routes(NamedTuple):
    """Which row of a stream each seed is for."""

    rows: Int[Tensor, " R"]
    real: Bool[Tensor, " R"]
    """Whether the seed adds to its row, which also passes gradients back to it. At most one seed of a row does."""
    sources: Int[Tensor, " N"] | None
    """The seed that adds to each row of the stream, or −1; None where the GPU kernels do not apply."""


def route(rows: Int[Tensor, " R"], real: Bool[Tensor, " R"], x: Tensor) -> Routes:
    """Return the routes between the rows of x and seeds."""
    if not usable(x):
        return Routes(rows, real, None)
    count = len(x)
    sources = torch.full((count + 1,), -1, dtype=torch.long, device=x.device)
    seeds = torch.arange(len(rows), device=x.device)
    return Routes(rows, real, sources.scatter_(0, torch.where(real, rows, count), seeds)[:count])


def take(x: Tensor, to: Routes) -> tuple[Tensor, Tensor]:
    """Return the rows of x for seeds, and x itself, to which gradients from both come back at once."""
    if to.sources is not None and len(to.rows):
        return _Take.apply(x, to.rows, to.sources)  # pyright: ignore[reportReturnType]
    stream = x.index_select(0, to.rows)
    if x.is_cuda or not to.real.all():
        stream = where(to.real, stream, stream.detach())
    return stream, x


def add(x: Tensor, to: Routes, alpha: Float[Tensor, " R"], deltas: Tensor) -> Tensor:
    """Add each real delta, times its alpha, to its row of x. All other rows keep every bit."""
    if to.sources is not None and len(to.rows):
        return _Add.apply(x, *to, alpha, deltas)  # pyright: ignore[reportReturnType]
    loud = where(to.real, spread(alpha, deltas) * deltas, -0.0)  # −0.0 changes no bit of what it is added to
    return x.index_add(0, to.rows, loud)


class _Take(Function):
    """Runs on a GPU only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor, sources: Tensor) -> tuple[Tensor, Tensor]:
        from esper.kasmina.kernels import gpu

        ctx.save_for_backward(sources)
        return gpu.gather_rows(x, rows), x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from esper.kasmina.kernels import gpu

        from_seeds, from_x = grads
        return gpu.add_rows(from_x, from_seeds, *ctx.saved_tensors), None, None


class _Add(Function):
    """Runs on a GPU only."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, rows: Tensor, real: Tensor, sources: Tensor, alpha: Tensor, deltas: Tensor
    ) -> Tensor:
        from esper.kasmina.kernels import gpu

        ctx.save_for_backward(rows, real, alpha)
        return gpu.add_rows(x, deltas, sources, alpha)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from esper.kasmina.kernels import gpu

        return grads[0], None, None, None, None, gpu.gather_rows(grads[0], *ctx.saved_tensors)
