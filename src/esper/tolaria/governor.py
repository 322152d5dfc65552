"""Detect failed hosts by their own history, and restore hosts from a snapshot.

`FleetEnv` uses only `judge`: it keeps the signals of the last good epoch and replaces a failed host. `snapshot` and
`restore` are for training that rolls back and continues.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from esper.leyline.errors import EsperError
from esper.leyline.state import SlotState, Vitals
from esper.tolaria.assignment import Kind
from esper.tolaria.fleet import Fleet
from esper.tolaria.measuring import Measured


@dataclass(frozen=True, kw_only=True)
class GovernorConfig:
    """The thresholds at which a host counts as failed, relative to its own best results.

    A host with a loss or weights that are not finite always counts as failed.

    Raises:
        EsperError: If a threshold is out of range; the message names the field.

    Example:
        >>> EnvConfig(governor=GovernorConfig(divergence=3.0))
    """

    divergence: float = 2.0
    """A host has diverged when its training loss exceeds this factor times its lowest, and also its first."""
    collapse: float = 0.25
    """A host has collapsed when its score's lead over chance falls below this share of its best lead."""
    lead: float = 0.1
    """Smallest best lead over chance from which a host can collapse."""

    def __post_init__(self) -> None:
        if not self.divergence > 1:
            raise EsperError(f"divergence must be above 1, not {self.divergence}")
        for name, value in (("collapse", self.collapse), ("lead", self.lead)):
            if not 0 < value < 1:
                raise EsperError(f"{name} must lie strictly between 0 and 1, not {value}")


class HealthHistory(NamedTuple):
    """The first training loss, lowest training loss and best score of every host in its episode."""

    first_loss: Float[Tensor, " N"]
    best_loss: Float[Tensor, " N"]
    best_score: Float[Tensor, " N"]


class Snapshot(NamedTuple):
    """A copy of all hosts of a fleet: slots, vitals, weights, moments and step counts."""

    state: SlotState
    vitals: Vitals
    measured: Measured
    trunk: dict[str, Tensor]
    buckets: dict[Kind, tuple[np.ndarray, dict[str, Tensor]]]
    """Host of each row, and the rows themselves."""


def empty_health(fleet: Fleet) -> HealthHistory:
    """Return the history of hosts without any results."""
    inf = torch.full((fleet.num_hosts,), torch.inf, device=fleet.device, dtype=torch.float64)
    return HealthHistory(inf, inf, -inf)


def judge(
    history: HealthHistory,
    sane: Bool[Tensor, " N"],
    train_loss: Tensor,
    score: Tensor,
    chance: float,
    config: GovernorConfig,
) -> tuple[Bool[Tensor, " N"], HealthHistory]:
    """Return a mask of the hosts that have failed, and the history with the results of all others."""
    loss, score = train_loss.double(), score.double()
    first = torch.where(history.first_loss.isinf(), loss, history.first_loss)
    diverged = (loss > config.divergence * history.best_loss) & (loss > first)
    led = history.best_score - chance
    collapsed = (led >= config.lead) & (score - chance < config.collapse * led)
    sick = ~sane | diverged | collapsed
    seen = HealthHistory(first, torch.minimum(history.best_loss, loss), torch.maximum(history.best_score, score))
    return sick, HealthHistory(*(torch.where(sick, old, new) for old, new in zip(history, seen, strict=True)))


def snapshot(fleet: Fleet, measured: Measured) -> Snapshot:
    """Return a copy of all hosts on the fleet's device, failed ones included.

    It takes as much memory as the fleet's parameters and moments. Take it after an epoch in which `judge` found no
    failed host.
    """

    def copy(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in tensors.items()}

    buckets = {kind: (bucket.hosts.copy(), copy(bucket.stack.tensors)) for kind, bucket in fleet.buckets.items()}
    return Snapshot(fleet.state, fleet.vitals, measured, copy(fleet.trunk.tensors), buckets)


def restore(fleet: Fleet, sick: Bool[Tensor, " N"], then: Snapshot) -> None:
    """Restore the hosts in a mask from a snapshot: weights, moments, step counts, slots and vitals.

    All other hosts stay bit-identical.
    """

    def pick(old: Tensor, now: Tensor) -> Tensor:
        return torch.where(sick.view(-1, *[1] * (now.ndim - 1)), old, now)

    fleet.tend(SlotState(*(pick(old, now) for old, now in zip(then.state, fleet.state, strict=True))))
    fleet.vitals = Vitals(*(pick(old, now) for old, now in zip(then.vitals, fleet.vitals, strict=True)))
    for name, tensor in fleet.trunk.tensors.items():
        tensor.copy_(pick(then.trunk[name], tensor))
    chosen = np.flatnonzero(sick.cpu().numpy())
    for kind, (hosts, rows) in then.buckets.items():
        _, old, _ = np.intersect1d(hosts, chosen, return_indices=True)
        if len(old):
            places = {int(host): row for row, host in enumerate(fleet.buckets[kind].hosts)}
            now = torch.tensor([places[int(hosts[row])] for row in old], device=fleet.device)
            for name, tensor in fleet.buckets[kind].stack.tensors.items():
                tensor[now] = rows[name][torch.from_numpy(old).to(fleet.device)]
