"""Define functions on rows that also run under vmap, and where GPU kernels apply."""

from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

GPU = find_spec("triton") is not None
"""Whether Triton is installed; torch installs it wherever it supports CUDA."""


class RowFunction(Function):
    """An autograd function whose input and output tensors all have rows as their first axis. vmap adds rows."""

    @classmethod
    def of(cls, *inputs: Any) -> Any:
        """Call `apply`, but outside torch.func skip its binding of arguments, which takes 0.1 ms on a CPU."""
        return cls.apply(*inputs) if transformed() else super(Function, cls).apply(*inputs)  # pyright: ignore

    @classmethod
    def once(cls, *inputs: Any) -> Any:
        """Call a backward function, which is not differentiated itself."""
        return cls.apply(*inputs) if transformed() else cls.forward(*inputs)

    @classmethod
    def vmap(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls, info: Any, in_dims: tuple[Any, ...], *inputs: Any
    ) -> tuple[Any, Any]:
        def stacked(x: Any, dim: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            x = x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            return x.flatten(0, 1)

        rows = next(x.shape[0 if d is None else int(d == 0)] for x, d in zip(inputs, in_dims, strict=True))
        out = cls.apply(*(stacked(x, dim) for x, dim in zip(inputs, in_dims, strict=True)))

        def unstacked(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.unflatten(0, (info.batch_size, rows))

        if isinstance(out, tuple):
            return tuple(unstacked(x) for x in out), tuple(None if x is None else 0 for x in out)
        return unstacked(out), 0


def transformed() -> bool:
    """Return whether vmap or another transform of torch.func is active."""
    return torch._C._are_functorch_transforms_active()


def along(row: Tensor, x: Tensor) -> Tensor:
    """Reshape numbers per row and channel, (R, C), so that they broadcast with (R, B, ..., C)."""
    return row.view(len(row), *[1] * (x.ndim - 2), -1)


def spread(row: Tensor, like: Tensor) -> Tensor:
    """Reshape one number per row to multiply (R, ...), in its dtype."""
    return row.to(like.dtype).view(-1, *[1] * (like.ndim - 1))


def where(rows: Tensor, yes: Tensor, no: Tensor | float) -> Tensor:
    """Return the rows of `yes` where `rows` is true, and of `no` elsewhere."""
    return torch.where(rows.view(-1, *[1] * (yes.ndim - 1)), yes, no)


def dense(x: Tensor) -> Tensor:
    """Return the tensor with every row contiguous; rows may lie anywhere, or share memory."""
    return x if x[0].is_contiguous() else x.contiguous()


def alone(*tensors: Tensor) -> bool:
    """Return whether there is a single row without a GPU kernel: then torch's own operations are faster."""
    return len(tensors[0]) == 1 and not transformed() and not usable(*tensors)


def usable(*tensors: Tensor) -> bool:
    """Return whether the Triton kernels apply: not in double precision, and not while `torch.export` traces."""
    return GPU and all(x.is_cuda and x.dtype != torch.float64 for x in tensors) and not torch.compiler.is_exporting()


def compiling() -> AbstractContextManager[None]:
    """Compile the GPU kernels that are launched in this context, in parallel, instead of running them."""
    if not GPU:
        return nullcontext()
    from esper.kasmina.kernels import gpu

    return gpu.compiling()
