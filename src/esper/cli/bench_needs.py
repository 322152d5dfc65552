"""Count what the phases of a decision must compute and move, whatever runs them: the ground of a roofline.

FLOPs are those of the matrix products, as budgets count them. Bytes are those of weights, gradients and moments, each
read or written once where the phase needs it, and of what autograd keeps of the streams, written once and read once.
"""

from typing import NamedTuple

import torch

from esper.kasmina.cost import epoch_cost
from esper.kasmina.hosts import build_host, host_kind
from esper.kasmina.lifecycle import incubating, speaking
from esper.kasmina.slots import build_seed
from esper.leyline.actions import Graft
from esper.leyline.specs import Stream
from esper.tolaria import Fleet
from esper.tolaria.memory import kept_bytes
from esper.tolaria.setting import parameters_of_seeds

TOUCHED = {"train step": 9, "lessons": 9, "evaluate": 1, "contributions": 1}
"""Times that each weight's bytes move: weight twice read and once written, gradient and moments read and written."""


class Need(NamedTuple):
    """FLOPs and bytes that a phase cannot do without."""

    flops: int
    bytes: int


def needs(fleet: Fleet) -> dict[str, Need]:
    """Return the needs of one step of training, its lessons, an evaluation, and its measurements of contributions."""
    cost, batch, examples = epoch_cost(fleet.costs, fleet.state), fleet.config.batch_size, len(fleet.validation_data.x)
    due = fleet.lifecycle.measured(fleet.state)
    flops = {
        "train step": batch * (cost.step - cost.lessons).sum(),
        "lessons": batch * cost.lessons.sum(),
        "evaluate": examples * cost.validation.sum(),
        "contributions": examples * cost.counterfactuals.sum(),
    }
    loud, silent = speaking(fleet.state), incubating(fleet.state)
    kept, weights, behind = _seeds_kept(fleet), parameters_of_seeds(fleet.seed_sizes, fleet.state), _kept_behind(fleet)
    host = int(behind[0]) * fleet.num_hosts
    later = kept * loud
    side = behind[1:] + later.flip(1).cumsum(1).flip(1) - later + kept  # what one side row keeps of each example
    streams = {
        "train step": batch * (host + int((kept * loud).sum())),
        "lessons": batch * int((side * silent).sum()),
        "evaluate": examples * (host + int((kept * loud).sum())),
        "contributions": examples * int((side * due).sum()),
    }
    trunk, size = fleet.trunk.flat.nbytes, fleet.trunk.flat.element_size()
    own = {
        "train step": trunk + size * int((weights * loud).sum()),
        "lessons": size * int((weights * silent).sum()),
        "evaluate": trunk + size * int((weights * loud).sum()),
        "contributions": size * int((weights * due).sum()),
    }
    scale = fleet.engine.compute.itemsize / 4
    return {
        name: Need(int(flops[name]), round(2 * scale * streams[name]) + TOUCHED[name] * own[name]) for name in flops
    }


def _seeds_kept(fleet: Fleet) -> torch.Tensor:
    """Return the bytes of one example that autograd keeps of each slot's seed, (N, S), in fp32."""
    kept = torch.zeros_like(fleet.state.blueprint)
    for kind in fleet.buckets:
        slot = fleet.slots[kind.slot]
        size = kept_bytes(build_seed(slot, kind.blueprint, Graft.ADD).f, torch.zeros(2, *slot.shape))
        here = fleet.state.blueprint[:, kind.slot] == fleet.space.blueprints.index(kind.blueprint)
        kept[:, kind.slot] += here * size
    return kept


def _kept_behind(fleet: Fleet) -> torch.Tensor:
    """Return the bytes of one example that autograd keeps of the whole host, and of the segments behind each slot."""
    host = build_host(fleet.spec)
    dtype = torch.long if host_kind(fleet.spec.kind).stream is Stream.TOKENS else torch.float32
    x, sizes = torch.zeros(2, *fleet.spec.inputs, dtype=dtype), []
    for segment in host.segments:
        sizes.append(kept_bytes(segment, x))
        with torch.no_grad():
            x = segment(x)
    rest = [sum(sizes[n:]) for n in range(len(sizes))]
    slots = [rest[s // fleet.spec.slots + 1] for s in range(len(fleet.slots))]
    return torch.tensor([rest[0], *slots], device=fleet.device)
