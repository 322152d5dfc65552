"""Initial weights from keys: the same for a host whether it is born alone or among a thousand."""

from collections.abc import Callable
from zlib import crc32

import torch
from jaxtyping import Int
from torch import Tensor, nn

from esper.kasmina.layers import Layer
from esper.leyline.rng import isolated, key, uniform_at

Stacked = dict[str, Tensor]


def newborn(template: nn.Module, build: Callable[[], nn.Module], keys: Int[Tensor, " N"]) -> Stacked:
    """The parameters of one module for each key, stacked; `template` is one as built.

    Esper's own layers draw theirs for all keys at once. A module of anyone else's draws from torch's generator in its
    constructor, so `build` is called once for each key under a generator seeded with it.
    """
    owners = {name: _owner(template, name) for name, _ in template.named_parameters()}
    if not all(isinstance(layer, Layer) for layer in owners.values()):
        return _constructed(build, keys)
    bounds = {
        name: layer.bounds[short]
        for name, layer in owners.items()
        if isinstance(layer, Layer) and (short := name.rpartition(".")[2]) in layer.bounds
    }
    shapes = {name: p.shape for name, p in template.named_parameters()}
    drawn = _drawn({name: (shapes[name], bound) for name, bound in bounds.items()}, keys)
    return {
        name: drawn[name] if name in drawn else p.detach().to(keys.device).expand(len(keys), *p.shape)
        for name, p in template.named_parameters()
    }


def _drawn(parameters: dict[str, tuple[torch.Size, float]], keys: Int[Tensor, " N"]) -> Stacked:
    """Uniform within ±bound, in single precision: the i-th number of the sequence that key and name stand for."""
    sizes = [shape.numel() for shape, _ in parameters.values()]
    if not sizes:
        return {}
    names = torch.tensor([crc32(name.encode()) for name in parameters])
    owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    index = torch.cat([torch.arange(size) for size in sizes])
    bound = torch.tensor([bound for _, bound in parameters.values()], dtype=torch.float64)[owner]
    names, owner, index, bound = (x.to(keys.device) for x in (names, owner, index, bound))
    draws = uniform_at(key(keys[:, None], names)[:, owner], index)
    pieces = ((2 * draws - 1) * bound).float().split(sizes, dim=1)
    return {
        name: piece.unflatten(1, shape) for (name, (shape, _)), piece in zip(parameters.items(), pieces, strict=True)
    }


def _owner(module: nn.Module, parameter: str) -> nn.Module:
    return module.get_submodule(parameter.rpartition(".")[0])


def _constructed(build: Callable[[], nn.Module], keys: Int[Tensor, " N"]) -> Stacked:
    rows = []
    for rng_seed in keys.tolist():
        with isolated(rng_seed % (1 << 63)):
            rows.append({name: p.detach() for name, p in build().named_parameters()})
    return {name: torch.stack([row[name] for row in rows]).to(keys.device) for name in rows[0]}


def load_newborn(module: nn.Module, build: Callable[[], nn.Module], rng_key: Int[Tensor, ""]) -> None:
    """Give one module the weights that its key stands for."""
    stacked = newborn(module, build, rng_key[None])
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(stacked[name][0])
