"""Workers: processes that train one controller together, each on fleets of its own.

Every exchange is made by all workers, in the same order. Tensors travel through the CPU: a controller is small, and so
one GPU can serve several workers.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Int
from torch import Tensor

from esper.leyline.errors import EsperError

T = TypeVar("T")


class WorkerLost(EsperError):
    """Another worker has ended, or cannot be reached."""


class Place(NamedTuple):
    """Where the entries of one worker lie among those of all workers, which follow one another in order of rank."""

    first: int
    size: int
    total: int

    @property
    def span(self) -> slice:
        return slice(self.first, self.first + self.size)

    def own(self, index: Int[Tensor, " Q"]) -> Int[Tensor, " P"]:
        """Return which of its own entries are among those with these indices, in the same order."""
        return index[(index >= self.first) & (index < self.first + self.size)] - self.first


class Workers:
    """One of several workers, and its exchange with the others; alone, it gets back what it gives.

    Args:
        rank: Number of this worker, from 0; the first one writes everything down.
        size: Number of workers.
        group: Their process group, with the backend gloo. None: the default one.
    """

    def __init__(self, rank: int = 0, size: int = 1, group: "dist.ProcessGroup | None" = None) -> None:
        self.rank, self.size, self.group = rank, size, group

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def share(self, fleets: Sequence[T]) -> Sequence[T]:
        """Return the fleets of this worker: neighbours, and as many as any other worker has, give or take one.

        Raises:
            EsperError: There are more workers than fleets.
        """
        if self.size > len(fleets):
            raise EsperError(
                f"{self.size} workers cannot share {len(fleets)} fleet{'s' * (len(fleets) != 1)}: each needs at"
                f" least one: use at most {len(fleets)}, or a recipe with more fleets"
            )
        first, end = (len(fleets) * rank // self.size for rank in (self.rank, self.rank + 1))
        return fleets[first:end]

    def numbers(self, *own: int) -> list[list[int]]:
        """Return the integers that each worker gives, in order of rank."""
        if self.size == 1:
            return [list(own)]
        mine = torch.tensor(own, dtype=torch.int64)
        every = [torch.empty_like(mine) for _ in range(self.size)]
        with in_touch():
            dist.all_gather(every, mine, self.group)
        return [row.tolist() for row in every]

    def place(self, count: int) -> Place:
        """Return where `count` entries of this worker lie among those of all."""
        counts = [row[0] for row in self.numbers(count)]
        return Place(sum(counts[: self.rank]), count, sum(counts))

    def any(self, flag: bool) -> bool:
        """Return whether a flag is set on any worker."""
        return any(row[0] for row in self.numbers(flag))

    def sum(self, *own: Tensor) -> tuple[Tensor, ...]:
        """Return the sum of each tensor over all workers."""
        return own if self.size == 1 else _reduced(own, dist.ReduceOp.SUM, self.group)

    def largest(self, *own: Tensor) -> tuple[Tensor, ...]:
        """Return the largest entries of each tensor over all workers."""
        return own if self.size == 1 else _reduced(own, dist.ReduceOp.MAX, self.group)

    def joined(self, own: Tensor, axis: int = 0) -> Tensor:
        """Return the tensors of all workers, joined along an axis; only there their sizes may differ."""
        if self.size == 1:
            return own
        sizes = [row[0] for row in self.numbers(own.shape[axis])]
        mine = own.detach().cpu().movedim(axis, 0)
        padded = torch.cat([mine, mine.new_zeros(max(sizes) - len(mine), *mine.shape[1:])]).contiguous()
        raw = padded.view(torch.uint8)
        every = [torch.empty_like(raw) for _ in sizes]
        with in_touch():
            dist.all_gather(every, raw, self.group)
        whole = torch.cat([x.view(mine.dtype)[:size] for x, size in zip(every, sizes, strict=True)])
        return whole.movedim(0, axis).contiguous().to(own.device)

    def adopt(self, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite tensors by those of the first worker."""
        if self.size == 1:
            return
        for x in tensors.values():
            wire = x.detach().cpu().contiguous()
            with in_touch():
                dist.broadcast(wire, 0, self.group)
            x.data.copy_(wire)


ALONE = Workers()
"""The only worker."""


def _reduced(
    own: Sequence[Tensor], op: "dist.ReduceOp.RedOpType", group: "dist.ProcessGroup | None"
) -> tuple[Tensor, ...]:
    flat = torch.cat([x.detach().flatten() for x in own]).cpu()
    with in_touch():
        dist.all_reduce(flat, op, group)
    parts = flat.to(own[0].device).split([x.numel() for x in own])
    return tuple(part.view_as(x) for part, x in zip(parts, own, strict=True))


@contextmanager
def in_touch() -> Iterator[None]:
    """Turn the failure of an exchange into an error that says so."""
    try:
        yield
    except RuntimeError as error:
        line = str(error).strip().partition("\n")[0]
        reason = re.sub(r"^\[\S*:\d+\] ", "", line).partition(". ")[0].rstrip(".")  # without its place in gloo
        raise WorkerLost(f"another worker has ended, or cannot be reached ({reason})") from None
