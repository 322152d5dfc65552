"""Who runs where during one epoch: the seeds of each slot, by kind, and the rows that run beside the hosts.

An assignment is made on the CPU between two decisions. Counts are padded, so that one
captured program serves many assignments.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten


class Kind(NamedTuple):
    """What the seeds of a bucket have in common."""

    slot: int
    blueprint: str


Padding = Callable[[Hashable, int, float], int]
"""How many rows to run for so many real ones of something, of which a share of the hosts is likely."""
SHARES = {"seeds": 1 / 8, "incubators": 3 / 8, "counterfactuals": 5 / 8, "echoes": 1 / 16, "measured echoes": 1 / 8}


class Rows(NamedTuple):
    """Padded row numbers: where `real` is false, the number points at row 0 and nothing comes of it."""

    rows: Int[Tensor, " M"]
    real: Bool[Tensor, " M"]


class BucketAssignment(NamedTuple):
    """The seeds of one kind in this epoch."""

    kind: Kind
    num_seeds: int
    num_echoes: int
    learns: Bool[Tensor, " R"]
    lr: Float[Tensor, " R"]
    echo_seeds: Int[Tensor, " E"]
    """The seeds that are heard by rows beside the hosts, too."""


class SlotAssignment(NamedTuple):
    """All seeds of one slot in this epoch, bucket after bucket."""

    buckets: tuple[BucketAssignment, ...]
    hosts: Int[Tensor, " R"]
    """The host of each seed; free rows point at host 0."""
    graft: Int[Tensor, " R"]
    alpha: Float[Tensor, " R"]
    target: Float[Tensor, " R"]
    speaks: Bool[Tensor, " R"]
    spawns: Rows
    """The seeds from which a row beside their host starts here."""
    echoes: Rows
    """The rows beside the hosts, from earlier slots, whose host has a speaking seed here, bucket after bucket."""
    echo_graft: Int[Tensor, " E"]
    echo_alpha: Float[Tensor, " E"]


class Assignment(NamedTuple):
    """One epoch's seeds, slot by slot, and the rows beside the hosts in the order in which they start."""

    slots: tuple[SlotAssignment, ...]
    beside: Rows
    """The host of each row beside."""
    beside_slot: Int[Tensor, " M"]
    beside_speaks: Bool[Tensor, " M"]
    """Whether the seed that the row is about speaks in its host."""


class Packed(NamedTuple):
    """An assignment as it travels to a device: all numbers of one type in one piece."""

    pieces: tuple[Tensor, ...]
    layout: "AssignmentLayout"


@dataclass(frozen=True)
class AssignmentLayout:
    """How to find the parts of an assignment again. Equal ones can run the same program."""

    spec: TreeSpec = field(compare=False, repr=False)
    num_buckets: tuple[int, ...]
    """Of each slot: together with the parts, all that the spec says."""
    parts: tuple[Any, ...]
    """Of each leaf its piece and its size; or what it is, if it is no tensor."""


class Seeds(NamedTuple):
    """The seeds of one kind, as the CPU knows them; -1 is a free row."""

    hosts: np.ndarray
    graft: np.ndarray
    alpha: np.ndarray
    target: np.ndarray
    silent: np.ndarray
    """Learning beside the host, unheard."""
    lr: np.ndarray


def exact(what: Hashable, count: int, share: float) -> int:
    """As many rows as needed, but not one: a single row takes another path through bmm, with other bits."""
    return max(count, 2) if count else 0


