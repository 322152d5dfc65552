"""Compute the deltas of rows of seeds with different grafts, as `blending.delta` does for one."""

# pyright: reportIncompatibleMethodOverride=false

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from esper.kasmina.kernels.rows import RowFunction, usable
from esper.leyline.actions import Graft


def any_delta(graft: Tensor, host: Tensor, f: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return each row's delta from grafts (R,), host streams and f (R, ..., C), and gates.

    A gate's logits are those of a linear layer on the host's channels, with weights (R, 1, C) and biases (R, 1).
    """
    if usable(host, f, weight, bias):
        return _FusedDelta.of(graft, host, f, weight.flatten(1), bias.flatten())
    logits = torch.baddbmm(bias[:, None], host.flatten(1, -2), weight.mT)
    return _Delta.of(graft, host, f, logits.unflatten(1, host.shape[1:-1]))


class _FusedDelta(RowFunction):
    """Runs on a GPU only: the logits of gates, and all that a row's graft needs, in one pass."""

    @staticmethod
    def forward(graft: Tensor, host: Tensor, f: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        from esper.kasmina.kernels import gpu

        return gpu.delta(*(x.contiguous() for x in (graft, host, f, weight, bias)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_FusedDeltaBackward.once(grads[0], *ctx.saved_tensors)


class _FusedDeltaBackward(RowFunction):
    @staticmethod
    def forward(*inputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        from esper.kasmina.kernels import gpu

        return gpu.delta_backward(*(x.contiguous() for x in inputs))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass


class _Delta(RowFunction):
    @staticmethod
    def forward(graft: Tensor, host: Tensor, f: Tensor, g: Tensor) -> Tensor:
        if reads_rows(graft):
            return _forward_by_kind(graft, host, f, g)
        add, multiply, gate, _ = (_shaped(graft == kind, f) for kind in Graft)
        added = torch.where(add, f, torch.where(gate, torch.sigmoid(g) * f, f - host))
        return torch.where(multiply, host * torch.tanh(f), added)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_DeltaBackward.once(grads[0], *ctx.saved_tensors)


class _DeltaBackward(RowFunction):
    @staticmethod
    def forward(grad: Tensor, graft: Tensor, host: Tensor, f: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if reads_rows(graft):
            return _backward_by_kind(grad, graft, host, f, g)
        _, multiply, gate, replace = (_shaped(graft == kind, f) for kind in Graft)
        bent, opened = torch.tanh(f), torch.sigmoid(g)
        into_f = torch.where(gate, grad * opened, torch.where(multiply, grad * host * (1 - bent * bent), grad))
        into_host = torch.where(multiply, grad * bent, torch.where(replace, -grad, 0.0))
        into_g = torch.where(gate, (grad * f).sum(-1, keepdim=True) * opened * (1 - opened), 0.0)
        return into_host, into_f, into_g

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass


def reads_rows(graft: Tensor) -> bool:
    """Return whether reading which rows are grafted in which way costs nothing; on a GPU it waits for the device."""
    return graft.device.type == "cpu"


def _forward_by_kind(graft: Tensor, host: Tensor, f: Tensor, g: Tensor) -> Tensor:
    """Compute for each row what its graft needs, and nothing else: a CPU can read which rows these are."""
    out, opened = f.clone(memory_format=torch.contiguous_format), torch.sigmoid(g)
    for kind in (Graft.MULTIPLY, Graft.GATE, Graft.REPLACE):
        for rows in _runs(graft, kind):
            if kind is Graft.MULTIPLY:
                out[rows].tanh_().mul_(host[rows])
            elif kind is Graft.GATE:
                out[rows].mul_(opened[rows])
            else:
                out[rows].sub_(host[rows])
    return out


def _backward_by_kind(grad: Tensor, graft: Tensor, host: Tensor, f: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    into_f = grad.clone(memory_format=torch.contiguous_format)
    into_host, into_g, opened = torch.zeros_like(into_f), g.new_zeros(g.shape), torch.sigmoid(g)
    for rows in _runs(graft, Graft.MULTIPLY):
        bent = torch.tanh(f[rows])
        torch.mul(grad[rows], bent, out=into_host[rows])
        into_f[rows].mul_(host[rows]).mul_(bent.square_().neg_().add_(1))
    for rows in _runs(graft, Graft.GATE):
        into_f[rows].mul_(opened[rows])
        into_g[rows] = (grad[rows] * f[rows]).sum(-1, keepdim=True) * opened[rows] * (1 - opened[rows])
    for rows in _runs(graft, Graft.REPLACE):
        torch.neg(grad[rows], out=into_host[rows])
    return into_host, into_f, into_g


def _runs(graft: Tensor, kind: Graft) -> Iterator[slice]:
    """Yield the runs of neighbouring rows of one kind, as slices."""
    start = None
    for row, is_kind in enumerate([*(graft == kind).tolist(), False]):
        if is_kind and start is None:
            start = row
        elif not is_kind and start is not None:
            yield slice(start, row)
            start = None


def _shaped(rows: Tensor, like: Tensor) -> Tensor:
    return rows.view(-1, *[1] * (like.ndim - 1))
