"""What runs side by side reads nothing that may not be there yet, and frees nothing that is still being read."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from esper.tolaria import Fleet, TrainConfig
from esper.tolaria.lanes import Lanes
from toys import SPECS, random_legal, toy_task

MAIN = None


def memory(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


class Watched(TorchDispatchMode, Lanes):
    """Lanes that run in turn, and know which of them may read each tensor that is not `given`, in everybody's reach."""

    def __init__(self, given: set[int]) -> None:
        TorchDispatchMode.__init__(self)
        Lanes.__init__(self, torch.device("cpu"))
        self.given, self.here = given, MAIN
        self.readers: dict[int, set[int | None]] = {}
        self.kept: list[Tensor] = []
        self.parts = 0

    @contextmanager
    def lane(self, n: int, *read: Tensor) -> Iterator[None]:
        assert self.here is MAIN
        for x in read:
            self.readers.setdefault(memory(x), {MAIN}).add(n)
        self.here, self.parts = n, self.parts + 1
        yield
        self.here = MAIN

    def join(self, *made: Tensor) -> None:
        for x in made:
            self.readers.setdefault(memory(x), set()).add(MAIN)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        for x in tree_leaves((args, kwargs)):
            if isinstance(x, Tensor) and memory(x) not in self.given and memory(x) in self.readers:
                readers = self.readers[memory(x)]
                assert self.here in readers, f"{func} on lane {self.here} reads what only {readers} may"
        made = func(*args, **(kwargs or {}))
        for x in tree_leaves(made):
            if isinstance(x, Tensor) and x.numel():
                self.kept.append(x)  # so that no other tensor gets its memory
                self.readers.setdefault(memory(x), {self.here})
        return made


@pytest.mark.parametrize("kind", SPECS)
def test_lanes_read_what_they_were_told_of_and_are_joined_before_they_are_read(kind, monkeypatch):
    fleet = Fleet(SPECS[kind], toy_task(kind, 64, 40), range(12), TrainConfig(batch_size=32))
    generator, parts, forward = torch.Generator().manual_seed(3), [], fleet.network.forward

    def watched(flats, x, assignment):
        given = {memory(t) for t in tree_leaves((flats, x, assignment)) if isinstance(t, Tensor)}
        fleet.network.lanes = lanes = Watched(given)
        with lanes:
            found = forward(flats, x, assignment)
        made = {memory(t) for t in tree_leaves(found) if isinstance(t, Tensor)} - given
        assert all(MAIN in lanes.readers[place] for place in made)
        parts.append(lanes.parts)
        return found

    for _ in range(6):
        fleet.decide(random_legal(fleet.legal(), fleet.space.sizes, generator))
    monkeypatch.setattr(fleet.network, "forward", watched)
    for _ in range(4):
        fleet.decide(random_legal(fleet.legal(), fleet.space.sizes, generator))
    assert max(parts) > 3
