"""What can be said of policies that were tried on the same hosts."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from esper.leyline.reports import Interval

Values = NDArray[np.float64]
"""One number for each host; of several trainings of one policy, a row each."""
RESAMPLES = 2000
FLIPS = 10_000


def iqm(values: Values) -> float:
    """The mean of the middle half: a quarter of the values is left out at each end, rounded down."""
    return float(_middle(values.reshape(1, -1))[0])


def iqm_interval(values: Values, rng_seed: int = 0, confidence: float = 0.95) -> Interval:
    """The same, and the interval in which it lies."""
    drawn = _resampled(values, np.random.default_rng(rng_seed))
    return _interval(iqm(values), _middle(drawn.reshape(RESAMPLES, -1)), confidence)


def paired(ours: Values, theirs: Values, rng_seed: int = 0, confidence: float = 0.95) -> Interval:
    """The mean difference, host by host, and the interval in which it lies by resampling hosts, and trainings if
    there are several."""
    differences = ours - theirs
    drawn = _resampled(differences, np.random.default_rng(rng_seed))
    return _interval(differences.mean(), drawn.mean((1, 2)), confidence)


def unpaired(ours: Values, theirs: Values, rng_seed: int = 0, confidence: float = 0.95) -> Interval:
    """The same for hosts that have nothing in common: both sides are resampled by themselves."""
    generator = np.random.default_rng(rng_seed)
    mine, others = (_resampled(x, generator).mean((1, 2)) for x in (ours, theirs))
    return _interval(ours.mean() - theirs.mean(), mine - others, confidence)


def share(ours: Values, base: Values, best: Values, rng_seed: int = 0, confidence: float = 0.95) -> Interval | None:
    """How much of what the best gains over a base is gained by ours; None where the best itself shows no gain."""
    if paired(best, base, rng_seed, confidence).low <= 0:
        return None
    all_three = [np.broadcast_to(x, np.atleast_2d(ours).shape) for x in (ours, base, best)]
    mine, none, most = (_resampled(x, np.random.default_rng(rng_seed)).mean((1, 2)) for x in all_three)
    whole = (ours.mean() - base.mean()) / (best.mean() - base.mean())
    return _interval(whole, (mine - none) / (most - none), confidence)


def _resampled(values: Values, generator: np.random.Generator) -> Values:
    """Trainings and hosts, each drawn again with replacement, many times over: one fewer than there are, as the spread
    of n values around their own mean is too small by 1 in n (Rao and Wu, 1988)."""
    rows, columns = np.atleast_2d(values).shape
    drawn_rows = generator.integers(rows, size=(RESAMPLES, max(rows - 1, 1), 1))
    drawn_columns = generator.integers(columns, size=(RESAMPLES, 1, max(columns - 1, 1)))
    return np.atleast_2d(values)[drawn_rows, drawn_columns]


def _middle(rows: Values) -> Values:
    cut = rows.shape[1] // 4
    return np.sort(rows, axis=1)[:, cut : rows.shape[1] - cut].mean(1)


def _interval(mean: float, drawn: Values, confidence: float) -> Interval:
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(drawn, [tail, 100 - tail])
    return Interval(float(mean), float(low), float(high))


def p_value(ours: Values, theirs: Values, rng_seed: int = 0, hosts_are_paired: bool = True) -> float:
    """How likely chance alone makes as large a difference: by flipping the signs of hosts' differences or, with several
    trainings or unlike hosts, the largest confidence at which the interval still leaves out 0."""
    if hosts_are_paired and np.atleast_2d(ours).shape[0] == 1:
        return sign_flips(ours, theirs, rng_seed)
    interval = paired if hosts_are_paired else unpaired
    inside, outside = 0.0, 1.0  # confidences: at none everything is left out, at all nothing
    for _ in range(12):
        middle = (inside + outside) / 2
        found = interval(ours, theirs, rng_seed, middle)
        inside, outside = (middle, outside) if found.low > 0 or found.high < 0 else (inside, middle)
    return max(1 - inside, 2 / (RESAMPLES + 1))  # less cannot be told from so many draws


def probability_of_improvement(ours: Values, theirs: Values) -> float:
    """How likely one of ours is above one of theirs, taken by chance; equal ones count half."""
    above = ours.reshape(-1, 1) > theirs.reshape(1, -1)
    equal = ours.reshape(-1, 1) == theirs.reshape(1, -1)
    return float((above + 0.5 * equal).mean())


def sign_flips(ours: Values, theirs: Values, rng_seed: int = 0) -> float:
    """How often chance alone, which gives every host's difference either sign, makes a mean as far from 0."""
    differences = np.atleast_2d(ours - theirs).mean(0)
    signs = np.random.default_rng(rng_seed).choice([-1.0, 1.0], size=(FLIPS, len(differences)))
    as_far = np.abs((signs * differences).mean(1)) >= abs(differences.mean()) - 1e-12
    return float((1 + as_far.sum()) / (1 + FLIPS))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Corrected for having asked so often (Holm, 1979): the smallest counts as often as there are questions."""
    corrected, largest = {}, 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[name]))
        corrected[name] = largest
    return corrected
