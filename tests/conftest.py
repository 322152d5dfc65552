"""One thread, deterministic algorithms, warnings as errors, quick checks and collections, and a cache of its own."""

import gc
import os

# Before torch starts: with AMX, bf16 matmuls can end the process with an illegal instruction.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

import hypothesis
import pytest
import torch

import typecheck  # noqa: F401  (its decorator must be there before esper is imported)

WAITING = ("tests/jobs/test_ray", "tests/laws/test_killing")
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
hypothesis.settings.register_profile("esper", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("esper")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory):
    os.environ["ESPER_CACHE"] = str(tmp_path_factory.getbasetemp() / "cache")


@pytest.fixture(autouse=True, scope="module")
def quick_collections():
    """Leave what came before out of collections: with all tests imported, one takes a second, and every fleet asks."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that mostly wait for processes, so that others run meanwhile and not before."""
    items.sort(key=lambda item: not item.nodeid.startswith(WAITING))


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)
