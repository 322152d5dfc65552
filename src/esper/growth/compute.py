"""Count the floating-point operations of a training step on the real model, without running it."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode

from esper.leyline.errors import EsperError

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of a model's forward pass, with `TensorSpec` in place of tensors."""

MOST_SHAPES = 16
"""Different input shapes that are counted exactly; others are estimated from the number of their elements."""


class TensorSpec:
    """What the cost of a call depends on: an input without its memory, which belongs to the user."""

    def __init__(self, x: Tensor) -> None:
        self.shape, self.stride, self.dtype, self.device = tuple(x.shape), x.stride(), x.dtype, x.device

    def fake(self) -> Tensor:
        """Return a tensor of this kind, to be called in a `FakeTensorMode`."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)


def as_call(example: Any) -> Call:
    """Return an example as positional and keyword arguments."""
    if isinstance(example, dict):
        return remembered((), example)
    return remembered(tuple(example) if isinstance(example, tuple | list) else (example,), {})


def remembered(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Describe the arguments of a call."""
    if not kwargs and all(isinstance(x, Tensor) for x in args):  # the common case, without walking through a tree
        return tuple(TensorSpec(x) for x in args), {}
    return tree_map(lambda x: TensorSpec(x) if isinstance(x, Tensor) else x, (args, kwargs))


def signature(call: Call) -> tuple[Any, ...]:
    """Return the shapes of the tensors of a call."""
    return tuple(x.shape if isinstance(x, TensorSpec) else None for x in tree_leaves(call))


@contextmanager
def fake_tensors(model: nn.Module, mode: FakeTensorMode) -> Iterator[list[Tensor]]:
    """Replace the parameters and buffers of a model by fake ones, which share what they shared; yield those."""
    made: dict[int, Tensor] = {}
    kept: list[tuple[dict[str, Any], str, Tensor]] = []
    for module in model.modules():
        for store in (module._parameters, module._buffers):
            for name, tensor in store.items():
                if tensor is not None:
                    kept.append((store, name, tensor))
                    if id(tensor) not in made:
                        made[id(tensor)] = mode.from_tensor(tensor.detach()).requires_grad_(tensor.requires_grad)
    try:
        for store, name, tensor in kept:
            store[name] = made[id(tensor)]
        with torch.compiler.set_stance("force_eager"):  # compiled kernels would read memory that fake tensors lack
            yield list(made.values())
    finally:
        for store, name, tensor in kept:
            store[name] = tensor


def fake_call(call: Call) -> Call:
    """Return a call with fake tensors, in a `FakeTensorMode`."""
    return tree_map(lambda x: x.fake() if isinstance(x, TensorSpec) else x, call)


@contextmanager
def kept_modes(model: nn.Module) -> Iterator[None]:
    """Give every module its own mode back after the block: a user may have frozen some with `eval()`."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def step_flops(model: nn.Module, call: Call) -> int:
    """Count forward and backward pass of one call in training mode.

    Attention is counted as its matrix products, on every device alike.
    """
    with (
        kept_modes(model),
        FakeTensorMode(allow_non_fake_inputs=True) as mode,
        torch.enable_grad(),
        fake_tensors(model, mode) as own,
    ):
        model.train()
        args, kwargs = fake_call(call)
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            output = model(*args, **kwargs)
            outputs = [x for x in tree_leaves(_plain(output)) if isinstance(x, Tensor) and x.requires_grad]
            if outputs:
                loss = torch.stack([x.float().sum() for x in outputs]).sum()
                torch.autograd.grad(loss, [x for x in own if x.requires_grad], allow_unused=True)
        return counter.get_total_flops()


def _plain(output: Any) -> Any:
    """Turn outputs of `transformers` (ordered dictionaries with attributes) into plain values."""
    return list(output.values()) if hasattr(output, "values") and not isinstance(output, Tensor) else output


class Meter:
    """Counts the operations of every optimizer step, from the inputs that the model is called with in training."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.calls: list[Call] = []
        """Training calls since the last optimizer step; several with gradient accumulation."""
        self.step_cost = 0
        self.is_eager = False
        """Whether the latest step was heard: a compiled model is not."""
        self._evaluations: list[Call] | None = None
        self._last: tuple[Call, int] | None = None
        self._costs: dict[tuple[Any, ...], int] = {}

    @property
    def example(self) -> Call:
        """The latest call."""
        assert self._last is not None
        return self._last[0]

    def listen(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note a call of the model; a forward pre-hook."""
        if torch.compiler.is_compiling():
            return
        if module.training and torch.is_grad_enabled():
            if not any(isinstance(x, FakeTensor) for x in tree_leaves((args, kwargs))):  # a count, not a training step
                self.calls.append(remembered(args, kwargs))
        elif self._evaluations is not None:
            self._evaluations.append(remembered(args, kwargs))

    def set(self, call: Call) -> None:
        """Take one call of this kind as an optimizer step."""
        self._last, self.step_cost = (call, 1), self._cost(call)

    def charge(self) -> int:
        """Return the operations of the optimizer step that has just been made.

        Raises:
            EsperError: If the model has never been called in training mode.
        """
        calls, self.calls = self.calls, []
        self.is_eager = bool(calls)
        if calls:
            self._last, self.step_cost = (calls[-1], len(calls)), sum(map(self._cost, calls))
        if not self.step_cost:
            raise EsperError("the model was not called in training mode before step: pass example= to grow")
        return self.step_cost

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Note the evaluation passes in the block, to be charged."""
        self._evaluations = []
        yield

    def charge_evaluation(self) -> int:
        """Return the operations of the evaluation that was noted; a forward pass is a third of a training pass."""
        calls, self._evaluations = self._evaluations or [], None
        return sum(map(self._cost, calls)) // 3

    def recount(self) -> None:
        """Count a step again after the structure has changed."""
        self._costs = {}
        if self._last is not None:
            call, times = self._last
            self.step_cost = times * self._cost(call)

    def _cost(self, call: Call) -> int:
        shapes = signature(call)
        if shapes not in self._costs:
            self._costs[shapes] = self._estimate(shapes) or step_flops(self.model, call)
        return self._costs[shapes]

    def _estimate(self, shapes: tuple[Any, ...]) -> int | None:
        """Scale the cost of known inputs by the number of elements once there are many different shapes."""
        if len(self._costs) < MOST_SHAPES:
            return None

        def elements(of: tuple[Any, ...]) -> int:
            return max(sum(math.prod(shape) for shape in of if shape is not None), 1)

        nearest = min(self._costs, key=lambda other: abs(elements(other) - elements(shapes)))
        return round(self._costs[nearest] * elements(shapes) / elements(nearest))
