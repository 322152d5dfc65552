"""Law: a fleet on a CPU finds the memory that it has freed in place, unless users have set otherwise."""

import ctypes
import resource
import sys
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

import esper
from esper.tolaria import allocator

linux = pytest.mark.skipif(sys.platform != "linux", reason="only glibc can be told to keep freed memory")


@linux
def test_an_epoch_of_a_fleet_faults_few_pages_in() -> None:
    """The least of several epochs, since a system under pressure takes pages back. Otherwise each faults 100,000 in."""
    task = esper.load_task("digits")
    spec = esper.HostSpec("cnn2d", task.spec.inputs, task.spec.outputs, widths=(16, 16))
    fleet = esper.Fleet(spec, task, range(16), esper.TrainConfig(batch_size=64, steps=3))
    wait = torch.tensor([fleet.space.action("WAIT")] * 16)
    faults = []
    for _ in range(8):
        fleet.decide(wait)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    assert min(after - before for before, after in pairwise(faults)) < 2000


def asked(monkeypatch: pytest.MonkeyPatch, takes: int = 2**31) -> dict[int, int]:
    """What glibc is told, if it takes sizes up to this."""
    told: dict[int, int] = {}

    def mallopt(option: int, size: int) -> bool:
        if size <= takes or option != allocator.MMAP_THRESHOLD:
            told[option] = size
        return option in told

    library = SimpleNamespace(mallopt=mallopt, gnu_get_libc_version=None)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    allocator.keep_freed_memory.__wrapped__()
    return told


@linux
def test_older_versions_are_asked_for_what_they_can_do(monkeypatch):
    assert asked(monkeypatch)[allocator.MMAP_THRESHOLD] == 2**30
    assert asked(monkeypatch, takes=2**25)[allocator.MMAP_THRESHOLD] == 2**25


@pytest.mark.parametrize("setting", [*allocator.SETTINGS, "GLIBC_TUNABLES"])
def test_settings_of_users_win(setting, monkeypatch):
    monkeypatch.setenv(setting, "glibc.malloc.trim_threshold=131072")
    assert not asked(monkeypatch)
