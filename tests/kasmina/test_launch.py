"""Kernels are compiled side by side; their launchers are loaded one by one."""

import sys
import threading
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import esper.kasmina

PATH = Path(esper.kasmina.__file__).parent / "kernels" / "gpu" / "launch.py"


class Kernel:
    """What Triton compiles: its launcher is loaded when it is first asked for."""

    params = ()

    def __init__(self) -> None:
        self.src, self.metadata = self, None
        self.built_in: list[threading.Thread] = []
        self.loaded_in: list[threading.Thread] = []

    def warmup(self, grid: tuple[int, ...]) -> "Kernel":
        return self

    @property
    def run(self) -> None:
        self.loaded_in.append(threading.current_thread())


def build(source: Kernel, metadata: None) -> None:
    source.built_in.append(threading.current_thread())


@pytest.fixture
def launching(monkeypatch) -> ModuleType:
    """The module, with toys for what only machines with a GPU have."""
    toy = SimpleNamespace(driver=SimpleNamespace(active=SimpleNamespace(launcher_cls=build)))
    monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
    monkeypatch.setitem(sys.modules, "triton.runtime", toy)
    spec = spec_from_file_location("launch_with_toys", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_launchers_are_built_side_by_side_and_loaded_one_by_one(launching):
    kernels = [Kernel() for _ in range(20)]
    with launching.compiling():
        for kernel in kernels * 2:
            launching.launch(kernel, (1,))
    here = threading.current_thread()
    for kernel in kernels:
        assert len(kernel.built_in) == 1
        assert kernel.built_in != [here]
        assert kernel.loaded_in == [here]
