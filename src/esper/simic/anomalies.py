"""Find what is wrong with an update, and say why it matters and what to try."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from esper.leyline.actions import Head
from esper.leyline.errors import EsperError, unknown
from esper.leyline.reports import Anomaly, HeadReport, UpdateReport

HEADS = tuple(head.name.lower() for head in Head)
EXPLORES = 5.0
"""A head counts as exploring if its entropy is at least this many times `Bounds.entropy`."""
OPEN = 0.63
"""Entropy of the op head below which it may leave a legal op out on purpose: ln 2 / ln 3, that of two ops out of three
that are equally likely. Above, an op that is never chosen is hardly ever legal."""
SUDDEN = 3
"""Updates within which a head that explored must become certain to count as collapsed. One that takes longer has
learned what to choose, or its entropy bonus fades."""
CLIPPED, FEW = 0.05, 5
"""Share and number of a head's decisions that must have been clipped for its extreme ratios to be anomalous. Otherwise
they are those of a few rare choices: a controller that imitates a plan makes some, and unlearns them."""
ASTRAY = 2
"""Updates in a row in which the critic must be wrong to count as collapsed: once can be chance, with few decisions."""
SEEN = 100
"""Decisions without a head that must have been made before it counts as starving: in fewer, chance leaves it out."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Limits beyond which an update is anomalous."""

    ratio_max: float = 5.0
    """Largest probability ratio of new to old policy. The clip range (1 ± 0.2 by default) removes the incentive to move
    further, but does not stop it: a ratio this large means that the policy has left the one that acted."""
    ratio_min: float = 0.1
    """Smallest probability ratio of new to old policy."""
    ratios: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Ratio limits (smallest, largest) of single heads, by name."""
    entropy: float = 0.02
    """Entropy below which a head counts as collapsed if it explored shortly before, as a share of the largest
    possible."""
    explained: float = -0.5
    """Smallest explained variance of the critic, from the second update on, in two updates in a row. A constant would
    explain 0."""
    starving: int = 5
    """Updates in a row without a decision that uses a head, while the op head considers all legal ops."""
    drift: float = 10.0
    """Largest gradient norm, as a multiple of its moving average."""
    memory: float = 0.9
    """Weight of the past in the moving average of gradient norms."""
    watched: int = 3
    """Updates with detailed reports after an anomaly."""
    vanishing: float = 1e-6
    """Smallest gradient norm from which a head can learn."""
    exploding: float = 100.0
    """Largest gradient norm from which a head can learn."""

    def __post_init__(self) -> None:
        for name in self.ratios:
            if name not in HEADS:
                raise unknown("head", name, HEADS)
        if not 0 < self.ratio_min < 1 < self.ratio_max:
            raise EsperError(
                f"ratio_min must lie between 0 and 1, and ratio_max above 1, not {self.ratio_min} and {self.ratio_max}"
            )
        if not 0 < self.vanishing < self.exploding:
            raise EsperError(f"vanishing ({self.vanishing}) must be positive and below exploding ({self.exploding})")
        if not 0 <= self.memory < 1:
            raise EsperError(f"memory must be at least 0 and below 1, not {self.memory}")


def gradient_health(heads: Sequence[HeadReport], bounds: Bounds) -> float | None:
    """Return the share of used heads whose gradient norm is within bounds; None if no head was used."""
    norms = [head.grad_norm for head in heads if head.samples]
    return sum(bounds.vanishing <= x <= bounds.exploding for x in norms) / len(norms) if norms else None


Found = Callable[[str, str, str, str], Anomaly]
"""Makes an anomaly of an update from its kind, place, explanation and suggestion."""


class AnomalyDetector:
    """Detector that reads one update report after another and keeps only a few numbers between them.

    An anomaly is a change that its suggestion can mend, not what a recipe does on purpose. A head that was decided when
    training began, because it was warm-started or has one legal choice, cannot collapse, nor can one whose entropy
    fades over many updates. The heads of ops that the op head has learned not to choose are unused on purpose. And few
    decisions prove nothing.
    """

    def __init__(self, bounds: Bounds = Bounds()) -> None:
        self.bounds = bounds
        self.usual: float | None = None
        """Moving average of gradient norms."""
        self.starved = dict.fromkeys(HEADS, 0)
        """Updates in a row for which a head was unused while the op head considered all legal ops."""
        self.since: dict[str, int | None] = dict.fromkeys(HEADS)
        """Updates since a head explored; it stands still while the head has collapsed. None: it never explored."""
        self.astray = 0
        """Updates in a row in which the critic explained less than its bound."""
        self.alert = 0
        """Updates that still get a detailed report."""

    def look(self, report: UpdateReport) -> tuple[Anomaly, ...]:
        """Return the anomalies of an update; call it once for every report, in order."""
        anomalies = tuple(self._look(report))
        self.alert = self.bounds.watched if anomalies else max(self.alert - 1, 0)
        return anomalies

    def _look(self, report: UpdateReport) -> Iterator[Anomaly]:
        def anomaly(kind: str, where: str, explanation: str, suggestion: str) -> Anomaly:
            return Anomaly(report.update, kind, where, explanation, suggestion)

        numbers = (report.policy_loss, report.value_loss, report.entropy, report.grad_norm)
        if not all(math.isfinite(x) for x in numbers):
            yield anomaly(
                "non-finite",
                "losses",
                f"policy loss {report.policy_loss}, value loss {report.value_loss}, gradient norm {report.grad_norm}",
                "lower lr, and check the rewards of this rollout",
            )
            return
        is_open = any(head.name == "op" and (head.entropy or 0.0) >= OPEN for head in report.heads)
        for head in report.heads:
            yield from self._unused(head, report.decisions, is_open, anomaly)
            yield from self._moved(head, anomaly)
            yield from self._decided(head, anomaly)
        explained = report.explained_variance
        is_astray = report.update > 0 and explained is not None and explained < self.bounds.explained
        self.astray = self.astray + 1 if is_astray else 0
        if self.astray >= ASTRAY:
            yield anomaly(
                "value collapse",
                "value",
                f"the critic's explained variance is {explained:.2f}, and a constant's would be 0",
                "raise value_coef or epochs",
            )
        if self.usual is not None and report.grad_norm > self.bounds.drift * self.usual:
            yield anomaly(
                "gradient drift",
                "gradient",
                f"its norm is {report.grad_norm:.3g}, on average {self.usual:.3g}",
                "lower lr: max_grad_norm bounds the length of a step, not its direction",
            )
        keep = self.bounds.memory
        self.usual = report.grad_norm if self.usual is None else keep * self.usual + (1 - keep) * report.grad_norm

    def _unused(self, head: HeadReport, decisions: int, is_open: bool, anomaly: Found) -> Iterator[Anomaly]:
        """Look for a head that no decision uses although its ops are considered."""
        unused = self.starved[head.name] + 1 if head.samples == 0 and is_open else 0
        self.starved[head.name] = unused
        if unused == max(self.bounds.starving, math.ceil(SEEN / max(decisions, 1))):
            yield anomaly(
                "starving head",
                head.name,
                f"no op that uses it was chosen in {unused} updates, though the op head considers all legal ops",
                "check that these ops are ever legal, or raise entropy_coef",
            )

    def _moved(self, head: HeadReport, anomaly: Found) -> Iterator[Anomaly]:
        """Look for a head whose choices have become much more or less likely, and not only a few of them."""
        if head.ratio_max is None or head.ratio_min is None or head.clip_fraction is None:
            return
        if head.clip_fraction < CLIPPED or head.clip_fraction * head.samples < FEW:
            return
        low, high = self.bounds.ratios.get(head.name, (self.bounds.ratio_min, self.bounds.ratio_max))
        share = f"{head.clip_fraction:.0%} of its decisions were clipped"
        if head.ratio_max > high:
            yield anomaly(
                "ratio explosion",
                head.name,
                f"a choice became {_times(head.ratio_max)} times as likely in one update, and {share}",
                "lower lr or epochs, or set target_kl",
            )
        if head.ratio_min < low:
            yield anomaly(
                "ratio collapse",
                head.name,
                f"a choice became {_times(1 / max(head.ratio_min, 1e-9))} times less likely in one update, and {share}",
                "lower lr or epochs, or set target_kl",
            )

    def _decided(self, head: HeadReport, anomaly: Found) -> Iterator[Anomaly]:
        """Look for a head that has become certain all at once."""
        if head.entropy is None:
            return
        since, is_certain = self.since[head.name], head.entropy < self.bounds.entropy
        if head.entropy >= EXPLORES * self.bounds.entropy:
            since = 0
        elif since is not None and (not is_certain or since >= SUDDEN):
            since += 1
        self.since[head.name] = since
        if is_certain and since is not None and since < SUDDEN:
            yield anomaly(
                "entropy collapse",
                head.name,
                f"it explored before, and its entropy is {head.entropy:.3f} of the largest possible",
                "lower lr, or raise entropy_coef or this head's entropy weight",
            )


def _times(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio < 1000 else "more than 1,000"
