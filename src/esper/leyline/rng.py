"""Draw random numbers without state: each is a hash of a key, so it does not depend on the other hosts of a fleet.

Keys are int64 tensors with one entry per host. The hash is SplitMix64's finalizer
(https://prng.di.unimi.it/splitmix64.c) in wrapping int64 arithmetic, which is equal on every device.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from zlib import crc32

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor


class Purpose(IntEnum):
    """The purpose of a draw. Different purposes give independent numbers."""

    HOST_WEIGHTS = 1
    SEED_WEIGHTS = 2
    SHUFFLE = 3
    ACTION = 4
    DATA = 5
    PRICE = 6


def _signed(x: int) -> int:
    return x - (1 << 64) if x >= 1 << 63 else x


GOLDEN = _signed(0x9E3779B97F4A7C15)
MIX1 = _signed(0xBF58476D1CE4E5B9)
MIX2 = _signed(0x94D049BB133111EB)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ (x >> 30 & (1 << 34) - 1)) * MIX1
    x = (x ^ (x >> 27 & (1 << 37) - 1)) * MIX2
    return x ^ (x >> 31 & (1 << 33) - 1)


def code(name: str) -> int:
    """Return the CRC-32 of a string, which stands for it in a key."""
    return crc32(name.encode())


def key(parent: Int[Tensor, "*N"] | int, *parts: Int[Tensor, "..."] | int | str) -> Tensor:
    """Return the key of a draw from its parts, as in `key(host, Purpose.SHUFFLE, epoch)`."""
    x = _mix(torch.as_tensor(parent, dtype=torch.int64) + GOLDEN)
    for part in parts:
        number = code(part) if isinstance(part, str) else part
        x = _mix((x ^ number) + GOLDEN)
    return x


def bits(keys: Int[Tensor, "*N"], count: int) -> Int[Tensor, "*N {count}"]:
    """Return `count` hashed integers for each key."""
    return key(keys[..., None], torch.arange(count, device=keys.device))


def uniform(keys: Int[Tensor, "*N"], count: int) -> Float[Tensor, "*N {count}"]:
    """Return `count` numbers strictly between 0 and 1 for each key, in float64 but exact in float32."""
    return uniform_at(keys[..., None], torch.arange(count, device=keys.device))


def uniform_at(keys: Int[Tensor, "..."], index: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return the number that `uniform` gives at an index, with one index for each key."""
    return ((key(keys, index) >> 41 & (1 << 23) - 1).double() + 0.5) / (1 << 23)


def permutation(keys: Int[Tensor, "*N"], length: int) -> Int[Tensor, "*N {length}"]:
    """Return a random permutation of `range(length)` for each key."""
    return bits(keys, length).argsort(dim=-1, stable=True)


@contextmanager
def isolated(rng_seed: int) -> Iterator[None]:
    """Seed the global generators for a block of code, and restore their state afterwards."""
    python, numpy = random.getstate(), np.random.get_state()
    # torch.manual_seed would also seed a CUDA generator that is not initialised yet, which belongs to the user.
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(rng_seed)
        if devices:
            torch.cuda.manual_seed_all(rng_seed)
        np.random.seed(rng_seed % (1 << 32))
        random.seed(rng_seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
