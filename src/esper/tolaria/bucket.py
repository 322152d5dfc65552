"""Hold the seeds of one kind, a row each."""

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from esper.kasmina.slots import AnySeed, build_seed
from esper.leyline.actions import Graft
from esper.leyline.specs import SlotSpec
from esper.tolaria.assignment import Kind
from esper.tolaria.stack import Stack
from esper.tolaria.transfer import upload


class Bucket:
    """A stack of the seeds of one kind, and the host of each row; -1 marks a free row."""

    def __init__(self, kind: Kind, slot: SlotSpec, device: torch.device, dtype: torch.dtype, room: int) -> None:
        build_seed(slot, kind.blueprint, Graft.GATE)  # raises if the blueprint does not fit the slot
        self.stack = Stack(lambda: AnySeed(slot, kind.blueprint), 0, device, dtype, room)
        self.hosts = np.zeros(0, dtype=np.int64)

    def release(self, staying: np.ndarray) -> None:
        """Free the rows of hosts that are not `staying`, (N,)."""
        leaving = np.flatnonzero((self.hosts >= 0) & ~staying[self.hosts])
        if len(leaving):
            self.hosts[leaving] = -1
            self.stack.clear(self.at(leaving))

    def admit(self, hosts: np.ndarray, room: int) -> np.ndarray:
        """Give newborn seeds a row each, adding rows if needed, and return the rows."""
        self.fit(room)
        rows = np.flatnonzero(self.hosts < 0)[: len(hosts)]
        self.hosts[rows] = hosts
        return rows

    def bear(self, rows: np.ndarray, keys: Int[Tensor, " R"], gated: Bool[Tensor, " R"]) -> None:
        """Draw the weights of newborn seeds. The gates of seeds that are not gated are zero."""
        params = self.stack.nursery.bear(keys)
        gate = {name: p * gated.view(-1, *[1] * (p.ndim - 1)) for name, p in params.items() if name.startswith("g.")}
        self.stack.fill(self.at(rows), params | gate)

    def fit(self, size: int) -> None:
        """Resize to `size` rows if that is more rows, or less than a quarter; rows in use move to the front."""
        if len(self.hosts) // 4 < size <= len(self.hosts):
            return
        living = np.flatnonzero(self.hosts >= 0)
        self.stack.resize(self.at(living), size)
        self.hosts = np.concatenate([self.hosts[living], np.full(size - len(living), -1)])

    def at(self, rows: np.ndarray) -> Tensor:
        return upload(rows, self.stack.flat.device)
