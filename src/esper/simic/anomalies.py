"""What is wrong with an update, why that matters, and what to try."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from esper.leyline.actions import Head
from esper.leyline.errors import EsperError, unknown
from esper.leyline.reports import Anomaly, HeadReport, UpdateReport

HEADS = tuple(head.name.lower() for head in Head)


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Beyond these an update is anomalous."""

    ratio_max: float = 5.0
    """The clip range, 1 ± 0.2 by default, bounds what a step gains, not where it leads: a ratio this far out means
    that the policy has left the one that acted."""
    ratio_min: float = 0.1
    ratios: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Other bounds (lowest, highest) for single heads."""
    entropy: float = 0.02
    """A head this decided explores no more, unless it has learned all there is."""
    explained: float = -0.5
    """A critic that explains less than this is worse than a constant."""
    starving: int = 5
    """Updates in a row without a single relevant decision."""
    drift: float = 10.0
    """Times the usual gradient norm, which is followed by a moving average..."""
    memory: float = 0.9
    """...that keeps this much of itself at every update."""
    watched: int = 3
    """Updates that are watched more closely after an anomaly."""
    vanishing: float = 1e-6
    """A head's gradient norm below this teaches it nothing..."""
    exploding: float = 100.0
    """...and above this says little about where to go."""

    def __post_init__(self) -> None:
        for name in self.ratios:
            if name not in HEADS:
                raise unknown("head", name, HEADS)
        if not 0 < self.ratio_min < 1 < self.ratio_max:
            raise EsperError(f"ratio_min and ratio_max must lie around 1, not {self.ratio_min} and {self.ratio_max}")
        if not 0 < self.vanishing < self.exploding:
            raise EsperError(f"vanishing ({self.vanishing}) must be positive and below exploding ({self.exploding})")
        if not 0 <= self.memory < 1:
            raise EsperError(f"memory must be from 0 to below 1, not {self.memory}")


def gradient_health(heads: Sequence[HeadReport], bounds: Bounds) -> float | None:
    """The share of heads with relevant decisions whose gradients are within bounds; None if there are none."""
    norms = [head.grad_norm for head in heads if head.samples]
    return sum(bounds.vanishing <= x <= bounds.exploding for x in norms) / len(norms) if norms else None


class AnomalyDetector:
    """Looks at one report after another. Keeps a few numbers, however long the run."""

    def __init__(self, bounds: Bounds = Bounds()) -> None:
        self.bounds = bounds
        self.usual: float | None = None
        """The moving average of gradient norms."""
        self.starved = dict.fromkeys(HEADS, 0)
        self.alert = 0
        """Updates that are still to be watched closely."""

    def look(self, report: UpdateReport) -> tuple[Anomaly, ...]:
        found = tuple(self._look(report))
        self.alert = self.bounds.watched if found else max(self.alert - 1, 0)
        return found

    def _look(self, report: UpdateReport) -> Iterator[Anomaly]:
        def anomaly(kind: str, where: str, explanation: str, suggestion: str) -> Anomaly:
            return Anomaly(report.update, kind, where, explanation, suggestion)

        numbers = (report.policy_loss, report.value_loss, report.entropy, report.grad_norm)
        if not all(math.isfinite(x) for x in numbers):
            yield anomaly(
                "non-finite",
                "losses",
                f"policy {report.policy_loss}, value {report.value_loss}, gradient {report.grad_norm}",
                "lower lr, and look at the rewards of this rollout",
            )
            return
        for head in report.heads:
            yield from self._head(head, anomaly)
        explained = report.explained_variance
        if explained is not None and explained < self.bounds.explained:
            yield anomaly(
                "value collapse",
                "value",
                f"the critic explains {explained:.2f} of the returns, less than a constant would",
                "raise value_coef, or normalise the rewards",
            )
        if self.usual is not None and report.grad_norm > self.bounds.drift * self.usual:
            yield anomaly(
                "gradient drift",
                "gradient",
                f"its norm is {report.grad_norm:.3g}, usually {self.usual:.3g}",
                "lower lr; max_grad_norm hides this from the weights, not from the direction",
            )
        keep = self.bounds.memory
        self.usual = report.grad_norm if self.usual is None else keep * self.usual + (1 - keep) * report.grad_norm

    def _head(self, head: HeadReport, anomaly: Callable[[str, str, str, str], Anomaly]) -> Iterator[Anomaly]:
        self.starved[head.name] = self.starved[head.name] + 1 if head.samples == 0 else 0
        if self.starved[head.name] == self.bounds.starving:
            yield anomaly(
                "starving head",
                head.name,
                f"no decision has listened to it for {self.bounds.starving} updates",
                "raise its entropy weight or the entropy of the op head, or check the masks",
            )
        if head.ratio_max is None or head.ratio_min is None or head.entropy is None:
            return
        low, high = self.bounds.ratios.get(head.name, (self.bounds.ratio_min, self.bounds.ratio_max))
        if head.ratio_max > high:
            yield anomaly(
                "ratio explosion",
                head.name,
                f"some choice became {head.ratio_max:.1f} times as likely",
                "fewer epochs, a lower lr, or a target_kl",
            )
        if head.ratio_min < low:
            yield anomaly(
                "ratio collapse",
                head.name,
                f"some choice became {1 / max(head.ratio_min, 1e-9):.1f} times less likely",
                "fewer epochs, a lower lr, or a target_kl",
            )
        if head.entropy < self.bounds.entropy:
            yield anomaly(
                "entropy collapse",
                head.name,
                f"its entropy is {head.entropy:.3f} of the largest possible",
                "raise entropy_coef or this head's entropy weight, unless it is done learning",
            )
