"""Count the floating-point operations of hosts and seeds with torch's counter, which counts matrix products.

Everything is counted for one example, on the modules themselves: a training pass, a forward pass, and the passes of a
*side row*, which starts at the slot of a seed from a detached stream and trains that seed alone, or measures it.
"""

from dataclasses import replace
from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from esper.kasmina.gates import LifecycleConfig
from esper.kasmina.hosts import build_host, host_kind
from esper.kasmina.lifecycle import incubating, speaking
from esper.kasmina.slots import build_seed
from esper.leyline.actions import Graft
from esper.leyline.errors import EsperError
from esper.leyline.specs import HostSpec, SlotSpec, Stream
from esper.leyline.state import NO_BLUEPRINT, SlotState


class PassCost(NamedTuple):
    """FLOPs of one module for one example."""

    forward: int
    """A forward pass."""
    train: int
    """A forward and a backward pass, to its weights and to its input."""
    alone: int
    """A forward and a backward pass to its weights only: its input is detached, or is data."""
    through: int
    """A forward and a backward pass to its input only: its weights are detached."""


class SeedCost(NamedTuple):
    """FLOPs of the seed in every slot of every host for one example; 0 without a seed."""

    forward: Int[Tensor, "N S"]
    train: Int[Tensor, "N S"]
    alone: Int[Tensor, "N S"]
    through: Int[Tensor, "N S"]


class CostTable(NamedTuple):
    """FLOPs of a host and of all its possible seeds for one example, on one device."""

    host: PassCost
    rest_forward: Int[Tensor, " S"]
    """Forward pass of the segments behind each slot."""
    rest_through: Int[Tensor, " S"]
    """A forward pass of these segments, and a backward pass to the slot."""
    seeds: Int[Tensor, "P S K G"]
    """`PassCost` of every seed, by slot, blueprint and graft."""


class EpochCost(NamedTuple):
    """FLOPs of every host."""

    step: Int[Tensor, " N"]
    """Training on one example, silent lessons included."""
    lessons: Int[Tensor, " N"]
    """The silent lessons alone."""
    validation: Int[Tensor, " N"]
    """A plain forward pass of one example."""
    counterfactuals: Int[Tensor, " N"]
    """The passes of one example that measure the contribution of each seed."""


@cache
def host_cost(spec: HostSpec) -> PassCost:
    """Count the passes of a bare host. Its input is data: `train` equals `alone`."""
    tokens = host_kind(spec.kind).stream is Stream.TOKENS
    cost = _counted(build_host(spec), torch.zeros(1, *spec.inputs, dtype=torch.long if tokens else None))
    return cost._replace(train=cost.alone)


def seed_cost(slot: SlotSpec, blueprint: str, graft: Graft) -> PassCost:
    """Count the passes of a seed. One that cannot be built in the slot is never planted, and costs nothing."""
    return _seed_cost(replace(slot, name=""), blueprint, graft)  # slots of one shape share what has been counted


@cache
def _seed_cost(slot: SlotSpec, blueprint: str, graft: Graft) -> PassCost:
    try:
        seed = build_seed(slot, blueprint, graft)
    except EsperError:
        return PassCost(0, 0, 0, 0)
    return _counted(seed, torch.zeros(1, *slot.shape))


@cache
def _rest_cost(spec: HostSpec, segment: int) -> PassCost:
    """Count the passes of the bare segments behind one of them."""
    host = build_host(spec)
    rest = nn.Sequential(*host.segments[segment + 1 :])
    return _counted(rest, torch.zeros(1, *host.slot_specs[segment * spec.slots].shape))


def cost_table(spec: HostSpec, device: torch.device) -> CostTable:
    """Count everything that hosts of a spec can do."""
    host = build_host(spec)
    slots, space = host.slot_specs, host.space
    rests = [_rest_cost(spec, s // spec.slots) for s in range(len(slots))]
    seeds = [[[seed_cost(slot, name, graft) for graft in Graft] for name in space.blueprints] for slot in slots]
    return CostTable(
        host_cost(spec),
        torch.tensor([rest.forward for rest in rests], device=device),
        torch.tensor([rest.through for rest in rests], device=device),
        torch.tensor(seeds, device=device).movedim(-1, 0),
    )


def epoch_cost(table: CostTable, state: SlotState, lifecycle: LifecycleConfig = LifecycleConfig()) -> EpochCost:
    """Return what every host costs in its present state, for one example."""
    slot = torch.arange(state.stage.shape[1], device=state.stage.device)
    held = state.blueprint != NO_BLUEPRINT
    own = table.seeds[:, slot, state.blueprint.clamp(min=0), state.graft] * held  # P N S
    seeds, loud, silent = SeedCost(*own), speaking(state), incubating(state)
    lessons = seeds.alone + table.rest_through + _later(seeds.through, loud)
    switched = table.rest_forward + _later(seeds.forward, loud) + seeds.forward * ~loud
    taught = (lessons * silent).sum(1)
    return EpochCost(
        step=table.host.train + (seeds.train * loud).sum(1) + taught,
        lessons=taught,
        validation=table.host.forward + (seeds.forward * loud).sum(1),
        counterfactuals=(switched * lifecycle.measured(state)).sum(1),
    )


def _later(cost: Int[Tensor, "N S"], loud: Bool[Tensor, "N S"]) -> Int[Tensor, "N S"]:
    """Return the cost of the audible seeds behind each slot."""
    heard = cost * loud
    return heard.flip(1).cumsum(1).flip(1) - heard


def _counted(module: nn.Module, x: Tensor) -> PassCost:
    """Count the passes of a module on one example."""
    is_data = not x.is_floating_point()
    return PassCost(
        forward=_passes(module, x),
        train=_passes(module, x, to_weights=True, to_input=not is_data),
        alone=_passes(module, x, to_weights=True),
        through=_passes(module, x, to_input=not is_data),
    )


def _passes(module: nn.Module, x: Tensor, to_weights: bool = False, to_input: bool = False) -> int:
    """Count a forward pass, and a backward pass to the weights and to the input, if they are wanted."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    module.requires_grad_(to_weights)
    x, is_trained = x.clone().requires_grad_(to_input), to_weights or to_input
    plain = sdpa_kernel(SDPBackend.MATH)  # attention counts as its products on every device alike
    with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(is_trained), plain:
        out = module(x)
        if is_trained:
            out.sum().backward()
    return counter.get_total_flops()
