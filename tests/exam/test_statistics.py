"""Statistics against published definitions, on numbers that can be checked by hand."""

import numpy as np
import pytest
from scipy.stats import trim_mean

from esper.exam.records import Interval
from esper.exam.statistics import (
    gain_fraction,
    holm,
    iqm,
    iqm_interval,
    p_value,
    paired_interval,
    probability_of_improvement,
    sign_flip_test,
    unpaired_interval,
)

SOME = np.array([0.1, 0.9, 0.4, 0.35, 0.6, 0.2, 0.8, 0.5])


def test_the_interquartile_mean_is_that_of_the_middle_half():
    assert iqm(SOME) == pytest.approx((0.35 + 0.4 + 0.5 + 0.6) / 4)
    for size in range(1, 40):
        values = np.random.default_rng(size).normal(size=size)
        assert iqm(values) == pytest.approx(trim_mean(values, 0.25))


def test_the_probability_of_improvement_counts_pairs_and_half_of_the_ties():
    ours, theirs = np.array([1.0, 2.0]), np.array([0.0, 2.0, 3.0])
    assert probability_of_improvement(ours, theirs) == pytest.approx((1 + 0 + 0 + 1 + 0.5 + 0) / 6)
    assert probability_of_improvement(ours, ours) == 0.5


def test_intervals_by_hand():
    """Of two values one is drawn at a time; of three, two: of 0, 3 and 9 the means 0, 1.5, 3, 4.5, 6 and 9, in 1, 2, 1,
    2, 2 and 1 of 9 cases."""
    assert paired_interval(np.array([1.0, 5.0]), np.array([0.0, 1.0])) == Interval(2.5, 1, 4)
    trainings = paired_interval(np.array([[0.0], [3.0], [9.0]]), np.zeros(1), confidence=0.6)
    assert (trainings.mean, trainings.low, trainings.high) == (4, 1.5, 6)
    hosts = paired_interval(np.array([0.0, 3.0, 9.0]), np.zeros(3), confidence=0.6)
    assert (hosts.mean, hosts.low, hosts.high) == (4, 1.5, 6)
    assert unpaired_interval(np.array([0.0, 4.0]), np.array([1.0, 2.0]), confidence=0.8) == Interval(0.5, -2, 3)


def test_hosts_are_drawn_once_for_all_trainings():
    """Three equal trainings on two hosts: each resample holds one host, for all of its trainings."""
    assert paired_interval(np.array([[0.0, 4.0]] * 3), np.zeros(2), confidence=0.4) == Interval(2, 0, 4)


def test_the_interval_of_an_iqm_by_hand():
    """Of nine hosts eight are drawn, and the middle four count: the wild one is among them in 5 % of cases, and in 61 %
    of means. Of 0, 1 and 5 the means of two are 0, 0.5, 1, 2.5, 3 and 5, in 1, 2, 1, 2, 2 and 1 of 9 cases."""
    assert iqm_interval(np.array([1.0] * 8 + [1000.0]), confidence=0.8) == Interval(1, 1, 1)
    assert iqm_interval(np.array([0.0, 1.0, 5.0]), confidence=0.6) == Interval(2, 0.5, 3)


def test_intervals_hold_the_truth_as_often_as_they_say():
    """95 % of them; of 300, fewer than 92 % or more than 98 % would be a chance of about one in a hundred."""
    generator = np.random.default_rng(1)
    held = 0
    for trial in range(300):
        found = paired_interval(0.3 + generator.normal(size=40), np.zeros(40), rng_seed=trial)
        held += found.low <= 0.3 <= found.high
    assert 0.91 <= held / 300 <= 0.98


def test_intervals_over_trainings_that_differ_hold_the_truth_nearly_as_often():
    """Five values say little about their own spread: 95 % is not to be had from resampling them."""
    generator = np.random.default_rng(2)
    held = 0
    for trial in range(400):
        ours = generator.normal(size=(5, 1)) + 0.3 * generator.normal(size=(1, 30)) + np.zeros((5, 30))
        found = paired_interval(ours, np.zeros(30), rng_seed=trial)
        held += found.low <= 0 <= found.high
    assert 0.84 <= held / 400 <= 0.96


