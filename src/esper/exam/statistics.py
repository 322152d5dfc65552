"""Statistics of an exam: interquartile means, bootstrap intervals, p-values and Holm's correction."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from esper.exam.records import Interval

Values = NDArray[np.float64]
"""One number per host, (N,), or one row per training of the policy, (trainings, N)."""
RESAMPLES = 2000
"""Bootstrap samples."""
FLIPS = 10_000
"""Random sign assignments of a sign-flip test."""


def iqm(values: Values) -> float:
    """Return the interquartile mean: a quarter of the values, rounded down, is dropped at each end."""
    return float(_interquartile_mean(values.reshape(1, -1))[0])


def iqm_interval(values: Values, rng_seed: int = 0, confidence: float = 0.95) -> Interval:
    """Return the interquartile mean with its bootstrap confidence interval."""
    drawn = _bootstrap(values, np.random.default_rng(rng_seed))
    return _interval(iqm(values), _interquartile_mean(drawn.reshape(RESAMPLES, -1)), confidence)


def paired_interval(ours: Values, theirs: Values, rng_seed: int = 0, confidence: float = 0.95) -> Interval:
    """Return the mean difference, paired by host, with its confidence interval.

    The bootstrap resamples hosts and, if there are several, trainings.
    """
    differences = ours - theirs
    drawn = _bootstrap(differences, np.random.default_rng(rng_seed))
    return _interval(differences.mean(), drawn.mean((1, 2)), confidence)


def unpaired_interval(ours: Values, theirs: Values, rng_seed: int = 0, confidence: float = 0.95) -> Interval:
    """Return the difference of the means of unrelated hosts with its confidence interval.

    The bootstrap resamples both sides independently.
    """
    generator = np.random.default_rng(rng_seed)
    our_means, their_means = (_bootstrap(x, generator).mean((1, 2)) for x in (ours, theirs))
    return _interval(ours.mean() - theirs.mean(), our_means - their_means, confidence)


def gain_fraction(
    ours: Values, base: Values, best: Values, rng_seed: int = 0, confidence: float = 0.95
) -> Interval | None:
    """Return our gain over the base as a fraction of the best arm's gain over it, with its confidence interval.

    None if the best arm is not significantly above the base.
    """
    if paired_interval(best, base, rng_seed, confidence).low <= 0:
        return None
    arms = [np.broadcast_to(x, np.atleast_2d(ours).shape) for x in (ours, base, best)]
    our_means, base_means, best_means = (_bootstrap(x, np.random.default_rng(rng_seed)).mean((1, 2)) for x in arms)
    fraction = (ours.mean() - base.mean()) / (best.mean() - base.mean())
    return _interval(fraction, (our_means - base_means) / (best_means - base_means), confidence)


def _bootstrap(values: Values, generator: np.random.Generator) -> Values:
    """Resample trainings and hosts with replacement, `RESAMPLES` times.

    Each sample holds n - 1 of n values: n of them would give a variance too small by a factor of 1 - 1 / n
    (Rao and Wu, 1988).
    """
    rows, columns = np.atleast_2d(values).shape
    drawn_rows = generator.integers(rows, size=(RESAMPLES, max(rows - 1, 1), 1))
    drawn_columns = generator.integers(columns, size=(RESAMPLES, 1, max(columns - 1, 1)))
    return np.atleast_2d(values)[drawn_rows, drawn_columns]


def _interquartile_mean(rows: Values) -> Values:
    cut = rows.shape[1] // 4
    return np.sort(rows, axis=1)[:, cut : rows.shape[1] - cut].mean(1)


def _interval(mean: float, samples: Values, confidence: float) -> Interval:
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(samples, [tail, 100 - tail])
    return Interval(float(mean), float(low), float(high))


def p_value(ours: Values, theirs: Values, rng_seed: int = 0, hosts_are_paired: bool = True) -> float:
    """Return the two-sided p-value of the difference between two arms.

    One training on paired hosts: a sign-flip test. Several trainings, or unrelated hosts: 1 minus the largest
    confidence at which the bootstrap interval excludes 0, found by bisection.
    """
    if hosts_are_paired and np.atleast_2d(ours).shape[0] == 1:
        return sign_flip_test(ours, theirs, rng_seed)
    interval = paired_interval if hosts_are_paired else unpaired_interval
    excludes, includes = 0.0, 1.0  # confidences at which the interval excludes 0, and at which it includes it
    for _ in range(12):
        confidence = (excludes + includes) / 2
        found = interval(ours, theirs, rng_seed, confidence)
        excludes, includes = (confidence, includes) if found.low > 0 or found.high < 0 else (excludes, confidence)
    return max(1 - excludes, 2 / (RESAMPLES + 1))  # the bootstrap cannot resolve smaller p-values


def probability_of_improvement(ours: Values, theirs: Values) -> float:
    """Return the probability that a random value of ours exceeds a random one of theirs; ties count half."""
    above = ours.reshape(-1, 1) > theirs.reshape(1, -1)
    equal = ours.reshape(-1, 1) == theirs.reshape(1, -1)
    return float((above + 0.5 * equal).mean())


def sign_flip_test(ours: Values, theirs: Values, rng_seed: int = 0) -> float:
    """Return the p-value of a two-sided sign-flip (permutation) test of the paired differences."""
    differences = np.atleast_2d(ours - theirs).mean(0)
    signs = np.random.default_rng(rng_seed).choice([-1.0, 1.0], size=(FLIPS, len(differences)))
    as_extreme = np.abs((signs * differences).mean(1)) >= abs(differences.mean()) - 1e-12
    return float((1 + as_extreme.sum()) / (1 + FLIPS))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return p-values corrected for multiple comparisons by Holm's step-down method (1979)."""
    corrected, largest = {}, 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[name]))
        corrected[name] = largest
    return corrected
