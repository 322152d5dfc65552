"""Take a host out of a fleet, as a model of its own."""

from typing import TYPE_CHECKING

import numpy as np
import torch

from esper.kasmina.host import Host
from esper.kasmina.hosts import build_host
from esper.kasmina.slots import build_seed
from esper.leyline.actions import Graft

if TYPE_CHECKING:
    from esper.tolaria.fleet import Fleet


@torch.no_grad()
def taken_out(fleet: "Fleet", n: int) -> Host:
    """Return a copy of host `n` with its weights, seeds, grafts and alphas."""
    host = build_host(fleet.spec).to(fleet.device, fleet.engine.dtype)
    for name, stacked in fleet.trunk.layout.views(fleet.trunk.flat).items():
        host.get_parameter(name).copy_(stacked[n])
    for kind, bucket in fleet.buckets.items():
        for row in np.flatnonzero(bucket.hosts == n):
            graft = Graft(int(fleet.state.graft[n, kind.slot]))
            seed = build_seed(fleet.slots[kind.slot], kind.blueprint, graft).to(fleet.device, fleet.engine.dtype)
            stacked = bucket.stack.layout.views(bucket.stack.flat)
            for name, p in seed.named_parameters():
                p.copy_(stacked[name][row])
            host.slot(kind.slot).plant(seed)
    for s in range(len(fleet.slots)):
        host.slot(s).alpha = fleet.state.alpha[n, s]
    return host
