"""Captured programs without a GPU, and what functions must not do that are captured."""

from types import SimpleNamespace

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from esper.tolaria.capture import Program, Programs


class Replayed(Program):
    """A program that calls its function on the static inputs, and overwrites its outputs at every replay."""

    def __init__(self, function, inputs) -> None:
        leaves, spec = tree_flatten(inputs)
        self.static = [x.clone() if isinstance(x, Tensor) else x for x in leaves]
        self.run = lambda: function(*tree_unflatten(self.static, spec))
        self.graph, self.outputs = SimpleNamespace(replay=self.replay), None

    def replay(self) -> None:
        made = self.run()
        if self.outputs is None:
            self.outputs = made
            return
        for static, x in zip(tree_flatten(self.outputs)[0], tree_flatten(made)[0], strict=True):
            if isinstance(x, Tensor):
                static.copy_(x)


class Replays(Programs):
    """A cache of such programs."""

    def _record(self, name, function, inputs, warm_up, kinds) -> Replayed:
        return Replayed(function, inputs)


class OnOneDevice(TorchDispatchMode):
    """Finds tensors that are made on another device, or of Python's numbers."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        made = function(*arguments, **(options or {}))
        assert all(x.device.type == self.device for x in tree_leaves(made) if isinstance(x, Tensor)), function
        assert function is not torch.ops.aten.lift_fresh.default, "torch.tensor copies numbers to the device"
        assert function is not torch.ops.aten._local_scalar_dense.default, "reading a number waits for the device"
        return made
