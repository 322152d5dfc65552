"""Where seeds live: a seed, and the slot that holds at most one."""

import torch
from jaxtyping import Int
from torch import Tensor, nn

from esper.kasmina.birth import load_newborn
from esper.kasmina.blending import blend, delta
from esper.kasmina.blueprints import blueprint
from esper.kasmina.layers import Linear
from esper.leyline.actions import Graft
from esper.leyline.errors import EsperError
from esper.leyline.rng import isolated
from esper.leyline.specs import SlotSpec


class Seed(nn.Module):
    """A module that turns its host's stream into a delta of the same shape."""

    def __init__(self, slot: SlotSpec, blueprint_name: str, graft: Graft) -> None:
        super().__init__()
        self.blueprint, self.graft = blueprint_name, graft
        self.f = blueprint(blueprint_name, slot.stream).build(slot)
        self.g = Linear(slot.channels, 1) if graft is Graft.GATE else None

    def forward(self, host: Tensor) -> Tensor:
        return delta(self.graft, host, self.f(host), None if self.g is None else self.g(host))


class AnySeed(nn.Module):
    """The parameters of a seed whatever its graft: what stacks of seeds are made of, the graft being data there."""

    def __init__(self, slot: SlotSpec, blueprint_name: str) -> None:
        super().__init__()
        self.f = blueprint(blueprint_name, slot.stream).build(slot)
        self.g = Linear(slot.channels, 1)


def build_seed(slot: SlotSpec, blueprint_name: str, graft: Graft, rng_key: Int[Tensor, ""] | None = None) -> Seed:
    """A newborn seed, with the weights that its key stands for. The global random state is left alone."""
    body = f"blueprint {blueprint_name!r} in slot {slot.name!r} of shape {slot.shape}"
    x = torch.zeros(2, *slot.shape)
    try:
        with isolated(0), torch.no_grad():
            seed = Seed(slot, blueprint_name, graft)
            shape = seed.f(x).shape
    except EsperError:
        raise
    except Exception as error:
        raise EsperError(f"{body} fails: {error}") from error
    if shape != x.shape:
        raise EsperError(f"{body} changes the stream's shape to {tuple(shape[1:])}")
    if rng_key is not None:
        load_newborn(seed, lambda: Seed(slot, blueprint_name, graft), rng_key)
    return seed


class Slot(nn.Module):
    """A place for one seed. While none speaks, it hands the stream on untouched."""

    alpha: Tensor

    def __init__(self, spec: SlotSpec) -> None:
        super().__init__()
        self.spec = spec
        self.seed: Seed | None = None
        self.register_buffer("alpha", torch.zeros(()))

    def forward(self, stream: Tensor, alpha: Tensor | None = None) -> Tensor:
        """The stream with the seed at its alpha, or at the one given instead."""
        alpha = self.alpha if alpha is None else alpha
        if self.seed is None or alpha == 0:
            return stream
        return blend(stream, self.seed(stream), alpha)

    def plant(self, seed: Seed) -> None:
        if self.seed is not None:
            raise EsperError(f"slot {self.spec.name!r} holds a seed already; uproot it first")
        self.seed = seed
        self.alpha.zero_()

    def uproot(self) -> None:
        self.seed = None
        self.alpha.zero_()
