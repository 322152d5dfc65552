"""Stack many copies of one module: a row of one flat tensor holds all parameters of a copy.

Adding, removing, copying and restoring a copy are then row operations, and an optimizer step is a handful of kernels.
"""

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd import Function

from esper.kasmina.birth import Nursery
from esper.kasmina.kernels.rows import dense, usable
from esper.kasmina.layers import Params
from esper.leyline.rng import isolated

ALIGNMENT = 16
"""Every parameter starts at a multiple of this many elements, so that a row's results do not depend on its index."""


class Layout:
    """The offset and shape of each parameter of a module within a flat row."""

    def __init__(self, template: nn.Module) -> None:
        shapes = {name: p.shape for name, p in template.named_parameters()}
        self.shapes = shapes
        self.sizes = [-(-shape.numel() // ALIGNMENT) * ALIGNMENT for shape in shapes.values()]
        self.offsets = [0, *accumulate(self.sizes)]
        self.width = self.offsets[-1]
        self.num_parameters = sum(shape.numel() for shape in shapes.values())

    def views(self, flat: Float[Tensor, "R P"]) -> Params:
        """Return the parameters of all rows, stacked, as views."""
        pieces = flat.split(self.sizes, dim=1)
        return {
            name: piece[:, : shape.numel()].unflatten(1, shape)
            for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        }

    def unpack(self, flat: Float[Tensor, "R P"]) -> Params:
        """Return the parameters of all rows, stacked, with a backward pass that makes one flat gradient."""
        return dict(zip(self.shapes, _Unpack.apply(flat, self), strict=True))  # pyright: ignore

    def flatten(self, params: Params) -> Float[Tensor, "R P"]:
        """Return stacked parameters as flat rows."""
        rows = len(next(iter(params.values())))
        flat = next(iter(params.values())).new_zeros(rows, self.width)
        for name, view in self.views(flat).items():
            view.copy_(params[name])
        return flat


class _Unpack(Function):
    """Views with a cheaper backward pass: autograd would pad each parameter's gradient with zeros, then add them."""

    @staticmethod
    def forward(ctx: Any, flat: Tensor, layout: Layout) -> tuple[Tensor, ...]:  # pyright: ignore
        ctx.layout = layout
        ctx.set_materialize_grads(False)
        return tuple(layout.views(flat).values())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None]:
        known = next(g for g in grads if g is not None)
        padding = known.new_zeros(len(known), max(ctx.layout.sizes) if any(g is None for g in grads) else ALIGNMENT)
        pieces = []
        for grad, shape, size in zip(grads, ctx.layout.shapes.values(), ctx.layout.sizes, strict=True):
            filled = 0 if grad is None else shape.numel()
            pieces += [] if grad is None else [grad.flatten(1)]
            pieces += [padding[:, : size - filled]] if size > filled else []
        return torch.cat(pieces, 1), None


class Stack:
    """Copies of one module as rows: parameters, optimizer moments and step counts.

    Memory is reserved for `room` rows, so that the stack can grow without moving.
    """

    def __init__(
        self, build: Callable[[], nn.Module], rows: int, device: torch.device, dtype: torch.dtype, room: int = 0
    ) -> None:
        with isolated(0):
            self.template = build().to(device, dtype)
        self.nursery = Nursery(self.template, build, device)
        self.layout = Layout(self.template)
        self.rows = rows
        self.whole = {
            name: torch.zeros(max(rows, room), self.layout.width, device=device, dtype=dtype)
            for name in ("flat", "first", "second")
        }
        self.whole["steps"] = torch.zeros(max(rows, room), device=device, dtype=torch.float64)
        self.gradient_norms = torch.zeros(max(rows, room), device=device, dtype=dtype)

    def __len__(self) -> int:
        return self.rows

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Parameters, moments and step counts of all rows."""
        return {name: tensor[: self.rows] for name, tensor in self.whole.items()}

    @property
    def flat(self) -> Float[Tensor, "R P"]:
        """Parameters of all rows."""
        return self.whole["flat"][: self.rows]

    @property
    def norms(self) -> Float[Tensor, " R"]:
        """Sum of each row's gradient norms over steps."""
        return self.gradient_norms[: self.rows]

    def bear(self, rows: Int[Tensor, " R"], keys: Int[Tensor, " R"]) -> None:
        """Fill rows with the initial weights that belong to their random keys."""
        self.fill(rows, self.nursery.bear(keys))

    def fill(self, rows: Int[Tensor, " R"], params: Params) -> None:
        """Set the weights of rows, and clear their moments and step counts."""
        self.clear(rows)
        self.flat.index_copy_(0, rows, self.layout.flatten(params).to(self.flat))

    def copy(self, rows: Int[Tensor, " R"], source: "Stack", source_rows: Int[Tensor, " R"], block: str) -> None:
        """Give rows the weights, moments and step counts of a block of another stack.

        Args:
            rows: Rows of this stack, whose parameters named `f.` are those of the block. All others become zero.
            source: Stack to copy from.
            source_rows: Its row for each of the rows.
            block: What the block's parameters are named there, in front of their names in the block.
        """
        self.clear(rows)
        for part in ("flat", "first", "second"):
            theirs, ours = source.layout.views(source.tensors[part]), self.layout.views(self.tensors[part])
            for name in (name for name in theirs if name.startswith(block)):
                ours[f"f.{name.removeprefix(block)}"].index_copy_(0, rows, theirs[name][source_rows])
        self.whole["steps"].index_copy_(0, rows, source.tensors["steps"][source_rows])

    def clear(self, rows: Int[Tensor, " R"]) -> None:
        """Set the parameters, moments and step counts of rows to zero."""
        for tensor in self.tensors.values():
            tensor.index_fill_(0, rows, 0)

    def resize(self, keep: Int[Tensor, " R"], rows: int) -> None:
        """Change the number of rows and move the rows to keep to the front, in place if there is room."""
        for name, tensor in self.whole.items():
            kept = tensor[keep]
            target = tensor if rows <= len(tensor) else tensor.new_zeros(rows, *tensor.shape[1:])
            target.zero_()
            target[: len(keep)] = kept
            self.whole[name] = target
        if rows > len(self.gradient_norms):
            self.gradient_norms = self.gradient_norms.new_zeros(rows)
        self.rows = rows


def squares(gradient: Float[Tensor, "N ..."]) -> Float[Tensor, " N"]:
    """Return the squared norm of each row, summed in fp32 at least."""
    if usable(gradient):
        from esper.tolaria import gpu

        return gpu.squares(dense(gradient).flatten(1))
    dtype = torch.promote_types(gradient.dtype, torch.float32)
    return torch.linalg.vector_norm(gradient.flatten(1), dim=1, dtype=dtype).square()


def by_row(judge: Callable[[Tensor, Tensor], Tensor], out: Tensor, y: Tensor) -> Float[Tensor, " R"]:
    """Sum a per-example function over the examples of each row."""
    return judge(out.flatten(0, 1), y.flatten(0, 1)).unflatten(0, out.shape[:2]).sum(1)
