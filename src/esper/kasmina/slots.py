"""Define the seed, and the slot that holds at most one."""

from collections.abc import Mapping
from typing import Any

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
    """A small module that maps the stream of its host to a delta of equal shape."""

    def __init__(self, slot: SlotSpec, blueprint_name: str, graft: Graft) -> None:
        super().__init__()
        self.blueprint, self.graft = blueprint_name, graft
        self.f = blueprint(blueprint_name, slot.stream).build(slot)
        self.g = Linear(slot.channels, 1) if graft is Graft.GATE else None

    def forward(self, host: Tensor) -> Tensor:
        return delta(self.graft, host, self.f(host), None if self.g is None else self.g(host))


class AnySeed(nn.Module):
    """The parameters of a seed of any graft, as fleets stack them; there the graft is data."""

    def __init__(self, slot: SlotSpec, blueprint_name: str) -> None:
        super().__init__()
        self.f = blueprint(blueprint_name, slot.stream).build(slot)
        self.g = Linear(slot.channels, 1)


def build_seed(slot: SlotSpec, blueprint_name: str, graft: Graft, rng_key: Int[Tensor, ""] | None = None) -> Seed:
    """Build a seed for a slot, with weights drawn from a key. The global random generators are left unchanged."""
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
        raise EsperError(f"{body} changes the shape of the stream to {tuple(shape[1:])}")
    if rng_key is not None:
        load_newborn(seed, lambda: Seed(slot, blueprint_name, graft), rng_key)
    return seed


class Slot(nn.Module):
    """An injection point of a host, which holds at most one seed.

    Without a seed, or with one at alpha 0, the stream passes through unchanged and the seed is not run.
    """

    def __init__(self, spec: SlotSpec) -> None:
        super().__init__()
        self.spec = spec
        self.seed: Seed | None = None
        self.alpha = 0.0

    @property
    def alpha(self) -> float:
        """The weight of the seed's delta, from 0 to 1, in single precision.

        It is a Python number, so that `torch.export` can leave silent seeds out; `state_dict` holds it as a tensor.
        """
        return self._alpha

    @alpha.setter
    def alpha(self, alpha: float | Tensor) -> None:
        self._alpha = torch.tensor(float(alpha), dtype=torch.float32).item()

    def forward(self, stream: Tensor, alpha: float | Tensor | None = None) -> Tensor:
        """Return the stream plus the seed's delta, weighted by `alpha` or, if that is None, by the slot's own."""
        alpha = self.alpha if alpha is None else alpha
        if self.seed is None:
            return stream
        if isinstance(alpha, Tensor) and torch.compiler.is_exporting():
            # The value is unknown while a graph is traced. Selecting keeps even a NaN of a silent seed out.
            return torch.where(alpha == 0, stream, blend(stream, self.seed(stream), alpha))
        if alpha == 0:
            return stream
        return blend(stream, self.seed(stream), alpha)

    def plant(self, seed: Seed) -> None:
        """Put a seed into the empty slot, at alpha 0."""
        if self.seed is not None:
            raise EsperError(f"slot {self.spec.name!r} already holds a seed: call uproot() before plant()")
        self.seed = seed
        self.alpha = 0.0

    def uproot(self) -> None:
        """Remove the seed and set alpha to 0."""
        self.seed = None
        self.alpha = 0.0

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}alpha"] = torch.tensor(self.alpha, dtype=torch.float32)

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        others = {name: tensor for name, tensor in state_dict.items() if name != f"{prefix}alpha"}
        if len(others) < len(state_dict):
            self.alpha = state_dict[f"{prefix}alpha"]
        elif strict:
            missing_keys.append(f"{prefix}alpha")
        super()._load_from_state_dict(others, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
