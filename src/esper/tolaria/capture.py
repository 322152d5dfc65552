"""Capture functions as CUDA graphs, one for each set of input shapes, and replay them."""

import gc
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from esper.kasmina.kernels import compiling


class Program:
    """A function captured as a CUDA graph. It reads static copies of its inputs and returns static outputs."""

    def __init__(self, function: Callable[..., Any], inputs: Any, pool: Any) -> None:
        leaves, spec = tree_flatten(inputs)
        self.static = [x.clone() if isinstance(x, Tensor) else x for x in leaves]
        arguments = tree_unflatten(self.static, spec)
        self.graph = torch.cuda.CUDAGraph()
        with without_collection(), torch.cuda.graph(self.graph, pool=pool):
            self.outputs = function(*arguments)

    def load(self, inputs: Any) -> None:
        """Copy the inputs to where the graph reads them, with one kernel for each dtype."""
        copies: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for static, x in zip(self.static, tree_flatten(inputs)[0], strict=True):
            if isinstance(x, Tensor):
                into, out_of = copies.setdefault(x.dtype, ([], []))
                into.append(static)
                out_of.append(x)
        for into, out_of in copies.values():
            torch._foreach_copy_(into, out_of)  # pyright: ignore[reportPrivateImportUsage]

    def __call__(self, inputs: Any) -> Any:
        self.load(inputs)
        self.graph.replay()
        return self.outputs


@contextmanager
def without_collection() -> Iterator[None]:
    """Keep the garbage collector from freeing memory of fleets that are gone: CUDA ends a capture at that."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Programs:
    """A bounded cache of captured programs, by the shapes and constants of their inputs."""

    def __init__(self, limit: int = 64) -> None:
        self.limit, self.hits, self.misses = limit, 0, 0
        self.recorded: OrderedDict[Hashable, Program] = OrderedDict()
        self.pool: Any = None
        self.failed: set[str] = set()
        """Names of the functions that cannot be captured."""
        self.compiled: set[Hashable] = set()

    def find(
        self, name: str, function: Callable[..., Any], inputs: Any, warm_up: Callable[[], Any], kinds: Hashable
    ) -> Program | None:
        """Return the program for inputs of these shapes, captured if it is new; None if capturing fails.

        A function that fails runs without graphs from then on, with one warning; others keep theirs.

        Args:
            name: Name of the function, part of the cache key.
            function: Function to capture.
            inputs: Its arguments.
            warm_up: Runs the function once without side effects, as CUDA requires before a capture.
            kinds: Kinds of modules that the function runs. Kernels are compiled when a combination first occurs; other
                shapes need no new ones.
        """
        if name in self.failed:
            return None
        at = _signature(name, inputs)
        if at in self.recorded:
            self.hits += 1
            self.recorded.move_to_end(at)
            return self.recorded[at]
        self.misses += 1
        try:
            program = self._record(name, function, inputs, warm_up, kinds)
        except (RuntimeError, AssertionError) as error:
            self.failed.add(name)
            warnings.warn(
                f"going on without a CUDA graph of {name!r}, because capturing it failed: {error}", stacklevel=2
            )
            return None
        self.recorded[at] = program
        if len(self.recorded) > self.limit:
            self.recorded.popitem(last=False)
        return program

    def _record(
        self, name: str, function: Callable[..., Any], inputs: Any, warm_up: Callable[[], Any], kinds: Hashable
    ) -> Program:
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        if (name, kinds) in self.compiled:
            with suppress(RuntimeError):  # a kernel is missing after all: capture again, after a warm-up
                return Program(function, inputs, self.pool)
        with compiling():
            warm_up()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            warm_up()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.empty_cache()  # a program allocates from a pool of its own, not from the warm-up's memory
        self.compiled.add((name, kinds))
        return Program(function, inputs, self.pool)


def _signature(name: str, inputs: Any) -> Hashable:
    leaves, spec = tree_flatten(inputs)
    return name, str(spec), tuple((x.shape, x.dtype) if isinstance(x, Tensor) else x for x in leaves)