def test_the_fraction_of_the_best_arms_gain():
    base, best = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.5, 0.6, 0.7, 0.8])
    half = gain_fraction((base + best) / 2, base, best)
    assert half is not None
    assert (half.mean, half.low, half.high) == pytest.approx((0.5, 0.5, 0.5))
    mixed = gain_fraction(np.stack([base, best]), base, best)
    assert mixed is not None
    assert mixed.mean == pytest.approx(0.5)
    assert (mixed.low, mixed.high) == pytest.approx((0, 1))
    assert gain_fraction(best, base, base) is None, "no gain to take a fraction of"
    two = np.array([0.0, 1.0])
    assert gain_fraction(two + 1, two, np.array([2.0, 5.0])) == Interval(1 / 3, 0.25, 0.5), (
        "1 of 2 on one host, 1 of 4 on the other"
    )
    assert gain_fraction(two, two, np.array([-1.0, 9.0])) is None, "the best harms one of two hosts"


def test_the_same_seed_gives_the_same_interval():
    values, zeros = np.random.default_rng(0).normal(size=30), np.zeros(30)
    assert paired_interval(values, zeros, rng_seed=3) == paired_interval(values, zeros, rng_seed=3)
    assert paired_interval(values, zeros, rng_seed=3) != paired_interval(values, zeros, rng_seed=4)


def test_sign_flips_find_what_chance_does_not_make():
    """With n equal differences, 2 of 2^n sign assignments give a mean as large."""
    assert sign_flip_test(np.ones(5), np.zeros(5)) == pytest.approx(2 / 2**5, abs=0.01)
    assert sign_flip_test(np.ones(30), np.zeros(30)) == pytest.approx(1 / 10_001)
    assert sign_flip_test(np.ones(4), np.ones(4)) == 1.0


def test_holm_corrects_as_published():
    """The example of Holm's step-down: sorted, times what is left, never falling."""
    found = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert found == pytest.approx({"d": 0.02, "a": 0.03, "c": 0.06, "b": 0.06})
    assert holm({"a": 0.9, "b": 0.8}) == {"b": 1.0, "a": 1.0}


def test_p_values_by_hand():
    """One training: a sign-flip test. Several: twice the fraction of resampled means beyond 0, bounded below."""
    assert p_value(np.ones(5), np.zeros(5)) == sign_flip_test(np.ones(5), np.zeros(5))
    three = np.array([[0.0], [3.0], [9.0]])  # of whose means 3 in 9 are at most 1.5
    assert p_value(three, np.full(1, 2.0)) == pytest.approx(2 / 3, abs=0.06)
    assert p_value(np.full(1, 2.0) - three, np.zeros(1)) == pytest.approx(2 / 3, abs=0.06), "a loss is as unlikely"
    assert p_value(three + 1, np.zeros(1)) == 2 / 2001
    ours, theirs = np.array([1.5, 6.0]), np.array([1.0, 2.0])  # drawn apart they differ by 0.5, -0.5, 5 and 4
    assert p_value(ours, theirs, hosts_are_paired=False) == pytest.approx(1 / 2, abs=0.06)


def test_trainings_that_disagree_are_no_proof():
    """Two of three trainings help and one harms: a test over hosts alone would call it significant."""
    hosts = np.random.default_rng(0).normal(size=30) * 0.01
    ours = np.stack([hosts + 0.06, hosts - 0.02, hosts + 0.01])
    assert sign_flip_test(ours, np.zeros(30)) < 0.001
    found, interval = p_value(ours, np.zeros(30)), paired_interval(ours, np.zeros(30))
    assert found > 0.05
    assert (found < 0.05) == (interval.low > 0)
    assert p_value(ours + 0.5, np.zeros(30)) < 0.01
