"""Assign seeds to rows for one epoch: the seeds of each slot by kind, and the side rows.

A side row is a copy of a host's forward pass from one slot on, with the seed there switched on or off: it trains a
silent seed, or measures the contribution of any seed. Assignments are made on the CPU between two decisions. Row
counts are padded, so that one captured program serves many assignments.
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
    """The slot and blueprint that all seeds of a bucket share."""

    slot: int
    blueprint: str


Padding = Callable[[Hashable, int, float], int]
"""Returns the number of rows to run for a name, a count of real rows, and the share of hosts that usually need one."""
SHARES = {"seeds": 1 / 8, "incubators": 3 / 8, "counterfactuals": 5 / 8, "echoes": 1 / 16, "measured echoes": 1 / 8}


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


class Packed(NamedTuple):
    """An assignment packed for transfer to a device: one tensor for each dtype."""

    pieces: tuple[Tensor, ...]
    layout: "AssignmentLayout"


@dataclass(frozen=True)
class AssignmentLayout:
    """The structure of a packed assignment. Assignments of equal layout can run one captured program."""

    spec: TreeSpec = field(compare=False, repr=False)
    num_buckets: tuple[int, ...]
    """Buckets of each slot. With `parts`, this determines `spec`."""
    parts: tuple[Any, ...]
    """For each leaf: the index of its piece and its length, or the leaf itself if it is not a tensor."""


class Seeds(NamedTuple):
    """The seeds of one kind as numpy arrays; a host of -1 marks a free row."""

    hosts: np.ndarray
    graft: np.ndarray
    alpha: np.ndarray
    target: np.ndarray
    starts: np.ndarray
    """Whether a side row starts at the seed."""
    taught: np.ndarray
    """Incubating, and trained in a side row, with no effect on the host."""
    lr: np.ndarray


def exact(what: Hashable, count: int, share: float) -> int:
    """Return the count itself, but 2 instead of 1: a single row takes another path through bmm, with other bits."""
    return max(count, 2) if count else 0


class Roomy:
    """Padding with spare rows, so that shapes rarely change when seeds are planted or pruned.

    Sizes grow when they must. At ever longer intervals, sizes that were far too large since the last one shrink.
    """

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
        """Round up to a power of two, or to a multiple of an eighth of all hosts."""
        eighth = max(self.num_hosts // 8, 2)
        return max(2, power_of_two(count) if count <= eighth else -(-count // eighth) * eighth)

    def grow_older(self) -> None:
        """Count one epoch, and shrink sizes if it is time."""
        self.age += 1
        if self.age == self.next_fit:
            self.rooms = {what: min(self.rooms[what], self.fit(2 * count)) for what, count in self.needed.items()}
            self.next_fit, self.needed = 2 * self.age, {}


def power_of_two(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()


def assign(buckets: Mapping[Kind, Seeds], num_slots: int, measuring: bool, padding: Padding) -> Assignment:
    """Assign all seeds to rows."""
    beside, beside_slot, beside_speaks = np.zeros((0, 2), np.int64), np.zeros(0, np.int64), np.zeros(0, bool)
    assignments = []
    for s in range(num_slots):
        here = {kind: seeds for kind, seeds in buckets.items() if kind.slot == s}
        hosts, graft, alpha, target, starts = (_joined([seeds[i] for seeds in here.values()]) for i in range(5))
        living = hosts >= 0
        loud = living & (alpha > 0)
        starting = np.flatnonzero(starts)
        what = "counterfactuals" if measuring else "incubators"
        spawns, started = _padded(starting, padding((s, what), len(starting), SHARES[what]) if here else 0)
        buckets_here, echoes = _echoes(here, beside, measuring, padding)
        assignments.append(
            SlotAssignment(
                buckets_here,
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
    """Return the buckets of a slot, and their side rows: (row, whether real, index of the seed within the slot)."""
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
        learns = _tensor(loud | seeds.taught)
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
    """Copy an array to a device asynchronously."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def pack(assignment: Assignment, device: torch.device) -> Packed:
    """Copy an assignment to a device asynchronously, as one tensor for each dtype."""
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
    """Round up to a multiple of 16: kernels are specialised on the alignment of their inputs."""
    return -(-size // 16) * 16


def unpack(packed: Packed) -> Assignment:
    """Return the assignment, as views of the packed tensors."""
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
