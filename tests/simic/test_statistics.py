"""Statistics against published definitions, on numbers that can be checked by hand."""

import numpy as np
import pytest
from scipy.stats import trim_mean

from esper.simic.statistics import chance, holm, improvement, iqm, iqm_interval, paired, share, sign_flips, unpaired

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


def test_intervals_over_trainings_that_differ_hold_the_truth_nearly_as_often():
    """Five values say little about their own spread: 95 % is not to be had from resampling them."""
    generator = np.random.default_rng(2)
    held = 0
    for trial in range(400):
        ours = generator.normal(size=(5, 1)) + 0.3 * generator.normal(size=(1, 30)) + np.zeros((5, 30))
        found = paired(ours, np.zeros(30), rng_seed=trial)
        held += found.low <= 0 <= found.high
    assert 0.84 <= held / 400 <= 0.96


def test_a_share_of_what_the_best_gains():
    base, best = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.5, 0.6, 0.7, 0.8])
    half = share((base + best) / 2, base, best)
    assert half is not None
    assert (half.mean, half.low, half.high) == pytest.approx((0.5, 0.5, 0.5))
    mixed = share(np.stack([base, best]), base, best)
    assert mixed is not None
    assert mixed.mean == pytest.approx(0.5)
    assert (mixed.low, mixed.high) == pytest.approx((0, 1))
    assert share(best, base, base) is None, "of nothing there is no share"


def test_the_same_seed_gives_the_same_interval():
    values, zeros = np.random.default_rng(0).normal(size=30), np.zeros(30)
    assert paired(values, zeros, rng_seed=3) == paired(values, zeros, rng_seed=3)
    assert paired(values, zeros, rng_seed=3) != paired(values, zeros, rng_seed=4)


def test_trainings_that_differ_widen_the_interval():
    hosts = np.random.default_rng(0).normal(size=30) * 0.01
    alike, apart = np.stack([hosts, hosts, hosts]), np.stack([hosts - 1, hosts, hosts + 1])
    narrow, wide = paired(alike, np.zeros(30)), paired(apart, np.zeros(30))
    assert narrow.mean == pytest.approx(wide.mean)
    assert wide.high - wide.low > 20 * (narrow.high - narrow.low)


def test_sign_flips_find_what_chance_does_not_make():
    """Of n equal differences, chance makes one mean as large in 2 of 2^n."""
    assert sign_flips(np.ones(5), np.zeros(5)) == pytest.approx(2 / 2**5, abs=0.01)
    assert sign_flips(np.ones(30), np.zeros(30)) == pytest.approx(1 / 10_001)
    assert sign_flips(np.ones(4), np.ones(4)) == 1.0


def test_holm_corrects_as_published():
    """The example of Holm's step-down: sorted, times what is left, never falling."""
    found = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert found == pytest.approx({"d": 0.02, "a": 0.03, "c": 0.06, "b": 0.06})
    assert holm({"a": 0.9, "b": 0.8}) == {"b": 1.0, "a": 1.0}


def test_trainings_that_disagree_are_no_proof():
    """Of three trainings two help and one harms: hosts alone would make this certain."""
    hosts = np.random.default_rng(0).normal(size=30) * 0.01
    ours = np.stack([hosts + 0.06, hosts - 0.02, hosts + 0.01])
    assert sign_flips(ours, np.zeros(30)) < 0.001
    found, interval = chance(ours, np.zeros(30)), paired(ours, np.zeros(30))
    assert found > 0.05
    assert (found < 0.05) == (interval.low > 0)
    assert chance(ours + 0.5, np.zeros(30)) < 0.01


def test_without_pairs_the_luck_of_hosts_counts():
    luck = np.random.default_rng(0).normal(size=30)
    assert paired(luck + 0.1, luck).low > 0
    interval = unpaired(luck + 0.1, luck)
    assert interval.mean == pytest.approx(0.1)
    assert interval.low < 0 < interval.high
    assert chance(luck + 0.1, luck, hosts_are_paired=False) > 0.3


def test_the_interval_of_an_iqm_holds_it_and_shrinks_with_hosts():
    values = np.random.default_rng(0).normal(size=400)
    few, many = iqm_interval(values[:20]), iqm_interval(values)
    assert few.low < few.mean == iqm(values[:20]) < few.high
    assert many.high - many.low < (few.high - few.low) / 2
    wild = np.append(values[:20], 1000.0)
    assert iqm_interval(wild).high < 5 < paired(wild, np.zeros(21)).high
