"""Draw initial weights from keys, so that they do not depend on the size of a fleet."""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from esper.kasmina.kernels import draw
from esper.kasmina.layers import Layer
from esper.leyline.rng import code, isolated

Stacked = dict[str, Tensor]


class Nursery:
    """A source of initial parameters for copies of a module, one copy for each key.

    The parameters of Esper's own layers are drawn for all keys at once. Other modules draw from torch's generator in
    their constructor, so `build` is called once for each key, with the generators seeded by it.
    """

    def __init__(self, template: nn.Module, build: Callable[[], nn.Module], device: torch.device) -> None:
        self.build = build
        owners = {name: template.get_submodule(name.rpartition(".")[0]) for name, _ in template.named_parameters()}
        self.ours = all(isinstance(layer, Layer) for layer in owners.values())
        bounds = {
            name: layer.bounds[short]
            for name, layer in owners.items()
            if isinstance(layer, Layer) and (short := name.rpartition(".")[2]) in layer.bounds
        }
        parameters = {name: p.detach().to(device) for name, p in template.named_parameters()}
        self.fixed = {name: p for name, p in parameters.items() if name not in bounds}
        self.shapes = {name: parameters[name].shape for name in bounds}
        sizes = [shape.numel() for shape in self.shapes.values()]
        owner = np.repeat(np.arange(len(sizes)), sizes)
        index = np.concatenate([np.arange(size) for size in sizes] or [np.zeros(0, np.int64)])
        names = np.array([code(name) for name in bounds], dtype=np.int64)[owner]
        bound = np.array(list(bounds.values()), dtype=np.float64)[owner] if sizes else np.zeros(0)
        self.names, self.index, self.bound = (torch.from_numpy(x).to(device) for x in (names, index, bound))

    def bear(self, keys: Int[Tensor, " N"]) -> Stacked:
        """Return the stacked parameters of one copy of the module for each key."""
        if not self.ours:
            return _constructed(self.build, keys)
        weights = draw(keys, self.names, self.index, self.bound)
        pieces = weights.split([shape.numel() for shape in self.shapes.values()], dim=1)
        drawn = zip(self.shapes.items(), pieces, strict=True)
        fixed = {name: p.expand(len(keys), *p.shape) for name, p in self.fixed.items()}
        return fixed | {name: piece.unflatten(1, shape) for (name, shape), piece in drawn}


def _constructed(build: Callable[[], nn.Module], keys: Int[Tensor, " N"]) -> Stacked:
    rows = []
    for rng_seed in keys.tolist():
        with isolated(rng_seed % (1 << 63)):
            rows.append({name: p.detach() for name, p in build().named_parameters()})
    return {name: torch.stack([row[name] for row in rows]).to(keys.device) for name in rows[0]}


def load_newborn(module: nn.Module, build: Callable[[], nn.Module], rng_key: Int[Tensor, ""]) -> None:
    """Set the parameters of a module to those drawn from a key."""
    stacked = Nursery(module, build, rng_key.device).bear(rng_key[None])
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(stacked[name][0])