class Roomy:
    """Room to spare, so that births and deaths rarely change a shape. It grows when it must; now and then, and ever
    more rarely, what was by far too large since the last time is made smaller."""

    def __init__(self, num_hosts: int, epochs: int = 25) -> None:
        self.num_hosts, self.next_fit, self.age = num_hosts, epochs, 0
        self.rooms: dict[Hashable, int] = {}
        self.needed: dict[Hashable, int] = {}

    def __call__(self, what: Hashable, count: int, share: float) -> int:
        self.needed[what] = max(self.needed.get(what, 0), count)
        if self.rooms.get(what, -1) < count:
            self.rooms[what] = self.fit(max(count, int(share * self.num_hosts)))
        return self.rooms[what]

    def fit(self, count: int) -> int:
        """The next power of two, or the next eighth of all hosts."""
        eighth = max(self.num_hosts // 8, 2)
        return max(2, power_of_two(count) if count <= eighth else -(-count // eighth) * eighth)

    def grow_older(self) -> None:
        """An epoch has passed."""
        self.age += 1
        if self.age == self.next_fit:
            self.rooms = {what: min(self.rooms[what], self.fit(2 * count)) for what, count in self.needed.items()}
            self.next_fit, self.needed = 2 * self.age, {}


def power_of_two(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()


def assign(buckets: Mapping[Kind, Seeds], num_slots: int, measuring: bool, padding: Padding) -> Assignment:
    """In training a row starts beside the host for each silent seed; in measuring, for every seed."""
    beside, beside_slot, beside_speaks = np.zeros((0, 2), np.int64), np.zeros(0, np.int64), np.zeros(0, bool)
    assignments = []
    for s in range(num_slots):
        here = {kind: seeds for kind, seeds in buckets.items() if kind.slot == s}
        hosts, graft, alpha, target, silent = (_joined([seeds[i] for seeds in here.values()]) for i in range(5))
        living = hosts >= 0
        loud = living & (alpha > 0)
        starting = np.flatnonzero(living if measuring else silent)
        what = "counterfactuals" if measuring else "incubators"
        spawns, started = _padded(starting, padding((s, what), len(starting), SHARES[what]) if here else 0)
        plan_of_bucket, echoes = _echoes(here, beside, measuring, padding)
        assignments.append(
            SlotAssignment(
                plan_of_bucket,
                *(_tensor(x) for x in (np.where(living, hosts, 0), graft, alpha, target, loud)),
                spawns=Rows(_tensor(spawns), _tensor(started)),
                echoes=Rows(_tensor(echoes[:, 0]), _tensor(echoes[:, 1] > 0)),
                echo_graft=_tensor(graft[echoes[:, 2]]),
                echo_alpha=_tensor(alpha[echoes[:, 2]]),
            )
        )
        new = np.stack([np.where(started, hosts[spawns], 0) if here else spawns, started], 1)
        beside = np.concatenate([beside, new])
        beside_slot = np.concatenate([beside_slot, np.full(len(spawns), s)])
        beside_speaks = np.concatenate([beside_speaks, loud[spawns] & started if here else started])
    rows = Rows(_tensor(beside[:, 0]), _tensor(beside[:, 1] > 0))
    return Assignment(tuple(assignments), rows, _tensor(beside_slot), _tensor(beside_speaks))


def _echoes(
    here: Mapping[Kind, Seeds], beside: np.ndarray, measuring: bool, padding: Padding
) -> tuple[tuple[BucketAssignment, ...], np.ndarray]:
    """The buckets of a slot, and who beside hears them: (row, whether real, the seed among all of the slot)."""
    assignments, rows, before = [], [np.zeros((0, 3), np.int64)], 0
    for kind, seeds in here.items():
        loud = (seeds.hosts >= 0) & (seeds.alpha > 0)
        seed_of = np.full(max(seeds.hosts.max(initial=0), beside[:, 0].max(initial=0)) + 1, -1)
        seed_of[seeds.hosts[loud]] = np.flatnonzero(loud)
        hearing = np.flatnonzero((beside[:, 1] > 0) & (seed_of[beside[:, 0]] >= 0))
        what = "measured echoes" if measuring else "echoes"
        room = padding((kind, what), len(hearing), SHARES[what]) if len(beside) else 0
        echoes, real = _padded(hearing, room)
        heard = np.where(real, seed_of[beside[echoes, 0]], 0) if room else echoes
        learns = _tensor(loud | seeds.silent)
        assignments.append(BucketAssignment(kind, len(loud), room, learns, _tensor(seeds.lr), _tensor(heard)))
        rows.append(np.stack([echoes, real, before + heard], 1))
        before += len(loud)
    return tuple(assignments), np.concatenate(rows)


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays) if arrays else np.zeros(0, np.float32)


def _padded(index: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    whole = np.zeros(size, dtype=np.int64)
    whole[: len(index)] = index
    return whole, np.arange(size) < len(index)


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


def upload(array: np.ndarray, device: torch.device) -> Tensor:
    """Send numbers to a device without waiting for what it is doing."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def pack(assignment: Assignment, device: torch.device) -> Packed:
    """Send an assignment to a device in a few pieces, without waiting for what the device is doing."""
    leaves, spec = tree_flatten(assignment)
    by_type: dict[torch.dtype, list[Tensor]] = {}
    parts: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            same = by_type.setdefault(leaf.dtype, [])
            parts.append((list(by_type).index(leaf.dtype), len(leaf)))
            same.append(leaf)
        else:
            parts.append(leaf)
    pieces = tuple(_joined_on(device, dtype, tensors) for dtype, tensors in by_type.items())
    return Packed(pieces, AssignmentLayout(spec, tuple(len(slot.buckets) for slot in assignment.slots), tuple(parts)))


def _joined_on(device: torch.device, dtype: torch.dtype, tensors: list[Tensor]) -> Tensor:
    sizes = [_aligned(len(x)) for x in tensors]
    whole = torch.zeros(sum(sizes), dtype=dtype, pin_memory=device.type == "cuda")
    for part, x in zip(whole.split(sizes), tensors, strict=True):
        part[: len(x)] = x
    return whole.to(device, non_blocking=True)


def _aligned(size: int) -> int:
    """Up to the next multiple of 16: kernels are compiled for where their inputs lie."""
    return -(-size // 16) * 16


def unpack(packed: Packed) -> Assignment:
    """The assignment again, as views of the pieces."""
    places = [0] * len(packed.pieces)
    leaves: list[Any] = []
    for part in packed.layout.parts:
        if isinstance(part, tuple):
            piece, size = part
            leaves.append(packed.pieces[piece].narrow(0, places[piece], size))
            places[piece] += _aligned(size)
        else:
            leaves.append(part)
    return tree_unflatten(leaves, packed.layout.spec)
