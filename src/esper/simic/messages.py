"""Messages between workers, as bytes: from the first one to all or to each, and from each to the first one.

Every message is sent and received by all workers, in the same order. Nothing that is received is unpickled.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from esper.simic.workers import Workers, in_touch

CHUNK = 1 << 28
"""Bytes of a message that are sent at a time."""


def from_first(workers: Workers, said: bytes = b"") -> bytes:
    """Return what the first worker says."""
    if workers.size == 1:
        return said
    size = workers.numbers(len(said))[0][0]
    wire = _wire(said) if workers.is_first else torch.empty(size, dtype=torch.uint8)
    with in_touch():
        for piece in wire.split(CHUNK) if size else ():
            dist.broadcast(piece, 0, workers.group)
    return wire.numpy().tobytes()


def to_first(workers: Workers, said: bytes) -> list[bytes]:
    """Return what each worker says, in order of rank, to the first one; the others get nothing."""
    sizes = [row[0] for row in workers.numbers(len(said))]
    if workers.is_first:
        return [said, *(_received(workers, size, rank) for rank, size in enumerate(sizes) if rank)]
    _send(workers, said, 0)
    return []


def deal(workers: Workers, parts: Sequence[bytes] = ()) -> bytes:
    """Return the part for this worker of those that the first one deals out."""
    mine = parts[0] if workers.is_first else b""
    for rank in range(1, workers.size):
        size = workers.numbers(len(parts[rank]) if workers.is_first else 0)[0][0]
        if workers.is_first:
            _send(workers, parts[rank], rank)
        elif workers.rank == rank:
            mine = _received(workers, size, 0)
    return mine


def _send(workers: Workers, said: bytes, to: int) -> None:
    with in_touch():
        for piece in _wire(said).split(CHUNK) if said else ():
            dist.send(piece, to, workers.group)


def _received(workers: Workers, size: int, rank: int) -> bytes:
    wire = torch.empty(size, dtype=torch.uint8)
    with in_touch():
        for piece in wire.split(CHUNK) if size else ():
            dist.recv(piece, rank, workers.group)
    return wire.numpy().tobytes()


def _wire(said: bytes) -> Tensor:
    return torch.frombuffer(bytearray(said), dtype=torch.uint8) if said else torch.empty(0, dtype=torch.uint8)
