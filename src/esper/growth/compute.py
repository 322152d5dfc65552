"""Count the floating-point operations of a training step on the real model, without running it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of a model's forward pass."""


def signature(call: Call) -> tuple[Any, ...]:
    """Return what the cost of a call depends on: the shapes of its tensors."""
    return tuple(tuple(x.shape) if isinstance(x, Tensor) else None for x in tree_leaves(call))


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


def fake_call(call: Call, mode: FakeTensorMode) -> Call:
    """Return a call with fake tensors in place of real ones."""
    return tree_map(lambda x: mode.from_tensor(x.detach()) if isinstance(x, Tensor) else x, call)


def step_flops(model: nn.Module, call: Call) -> int:
    """Count forward and backward pass of one call in training mode.

    Attention is counted as its matrix products, on every device alike.
    """
    training = model.training
    model.train()
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.enable_grad(), fake_tensors(model, mode) as own:
            args, kwargs = fake_call(call, mode)
            with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
                output = model(*args, **kwargs)
                outputs = [x for x in tree_leaves(_plain(output)) if isinstance(x, Tensor) and x.requires_grad]
                if outputs:
                    loss = torch.stack([x.float().sum() for x in outputs]).sum()
                    torch.autograd.grad(loss, [x for x in own if x.requires_grad], allow_unused=True)
            return counter.get_total_flops()
    finally:
        model.train(training)


def _plain(output: Any) -> Any:
    """Turn outputs of `transformers` (ordered dictionaries with attributes) into plain values."""
    return list(output.values()) if hasattr(output, "values") and not isinstance(output, Tensor) else output
