"""Operations on rows, under vmap."""

from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

GPU = find_spec("triton") is not None
"""Triton is there: torch brings it along wherever it supports CUDA."""


class RowFunction(Function):
    """A function whose tensors, in and out, all have rows as their first axis. To vmap, more rows are only that."""

    @classmethod
    def of(cls, *inputs: Any) -> Any:
        """`apply`, without its binding of arguments where nothing but autograd looks on: 0.1 ms a call on a CPU."""
        return cls.apply(*inputs) if _transformed() else super(Function, cls).apply(*inputs)  # pyright: ignore

    @classmethod
    def once(cls, *inputs: Any) -> Any:
        """The same for a backward, which nobody differentiates."""
        return cls.apply(*inputs) if _transformed() else cls.forward(*inputs)

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

        def apart(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.unflatten(0, (info.batch_size, rows))

        if isinstance(out, tuple):
            return tuple(apart(x) for x in out), tuple(None if x is None else 0 for x in out)
        return apart(out), 0


def _transformed() -> bool:
    """Whether vmap or another transform of torch.func is at work."""
    return torch._C._are_functorch_transforms_active()


def along(row: Tensor, x: Tensor) -> Tensor:
    """Numbers per row and channel, (R, C), shaped to meet (R, B, ..., C)."""
    return row.view(len(row), *[1] * (x.ndim - 2), -1)


def dense(x: Tensor) -> Tensor:
    """The same with every row contiguous; the rows themselves may lie anywhere, or on top of each other."""
    return x if x[0].is_contiguous() else x.contiguous()


def alone(*tensors: Tensor) -> bool:
    """Whether there is but one row, and no kernel of ours for it: torch's own operations are faster then."""
    return len(tensors[0]) == 1 and not _transformed() and not usable(*tensors)


def usable(*tensors: Tensor) -> bool:
    """Return whether the Triton kernels apply: not in double precision, and not while `torch.export` traces."""
    return GPU and all(x.is_cuda and x.dtype != torch.float64 for x in tensors) and not torch.compiler.is_exporting()


def compiling() -> AbstractContextManager[None]:
    """What is launched in here is not run but compiled, all kernels at once."""
    if not GPU:
        return nullcontext()
    from esper.kasmina.kernels import gpu

    return gpu.compiling()
