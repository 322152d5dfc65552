"""What can be said of policies that were tried on the same hosts."""

import numpy as np
from numpy.typing import NDArray

from esper.leyline.reports import Interval

Values = NDArray[np.float64]
"""One number for each host."""
RESAMPLES = 2000


def iqm(values: Values) -> float:
    """The mean of the middle half: a quarter of the values is left out at each end, rounded down."""
    cut = len(values) // 4
    return float(np.sort(values)[cut : len(values) - cut].mean())


def paired(ours: Values, theirs: Values, rng_seed: int = 0, confidence: float = 0.95) -> Interval:
    """The mean difference, host by host, and the interval in which it lies by resampling hosts."""
    differences = ours - theirs
    rows = np.random.default_rng(rng_seed).integers(len(differences), size=(RESAMPLES, len(differences)))
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(differences[rows].mean(1), [tail, 100 - tail])
    return Interval(float(differences.mean()), float(low), float(high))


def improvement(ours: Values, theirs: Values) -> float:
    """How likely one of ours is above one of theirs, taken by chance; equal ones count half."""
    above = ours[:, None] > theirs[None, :]
    equal = ours[:, None] == theirs[None, :]
    return float((above + 0.5 * equal).mean())
