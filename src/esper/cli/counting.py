"""Count the operations of a function: how many, the bytes they read and write, and the FLOPs of matrix products."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from esper.kasmina.kernels.rows import GPU

ALLOCATIONS = ("empty", "new_empty", "empty_like", "empty_strided", "detach", "_unsafe_view", "alias", "lift_fresh")
"""Operations that move no data."""
FlopFormula = Callable[[tuple[Any, ...], Any], int]
"""Returns the FLOPs of a kernel, from what it is given and what it returns."""


def _convolved(stream: Tensor, weight: Tensor) -> int:
    """Every position of the stream meets all weights of its row, (R, *kernel, C, O)."""
    return 2 * stream[..., 0].numel() * weight[0].numel()


def _attended(qkv: Tensor, products: int) -> int:
    """Every position of an example meets all others in each product, whatever is masked."""
    examples, length, channels = qkv.shape
    return products * 2 * examples * length**2 * (channels // 3)


FLOPS: dict[str, FlopFormula] = {
    "conv": lambda given, out: _convolved(out, given[1]),
    "conv_for_input": lambda given, out: _convolved(given[0], given[1]),
    "conv_for_weight": lambda given, out: _convolved(given[0], given[2]),
    "attention": lambda given, out: _attended(given[0], products=2),
    "attention_backward": lambda given, out: _attended(given[1], products=5),
}
"""Triton kernels that multiply matrices."""
KERNELS = (
    *FLOPS,
    *("depthwise", "depthwise_for_input", "depthwise_for_weight", "delta", "delta_backward", "norm", "norm_backward"),
    *("norm_pool", "norm_pool_backward", "layer_norm", "layer_norm_backward", "pool", "pool_backward"),
    *("add_rows", "gather_rows"),
)


aten = torch.ops.aten
FUSED = {
    aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda grad, q, k, v, *_, **__: sdpa_backward_flop_count(grad, q, k, v)
    ),
}
"""FLOPs of fused attention on CPUs, which torch's counter leaves out."""


class Count(NamedTuple):
    """Operations, the bytes that they read and write, and the FLOPs of their matrix products."""

    operations: int
    bytes: int
    flops: int


class Counter(TorchDispatchMode):
    """A mode that counts operations that move data, and their bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.operations, self.bytes, self.flops = 0, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view and func.overloadpacket.__name__ not in ALLOCATIONS:
            self.add((args, kwargs), out)
        return out

    def add(self, inputs: Any, outputs: Any) -> None:
        self.operations += 1
        self.bytes += sum(touched(x) for x in tree_leaves((inputs, outputs)) if isinstance(x, Tensor))


def counted(run: Callable[[], object]) -> Count:
    """Run a function once, and return what it did.

    Triton kernels count by their inputs and outputs, those that multiply matrices with their FLOPs. A recorded CUDA
    program hides its operations: run the function that was recorded.
    """
    counter = Counter()
    with FlopCounterMode(display=False, custom_mapping=FUSED) as products, counter, _watched_kernels(counter):
        run()
    return Count(counter.operations, counter.bytes, products.get_total_flops() + counter.flops)


def touched(x: Tensor) -> int:
    """Return the bytes of a tensor, where those that it shares with itself count once."""
    sizes = [size for size, stride in zip(x.shape, x.stride(), strict=True) if stride or not size]
    return torch.Size(sizes).numel() * x.element_size()


@contextmanager
def _watched_kernels(counter: Counter) -> Iterator[None]:
    """Count the launches of Triton kernels, which torch does not dispatch."""
    if not GPU:
        yield
        return
    from esper.kasmina.kernels import gpu

    own = {name: getattr(gpu, name) for name in KERNELS}
    for name, kernel in own.items():
        setattr(gpu, name, watched(kernel, counter, FLOPS.get(name)))
    try:
        yield
    finally:
        for name, kernel in own.items():
            setattr(gpu, name, kernel)


def watched(kernel: Callable[..., Any], counter: Counter, flops: FlopFormula | None) -> Callable[..., Any]:
    """Return a kernel that tells a counter what it reads, writes and multiplies."""

    def run(*inputs: Any) -> Any:
        out = kernel(*inputs)
        counter.add(inputs, out)
        counter.flops += 0 if flops is None else flops(inputs, out)
        return out

    return run
