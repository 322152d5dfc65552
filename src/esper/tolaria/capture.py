"""Programs recorded once and replayed: CUDA graphs, one for each shape of a plan, the least used forgotten first."""

import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten


class Program:
    """A function of tensors as a CUDA graph. It reads static copies of its inputs and returns static outputs."""

    def __init__(self, function: Callable[..., Any], inputs: Any) -> None:
        leaves, spec = tree_flatten(inputs)
        self.static = [x.clone() if isinstance(x, Tensor) else x for x in leaves]
        arguments = tree_unflatten(self.static, spec)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.outputs = function(*arguments)

    def __call__(self, inputs: Any) -> Any:
        for static, x in zip(self.static, tree_flatten(inputs)[0], strict=True):
            if isinstance(x, Tensor):
                static.copy_(x)
        self.graph.replay()
        return self.outputs


class Programs:
    """The programs recorded so far, by the shapes and constants of their inputs.

    A whole step is recorded when its shape comes up a second time. Until then its pieces, the modules it is made of,
    are replayed: in a fleet where seeds come and go, shapes of steps rarely repeat, but those of pieces soon do.
    """

    def __init__(self, limit: int = 16) -> None:
        self.limit, self.hits, self.misses = limit, 0, 0
        self.recorded: OrderedDict[Hashable, Program] = OrderedDict()
        self.small: dict[Hashable, Program] = {}
        self.pieces: dict[Hashable, Callable[..., Tensor]] = {}
        self.seen: OrderedDict[Hashable, None] = OrderedDict()
        self.usable = True

    def piece(self, at: Hashable, function: Callable[..., Tensor], flat: Tensor, x: Tensor) -> Callable[..., Tensor]:
        """A function of parameters and inputs, its forward and backward recorded for these shapes."""
        if not self.usable:
            return function
        at = (at, flat.shape, x.shape, x.dtype)
        if at not in self.pieces:
            sample = (torch.zeros_like(flat).requires_grad_(), torch.zeros_like(x))
            sample[1].requires_grad_(x.is_floating_point())
            with torch.enable_grad():
                recorded: Any = torch.cuda.make_graphed_callables(function, sample, num_warmup_iters=1)
                self.pieces[at] = recorded
        return self.pieces[at]

    def find(
        self, name: Hashable, function: Callable[..., Any], inputs: Any, warm_up: Callable[[], Any]
    ) -> Program | None:
        """The program for a whole step of these shapes, recorded now if it comes up a second time.

        `warm_up` runs the function once without leaving a trace, as CUDA wants before a recording.
        """
        at = _signature(name, inputs)
        if at in self.recorded:
            self.hits += 1
            self.recorded.move_to_end(at)
            return self.recorded[at]
        self.misses += 1
        if at not in self.seen:
            self.seen[at] = None
            if len(self.seen) > 4 * self.limit:
                self.seen.popitem(last=False)
            return None
        program = self._record(function, inputs, warm_up)
        if program is not None:
            self.recorded[at] = program
            if len(self.recorded) > self.limit:
                self.recorded.popitem(last=False)
        return program

    def find_small(
        self, at: Hashable, function: Callable[..., Any], inputs: Any, warm_up: Callable[[], Any]
    ) -> Program | None:
        """The program for a piece of a step without gradients, recorded when it is first met."""
        if at not in self.small:
            program = self._record(function, inputs, warm_up)
            if program is None:
                return None
            self.small[at] = program
        return self.small[at]

    def _record(self, function: Callable[..., Any], inputs: Any, warm_up: Callable[[], Any]) -> Program | None:
        if not self.usable:
            return None
        try:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                warm_up()
            torch.cuda.current_stream().wait_stream(stream)
            return Program(function, inputs)
        except RuntimeError as error:
            self.usable = False
            warnings.warn(f"training without CUDA graphs, which could not be recorded: {error}", stacklevel=2)
            return None


def _signature(name: Hashable, inputs: Any) -> Hashable:
    leaves, spec = tree_flatten(inputs)
    constants = tuple((x.shape, x.dtype) if isinstance(x, Tensor) else x for x in leaves)
    return name, str(spec), constants
