"""Copy a model's weights, structure and optimizer in memory, and go back to them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from esper.growth.chains import Chain
from esper.growth.optimizers import copied
from esper.growth.twins import arrange


@dataclass(eq=False)
class Snapshot:
    """A model and its optimizer at one moment. Takes as many bytes as the parameters and their optimizer state."""

    blocks: list[list[nn.Module]]
    tensors: list[tuple[Tensor, Tensor]]
    """Parameters and buffers, each with its value."""
    groups: list[dict[str, Any]]
    state: dict[Tensor, dict[str, Any]]

    @classmethod
    @torch.no_grad()
    def take(cls, model: nn.Module, chains: list[Chain], optimizer: Optimizer) -> "Snapshot":
        """Copy everything, on the device where it is."""
        tensors = [(tensor, tensor.detach().clone()) for tensor in (*model.parameters(), *model.buffers())]
        groups = [group | {"params": list(group["params"])} for group in optimizer.param_groups]
        state = {p: {name: copied(x) for name, x in values.items()} for p, values in optimizer.state.items()}
        return cls([list(chain.blocks) for chain in chains], tensors, groups, state)

    @torch.no_grad()
    def restore(self, chains: list[Chain], optimizer: Optimizer, *, rates: bool = False) -> None:
        """Put structure, weights and optimizer state back. Learning rates stay as they are unless asked for."""
        for chain, blocks in zip(chains, self.blocks, strict=True):
            if [id(b) for b in chain.blocks] != [id(b) for b in blocks]:
                arrange(chain, blocks)
        for tensor, value in self.tensors:
            tensor.copy_(value)
        for group, then in zip(optimizer.param_groups, self.groups, strict=True):
            group["params"][:] = then["params"]
            if rates:
                group.update({name: value for name, value in then.items() if name != "params"})
        optimizer.state.clear()
        for parameter, values in self.state.items():
            optimizer.state[parameter] = {name: copied(x) for name, x in values.items()}
