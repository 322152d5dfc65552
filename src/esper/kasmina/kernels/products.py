"""Multiply every position of a row by the row's weights."""

# pyright: reportIncompatibleMethodOverride=false

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from esper.kasmina.kernels.rows import RowFunction, usable

LONG = 8192
"""Positions from which the gradient of the weights is summed in parts."""
PART = 1024
"""Fewest positions of a part."""
PROGRAMS = 512
"""Parts of all rows together that keep a GPU busy."""


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x (R, P, I) times the weights (R, O, I) of each row, plus its bias (R, O)."""
    if usable(x, weight) and x.shape[1] >= LONG and not torch.is_autocast_enabled(x.device.type):
        return _Product.of(x, weight, bias)
    return _multiplied(x, weight, bias)


def _multiplied(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x @ weight.mT if bias is None else torch.baddbmm(bias[:, None], x, weight.mT)


class _Product(RowFunction):
    """A product whose weights' gradient, a sum over very many positions, is spread over a GPU.

    In half precision each part of the sum is rounded before they are added up.
    """

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return _multiplied(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _ProductBackward.once(grad, *ctx.saved_tensors, *ctx.needs_input_grad)


class _ProductBackward(RowFunction):
    @staticmethod
    def forward(
        grad: Tensor, x: Tensor, weight: Tensor, for_x: bool, for_weight: bool, for_bias: bool
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        parts, into_weight = num_parts(*x.shape[:2]), None
        if for_weight:
            left, right = (t.unflatten(1, (parts, -1)).flatten(0, 1) for t in (grad, x))  # R * parts, P / parts, ...
            into_weight = (left.mT @ right).unflatten(0, (-1, parts)).sum(1)
        return grad @ weight if for_x else None, into_weight, grad.sum(1) if for_bias else None

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass


def num_parts(rows: int, positions: int) -> int:
    """Return into how many equal parts, a power of two, the positions of a row are divided."""
    parts = 1
    while parts * rows < PROGRAMS and positions % (2 * parts) == 0 and positions // (2 * parts) >= PART:
        parts *= 2
    return parts
