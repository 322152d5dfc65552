"""Randomness is a function of keys: the same alone or together, spread evenly, and nobody else's state."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline.rng import Purpose, bits, isolated, key, permutation, uniform


def test_splitmix64_first_outputs():
    """The published sequence of SplitMix64 for seed 1234567."""
    state, golden, outputs = 1234567, 0x9E3779B97F4A7C15, []
    for i in range(3):
        start = (state + i * golden) % (1 << 64)
        outputs.append(int(key(start - (1 << 64) if start >= 1 << 63 else start)) % (1 << 64))
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5), st.integers(1, 40))
def test_a_draw_does_not_depend_on_company(rng_seeds, count):
    keys = key(torch.tensor(rng_seeds), Purpose.SHUFFLE, 3)
    together = permutation(keys, count), uniform(keys, count)
    for n, rng_seed in enumerate(rng_seeds):
        alone = key(rng_seed, Purpose.SHUFFLE, 3)
        assert torch.equal(permutation(alone, count), together[0][n])
        assert torch.equal(uniform(alone, count), together[1][n])


def test_permutations_are_permutations():
    orders = permutation(key(torch.arange(50), Purpose.SHUFFLE, 0), 100)
    assert torch.equal(orders.sort(-1).values, torch.arange(100).expand(50, -1))
    assert len(orders.unique(dim=0)) == 50


def test_uniform_is_uniform_and_open():
    u = uniform(key(torch.arange(100), Purpose.DATA), 10_000)
    assert 0 < u.min() < u.max() < 1
    assert torch.equal(u.float().double(), u)
    assert (u * 2**23 % 1 == 0.5).all(), "each is the middle of one of 2 ** 23 equal parts, the first and the last too"
    counts = torch.histc(u.float(), 100, 0, 1)
    chi2 = ((counts - 10_000) ** 2 / 10_000).sum()
    assert 50 < chi2 < 160  # 99 degrees of freedom: 0.001 to 99.99 %
    rows = torch.corrcoef(u)
    assert (rows - torch.eye(100)).abs().max() < 0.06


def test_purposes_epochs_and_names_have_streams_of_their_own():
    keys = [key(1, purpose, epoch) for purpose in Purpose.__members__.values() for epoch in range(50)]
    keys += [key(1, name) for name in ("weight", "bias", "0.weight", "1.weight", "0.bias")]
    assert len({int(k) for k in keys}) == len(keys)
    assert len(bits(key(1), 1000).unique()) == 1000


def test_isolated_leaves_every_generator_as_it_was():
    def draws():
        return torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()

    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    expected = draws()
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    with isolated(7):
        first = draws()
    assert draws() == expected
    with pytest.raises(ZeroDivisionError), isolated(7):
        _ = 1 / 0
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    assert draws() == expected
    with isolated(7):
        assert draws() == first != expected
