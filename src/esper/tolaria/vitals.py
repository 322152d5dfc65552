"""Judge the hosts of a fleet after an epoch: which hosts and seeds are healthy, and what seeds contribute."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from esper.kasmina.lifecycle import incubating, speaking
from esper.leyline.state import NO_BLUEPRINT, Vitals
from esper.tolaria.transfer import upload

if TYPE_CHECKING:
    from esper.tolaria.fleet import Fleet
    from esper.tolaria.measuring import Measured
    from esper.tolaria.training import Norms


def examined(fleet: "Fleet", train_loss: Tensor, norms: "Norms", pulls: Tensor, measured: "Measured") -> Vitals:
    """Return the vitals after an epoch: which hosts and seeds are healthy, and what seeds contribute."""
    sane = train_loss.isfinite() & measured.loss.isfinite() & norms[None].isfinite()
    sane &= fleet.trunk.flat.isfinite().all(1)
    healthy = torch.ones(fleet.num_hosts, len(fleet.slots), dtype=torch.bool, device=fleet.device)
    share = torch.full_like(fleet.state.alpha, torch.nan)
    learning = incubating(fleet.state) | speaking(fleet.state)
    if fleet.buckets:
        counts = [len(bucket.hosts) for bucket in fleet.buckets.values()]
        hosts = np.concatenate([bucket.hosts for bucket in fleet.buckets.values()])
        slots, rows = np.repeat([kind.slot for kind in fleet.buckets], counts), np.flatnonzero(hosts >= 0)
        row, host, slot = upload(np.stack([rows, hosts[rows], slots[rows]]), fleet.device)
        finite = torch.cat([bucket.stack.flat.isfinite().all(1) for bucket in fleet.buckets.values()])[row]
        norm = torch.cat([norms[kind] for kind in fleet.buckets])[row]
        share[host, slot] = (norm / norms[None][host]).to(share.dtype)
        healthy[host, slot] = finite & (~learning[host, slot] | ((norm > 0) & norm.isfinite()))
    held = fleet.state.blueprint != NO_BLUEPRINT
    before = fleet.vitals.contribution.where(held, torch.nan)  # where it is not measured, the last one stands
    contribution = torch.where(fleet.due, measured.contribution, before)
    return Vitals(sane, healthy, contribution, share, pulls.to(share.dtype))
