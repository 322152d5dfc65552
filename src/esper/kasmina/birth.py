"""Initial weights from keys: the same for a host whether it is born alone or among a thousand."""

from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor, nn

from esper.kasmina.layers import Layer
from esper.leyline.rng import isolated, key, uniform

Stacked = dict[str, Tensor]


def newborn(build: Callable[[], nn.Module], keys: Int[Tensor, " N"]) -> Stacked:
    """The parameters of one module for each key, stacked.

    Esper's own layers draw theirs for all keys at once. A module of anyone else's draws from torch's generator in its
    constructor, so `build` is called once for each key under a generator seeded with it.
    """
    with isolated(0):
        template = build()
    own = [_owner(template, name) for name, _ in template.named_parameters()]
    if not all(isinstance(layer, Layer) for layer in own):
        return _constructed(build, keys)
    stacked = {}
    for (name, parameter), layer in zip(template.named_parameters(), own, strict=True):
        assert isinstance(layer, Layer)
        bound = layer.bounds.get(name.rpartition(".")[2])
        if bound is None:
            stacked[name] = parameter.detach().to(keys.device).expand(len(keys), *parameter.shape).clone()
        else:
            draws = uniform(key(keys, name), parameter.numel())
            stacked[name] = ((2 * draws - 1) * bound).to(parameter.dtype).unflatten(-1, parameter.shape)
    return stacked


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
    stacked = newborn(build, rng_key[None])
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(stacked[name][0])
