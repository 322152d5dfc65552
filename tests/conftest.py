"""One thread, deterministic algorithms, warnings as errors, and a cache of its own."""

import os

# Before torch starts: with AMX, bf16 matmuls can end the process with an illegal instruction.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

import hypothesis
import pytest
import torch

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
hypothesis.settings.register_profile("esper", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("esper")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory):
    os.environ["ESPER_CACHE"] = str(tmp_path_factory.getbasetemp() / "cache")


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)
