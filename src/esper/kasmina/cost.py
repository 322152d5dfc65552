"""Count the floating-point operations of hosts and seeds with torch's counter, which counts matrix products."""

from functools import cache

import torch
from torch import nn

from esper.kasmina.hosts import build_host, host_kind
from esper.kasmina.slots import build_seed
from esper.leyline.actions import Graft
from esper.leyline.specs import HostSpec, SlotSpec, Stream

BACKWARD = 2
"""FLOPs of a backward pass divided by those of a forward pass, approximately."""


@cache
def host_flops(spec: HostSpec) -> int:
    """Return the FLOPs of a forward pass of one example through a bare host."""
    dtype = torch.long if host_kind(spec.kind).stream is Stream.TOKENS else None
    return _forward_flops(build_host(spec), torch.zeros(1, *spec.inputs, dtype=dtype))


@cache
def seed_flops(slot: SlotSpec, blueprint: str, graft: Graft) -> int:
    """Return the FLOPs of a forward pass of one example through a seed."""
    return _forward_flops(build_seed(slot, blueprint, graft), torch.zeros(1, *slot.shape))


def _forward_flops(module: nn.Module, x: torch.Tensor) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(x)
    return counter.get_total_flops()
