"""Assign seeds to rows for one epoch: the seeds of each slot by kind, and the side rows.

A side row is a copy of a host's forward pass from one slot on, with the seed there switched on or off: it trains a
silent seed, or measures the contribution of any seed. Assignments are made on the CPU between two decisions.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esper.tolaria.padding import SHARES, Padding


class Kind(NamedTuple):
    """The slot and blueprint that all seeds of a bucket share."""

    slot: int
    blueprint: str


class Rows(NamedTuple):
    """Padded row indices: where `real` is false, the index is 0 and the result is ignored."""

    rows: Int[Tensor, " M"]
    real: Bool[Tensor, " M"]


class BucketAssignment(NamedTuple):
    """The seeds of one kind in one epoch."""

    kind: Kind
    num_seeds: int
    num_echoes: int
    """Side rows that pass through seeds of this kind."""
    learns: Bool[Tensor, " R"]
    lr: Float[Tensor, " R"]
    echo_seeds: Int[Tensor, " E"]
    """The seed that each of those side rows passes through."""


class SlotAssignment(NamedTuple):
    """All seeds of one slot in one epoch, ordered by bucket."""

    buckets: tuple[BucketAssignment, ...]
    hosts: Int[Tensor, " R"]
    """The host of each seed; free rows point at host 0."""
    graft: Int[Tensor, " R"]
    alpha: Float[Tensor, " R"]
    target: Float[Tensor, " R"]
    speaks: Bool[Tensor, " R"]
    spawns: Rows
    """Seeds at which a side row starts."""
    echoes: Rows
    """Side rows from earlier slots whose host has an audible seed in this slot, ordered by bucket."""
    echo_graft: Int[Tensor, " E"]
    echo_alpha: Float[Tensor, " E"]


class Known(NamedTuple):
    """The state of all slots, (N, S), copied to the CPU between two decisions."""

    graft: np.ndarray
    alpha: np.ndarray
    target: np.ndarray
    silent: np.ndarray
    lr: np.ndarray
    loud: np.ndarray
    due: np.ndarray
    """Whether contributions are measured in the coming epoch."""


class Assignment(NamedTuple):
    """The seeds of one epoch by slot, and the side rows in the order in which they start."""

    slots: tuple[SlotAssignment, ...]
    beside: Rows
    """Host of each side row."""
    beside_slot: Int[Tensor, " M"]
    beside_speaks: Bool[Tensor, " M"]
    """Whether the seed at which a side row starts is audible in its host."""


class Wanted(NamedTuple):
    """What an assignment is made for."""

    known: Known
    """Slots as copied to the CPU. Seeds that are `silent` there are taught."""
    starts: np.ndarray
    """Whether a side row starts at the seed in each slot, (N, S)."""
    measuring: bool
    """Whether side rows measure contributions; otherwise they teach silent seeds."""
    padding: Padding


def assign(hosts: Mapping[Kind, np.ndarray], wanted: Wanted) -> Assignment:
    """Assign all seeds to rows, given the host of each row of every bucket, where -1 marks a free row."""
    beside = np.zeros((0, 4), np.int64)  # host, whether real, slot, whether the seed is audible
    slots = []
    for s in range(wanted.known.alpha.shape[1]):
        slot, new = _assign_slot({kind: at for kind, at in hosts.items() if kind.slot == s}, s, wanted, beside)
        slots.append(slot)
        beside = np.concatenate([beside, new])
    rows = Rows(_tensor(beside[:, 0]), _tensor(beside[:, 1] > 0))
    return Assignment(tuple(slots), rows, _tensor(beside[:, 2]), _tensor(beside[:, 3] > 0))


def _assign_slot(
    here: Mapping[Kind, np.ndarray], s: int, wanted: Wanted, beside: np.ndarray
) -> tuple[SlotAssignment, np.ndarray]:
    """Assign the seeds of one slot; return them and the side rows that start there."""
    known, starts, measuring, padding = wanted
    hosts = np.concatenate([np.zeros(0, np.int64), *here.values()])
    living, at = hosts >= 0, (hosts, s)
    graft, lr = known.graft[at].astype(np.int64), known.lr[at]
    alpha, target = (np.where(living, x[at], 0).astype(np.float32) for x in (known.alpha, known.target))
    loud, taught = living & (alpha > 0), living & (known.silent[at] > 0)
    starting, what = np.flatnonzero(living & (starts[at] > 0)), "counterfactuals" if measuring else "incubators"
    spawns, started = _padded(starting, padding((s, what), len(starting), SHARES[what]) if here else 0)
    buckets, echoes = _buckets(here, loud, (loud | taught, lr), wanted, beside)
    slot = SlotAssignment(
        buckets,
        *(_tensor(x) for x in (np.where(living, hosts, 0), graft, alpha, target, loud)),
        spawns=Rows(_tensor(spawns), _tensor(started)),
        echoes=Rows(_tensor(echoes[:, 0]), _tensor(echoes[:, 1] > 0)),
        echo_graft=_tensor(graft[echoes[:, 2]]),
        echo_alpha=_tensor(alpha[echoes[:, 2]]),
    )
    host, audible = (np.where(started, x[spawns], 0) if here else spawns for x in (hosts, loud))
    return slot, np.stack([host, started, np.full(len(spawns), s), audible], 1)


def _buckets(
    here: Mapping[Kind, np.ndarray],
    loud: np.ndarray,
    learning: tuple[np.ndarray, np.ndarray],
    wanted: Wanted,
    beside: np.ndarray,
) -> tuple[tuple[BucketAssignment, ...], np.ndarray]:
    """Return the buckets of a slot, and their side rows: (row, whether real, index of the seed within the slot)."""
    learns, lr = learning
    buckets, rows, before = [], [np.zeros((0, 3), np.int64)], 0
    for kind, hosts in here.items():
        own = slice(before, before + len(hosts))
        seed_of = np.full(max(hosts.max(initial=0), beside[:, 0].max(initial=0)) + 1, -1)
        seed_of[hosts[loud[own]]] = np.flatnonzero(loud[own])
        hearing = np.flatnonzero((beside[:, 1] > 0) & (seed_of[beside[:, 0]] >= 0))
        what = "measured echoes" if wanted.measuring else "echoes"
        room = wanted.padding((kind, what), len(hearing), SHARES[what]) if len(beside) else 0
        echoes, real = _padded(hearing, room)
        heard = np.where(real, seed_of[beside[echoes, 0]], 0) if room else echoes
        buckets.append(BucketAssignment(kind, len(hosts), room, _tensor(learns[own]), _tensor(lr[own]), _tensor(heard)))
        rows.append(np.stack([echoes, real, before + heard], 1))
        before += len(hosts)
    return tuple(buckets), np.concatenate(rows)


def _padded(index: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    whole = np.zeros(size, dtype=np.int64)
    whole[: len(index)] = index
    return whole, np.arange(size) < len(index)


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


def hosts_by_kind(assignment: Assignment) -> dict[Kind, Int[Tensor, " R"]]:
    """Return the host of each row of every bucket; free rows point at host 0."""
    found: dict[Kind, Tensor] = {}
    for slot in assignment.slots:
        parts = slot.hosts.split([b.num_seeds for b in slot.buckets]) if slot.buckets else ()
        found |= {b.kind: hosts for b, hosts in zip(slot.buckets, parts, strict=True)}
    return found


def rows_of(assignment: Assignment) -> tuple[dict[Kind, int], int]:
    """Return how many rows of seeds of each kind an assignment runs, and how many side rows."""
    return {b.kind: b.num_seeds + b.num_echoes for slot in assignment.slots for b in slot.buckets}, len(
        assignment.beside.rows
    )
