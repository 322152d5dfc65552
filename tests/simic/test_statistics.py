"""Statistics against published definitions, on numbers that can be checked by hand."""

import numpy as np
import pytest
from scipy.stats import trim_mean

from esper.simic.statistics import improvement, iqm, paired

SOME = np.array([0.1, 0.9, 0.4, 0.35, 0.6, 0.2, 0.8, 0.5])


def test_the_interquartile_mean_is_that_of_the_middle_half():
    assert iqm(SOME) == pytest.approx((0.35 + 0.4 + 0.5 + 0.6) / 4)
    for size in range(1, 40):
        values = np.random.default_rng(size).normal(size=size)
        assert iqm(values) == pytest.approx(trim_mean(values, 0.25))


def test_one_wild_host_moves_the_mean_but_not_the_iqm():
    wild = np.append(SOME, 1000.0)
    assert iqm(wild) < 1.0 < wild.mean()


def test_the_probability_of_improvement_counts_pairs_and_half_of_the_ties():
    ours, theirs = np.array([1.0, 2.0]), np.array([0.0, 2.0, 3.0])
    assert improvement(ours, theirs) == pytest.approx((1 + 0 + 0 + 1 + 0.5 + 0) / 6)
    assert improvement(ours, ours) == 0.5


def test_pairing_cancels_what_hosts_have_in_common():
    luck = np.random.default_rng(0).normal(size=30) * 10
    interval = paired(luck + 0.1, luck)
    assert interval.mean == pytest.approx(0.1)
    assert interval.low == pytest.approx(0.1)
    assert interval.high == pytest.approx(0.1)


def test_intervals_hold_the_truth_as_often_as_they_say():
    """95 % of them; of 300, fewer than 92 % or more than 98 % would be a chance of about one in a hundred."""
    generator = np.random.default_rng(1)
    held = 0
    for trial in range(300):
        found = paired(0.3 + generator.normal(size=40), np.zeros(40), rng_seed=trial)
        held += found.low <= 0.3 <= found.high
    assert 0.91 <= held / 300 <= 0.98


def test_the_same_seed_gives_the_same_interval():
    values, zeros = np.random.default_rng(0).normal(size=30), np.zeros(30)
    assert paired(values, zeros, rng_seed=3) == paired(values, zeros, rng_seed=3)
    assert paired(values, zeros, rng_seed=3) != paired(values, zeros, rng_seed=4)
