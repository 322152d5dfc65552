"""Estimate the memory of a training step, and split batches so that it fits a budget."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from esper.leyline.errors import EsperError
from esper.tolaria.assignment import Kind
from esper.tolaria.config import Engine
from esper.tolaria.network import Network

TRAINING = 4.0
"""Peak bytes of a training step per byte that autograd saves, measured on a GPU."""
MEASURING = 2.0
"""Peak bytes of an evaluation step per byte that autograd would save."""
STREAMS = 6
"""Copies of its stream that a seed needs besides what autograd saves of it."""
COPIES = 6
"""Copies of the parameters in memory for any batch: parameters, two moments, gradients, and two for temporaries. A
`governor.snapshot` would take three more."""


class MemoryEstimator:
    """An estimate of a network's memory from what autograd saves for one example."""

    def __init__(self, network: Network, engine: Engine, dtype: torch.dtype, inputs: tuple[int, ...]) -> None:
        self.network, self.budget, self.dtype = network, engine.memory_budget, engine.compute
        example = torch.zeros(2, *inputs, dtype=dtype if dtype == torch.long else torch.float32)
        self.host = self.scaled(kept_bytes(network.trunk.template, example)) if self.budget else 0
        self.seeds: dict[Kind, int] = {}

    def chunks(self, num_hosts: int, batch: int, seeds: Mapping[Kind, int], beside: int, training: bool = True) -> int:
        """Return the smallest number of parts that a batch must be split into to stay within the budget.

        Raises:
            EsperError: If not even one example at a time fits.
        """
        if self.budget is None:
            return 1
        state, example = self.needs(num_hosts, seeds, beside, training)
        left = self.budget - state
        if left < example:
            fit = int(num_hosts * self.budget / (state + example))
            raise EsperError(
                f"{num_hosts} hosts need {_readable(state + example)} even with one example of the batch of {batch}"
                f" at a time, but memory_budget is {_readable(self.budget)}; raise it or use fewer hosts:"
                f" about {fit} hosts would fit"
            )
        return min(batch, -int(-batch * example // left))

    def needs(self, num_hosts: int, seeds: Mapping[Kind, int], beside: int, training: bool) -> tuple[float, float]:
        """Return the bytes that do not depend on the batch, and the bytes per example."""
        rows = (num_hosts + beside) * self.host + sum(n * self.seed(kind) for kind, n in seeds.items())
        state = COPIES * sum(stack.whole["flat"].nbytes for stack in self.network.stacks.values())
        return state, rows * (TRAINING if training else MEASURING)

    def scaled(self, size: int) -> int:
        """Convert bytes in fp32 to bytes in the precision of activations."""
        return size * self.dtype.itemsize // torch.float32.itemsize

    def seed(self, kind: Kind) -> int:
        """Return the bytes that one seed of a kind needs for one example."""
        if kind not in self.seeds:
            slot = self.network.slots[kind.slot]
            template = self.network.known[kind].stack.template
            assert isinstance(template.f, nn.Module)
            x = torch.zeros(2, *slot.shape)
            self.seeds[kind] = self.scaled(kept_bytes(template.f, x) + STREAMS * x[0].nbytes)
        return self.seeds[kind]


def kept_bytes(module: nn.Module, x: Tensor) -> int:
    """Return the bytes that autograd saves for the backward pass of one example, in fp32 and without weights."""
    like = next(module.parameters())
    sizes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        sizes[tensor.data_ptr()] = max(sizes.get(tensor.data_ptr(), 0), tensor.nbytes)
        return tensor

    def measure(examples: Tensor) -> int:
        sizes.clear()
        examples = examples.to(like.device, like.dtype) if examples.is_floating_point() else examples.to(like.device)
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            module(examples.requires_grad_() if examples.is_floating_point() else examples)
        return sum(sizes.values()) * torch.float32.itemsize // like.dtype.itemsize

    return measure(x) - measure(x[:1])


def _readable(size: float) -> str:
    return f"{size / 2**30:.1f} GB" if size >= 2**30 else f"{size / 2**20:.1f} MB"
