"""Who runs where during one epoch: the seeds of each slot, by kind, and the rows that run beside the hosts.

A plan is made on the CPU between two decisions. Counts are padded, so that one captured program serves many plans.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esper.leyline.actions import Graft


class Kind(NamedTuple):
    """What the seeds of a bucket have in common."""

    slot: int
    blueprint: str
    graft: Graft


Padding = Callable[[Kind, str, int], int]
"""How many rows to run for so many real ones of a kind."""


class Rows(NamedTuple):
    """Padded row numbers: where `real` is false, the number points at row 0 and nothing comes of it."""

    rows: Int[Tensor, " M"]
    real: Bool[Tensor, " M"]


class BucketPlan(NamedTuple):
    """The seeds of one kind in this epoch."""

    kind: Kind
    hosts: Int[Tensor, " R"]
    """The host of each seed; free rows point at host 0."""
    alpha: Float[Tensor, " R"]
    target: Float[Tensor, " R"]
    speaks: Bool[Tensor, " R"]
    learns: Bool[Tensor, " R"]
    lr: Float[Tensor, " R"]
    all_speak: bool
    """Nobody here is silent, so no gradient needs to be kept from the hosts."""
    spawns: Rows
    """The seeds from which a row beside their host starts here."""
    echoes: Rows
    """The rows beside the hosts, from earlier slots, whose host has a speaking seed here..."""
    echo_seeds: Int[Tensor, " E"]
    """...and that seed's row in the bucket."""


class Plan(NamedTuple):
    """One epoch's buckets, slot by slot, and the rows beside the hosts in the order in which they start."""

    slots: tuple[tuple[BucketPlan, ...], ...]
    beside: Rows
    """The host of each row beside."""
    beside_slot: Int[Tensor, " M"]
    beside_speaks: Bool[Tensor, " M"]
    """Whether the seed that the row is about speaks in its host."""


class Seeds(NamedTuple):
    """The seeds of one kind, as the CPU knows them; -1 is a free row."""

    hosts: np.ndarray
    alpha: np.ndarray
    target: np.ndarray
    silent: np.ndarray
    """Learning beside the host, unheard."""
    lr: np.ndarray


def exact(kind: Kind, what: str, count: int) -> int:
    """As many rows as needed, but not one: a single row takes another path through bmm, with other bits."""
    return max(count, 2) if count else 0


class Roomy:
    """Room that only ever grows, in powers of two, so that births and deaths rarely change a shape."""

    def __init__(self, least: int) -> None:
        self.least = least
        self.rooms: dict[tuple[Kind, str], int] = {}

    def __call__(self, kind: Kind, what: str, count: int) -> int:
        needed = max(count, self.least, 2)
        room = max(self.rooms.get((kind, what), 0), power_of_two(needed))
        self.rooms[kind, what] = room
        return room


def power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()


def make_plan(
    buckets: Mapping[Kind, Seeds], num_slots: int, measuring: bool, padding: Padding, device: torch.device
) -> Plan:
    """In training a row starts beside the host for each silent seed; in measuring, for every seed."""
    hosts, real, slots, speaks = (np.zeros(0, dtype) for dtype in (np.int64, bool, np.int64, bool))
    plans = []
    for s in range(num_slots):
        here, before = [], len(hosts)
        for kind, seeds in ((k, b) for k, b in buckets.items() if k.slot == s):
            living = seeds.hosts >= 0
            loud = living & (seeds.alpha > 0)
            starting = np.flatnonzero(living if measuring else seeds.silent)
            room = len(seeds.hosts) if measuring else padding(kind, "spawns", len(starting))
            spawns, is_real = _padded(starting, room)
            seed_of = np.full(max(seeds.hosts.max(initial=0), hosts.max(initial=0)) + 1, -1)
            seed_of[seeds.hosts[loud]] = np.flatnonzero(loud)
            echoing = np.flatnonzero(real[:before] & (seed_of[hosts[:before]] >= 0))
            room = padding(kind, f"echoes {measuring}", len(echoing)) if before else 0
            echoes, echo_real = _padded(echoing, room)
            tensors = (np.where(living, seeds.hosts, 0), seeds.alpha, seeds.target, loud, loud | seeds.silent, seeds.lr)
            here.append(
                BucketPlan(
                    kind,
                    *(_to(x, device) for x in tensors),
                    all_speak=bool((loud | ~living).all()) and padding is exact,
                    spawns=Rows(_to(spawns, device), _to(is_real, device)),
                    echoes=Rows(_to(echoes, device), _to(echo_real, device)),
                    echo_seeds=_to(np.where(echo_real, seed_of[hosts[echoes]] if len(hosts) else echoes, 0), device),
                )
            )
            hosts = np.concatenate([hosts, np.where(is_real, seeds.hosts[spawns], 0)])
            real = np.concatenate([real, is_real])
            slots = np.concatenate([slots, np.full(len(spawns), s)])
            speaks = np.concatenate([speaks, loud[spawns] & is_real])
        plans.append(tuple(here))
    beside = Rows(_to(hosts, device), _to(real, device))
    return Plan(tuple(plans), beside, _to(slots, device), _to(speaks, device))


def _padded(index: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    whole = np.zeros(size, dtype=np.int64)
    whole[: len(index)] = index
    return whole, np.arange(size) < len(index)


def _to(array: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
