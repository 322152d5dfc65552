"""The cache of captured programs: which are found again, and which are evicted."""

import gc

import pytest
import torch

from esper.tolaria.capture import Program, Programs


class Tapes(Programs):
    """A cache that records its requests instead of capturing CUDA graphs."""

    def _record(self, name, function, inputs, warm_up, kinds) -> Program:
        tape = Program.__new__(Program)
        tape.outputs = (name, inputs)
        return tape


def test_programs_are_found_by_shapes_and_constants_and_the_least_used_forgotten():
    tapes = Tapes(limit=3)

    def recorded_anew(name: str, *inputs) -> bool:
        before = tapes.misses
        assert tapes.find(name, print, inputs, print, kinds=()) is not None
        return tapes.misses > before

    small, large = torch.zeros(2), torch.zeros(3)
    assert recorded_anew("train", small, 1)
    assert not recorded_anew("train", small + 1, 1)
    assert recorded_anew("train", small, 2), "another constant is another program"
    assert recorded_anew("measure", small, 1), "and another name"
    assert not recorded_anew("train", small, 1)
    assert recorded_anew("train", large, 1), "and another shape: the fourth, so the one of constant 2 goes"
    assert not recorded_anew("train", small, 1)
    assert not recorded_anew("measure", small, 1)
    assert recorded_anew("train", small, 2)
    assert recorded_anew("train", small.double(), 1), "and another type"
    assert (tapes.hits, tapes.misses) == (4, 6)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this device can record")
def test_what_cannot_be_recorded_runs_all_the_same_with_a_warning():
    programs = Programs()
    for name in ("begin", "train"):  # each function by itself
        with pytest.warns(UserWarning, match=f"without a CUDA graph of {name!r}"):
            assert programs.find(name, lambda: None, (), lambda: None, kinds=()) is None
    assert programs.find("train", lambda: None, (), lambda: None, kinds=()) is None, "and says so only once"
    assert programs.failed == {"begin", "train"}


class Graph:
    """Stands for a CUDA graph, and for the context in which one is captured."""

    def __init__(self, *arguments, **options) -> None:
        pass

    def __enter__(self) -> None:
        assert not gc.isenabled(), "what is collected during a capture ends it"

    def __exit__(self, *error: object) -> None:
        assert not gc.isenabled()


@pytest.mark.parametrize("enabled", [True, False])
def test_no_garbage_is_collected_while_a_program_is_captured(enabled, monkeypatch):
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", Graph)
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        assert Program(gc.isenabled, (), pool=None).outputs is False
        with pytest.raises(ZeroDivisionError):
            Program(lambda: 1 / 0, (), pool=None)
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()
