"""How thorough an exam is."""

from dataclasses import dataclass, replace

from esper.leyline.errors import EsperError


@dataclass(frozen=True, kw_only=True)
class ExamConfig:
    """How thorough an exam is.

    Example:
        ```python
        config = ExamConfig(hosts=30, plans=0, thorough=False)
        ```
    """

    hosts: int = 30
    """Fresh hosts for each arm."""
    rates: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0)
    """Learning rates that each arm chooses from, as multiples of the recipe's."""
    tuned_on: int = 24
    """Episodes to try each learning rate of an arm in; the trainings of an arm share them."""
    plans: int = 50
    """Random plans, of which the best is an arm, and pairs of seeds in the grid of the oracle; 0: neither arm."""
    thorough: bool = True
    """Include all rules, grown topologies trained from scratch, replays, and longer training."""
    final: bool = True
    """Score on test data and on hosts reserved for that; otherwise on validation data and development hosts."""
    price: float | None = None
    """Price of growth in J; None: the recipe's final rent."""
    recorded: int = 12
    """Hosts whose episodes are reported epoch by epoch."""

    def __post_init__(self) -> None:
        if self.thorough and not self.final:
            raise EsperError("thorough exams must be final: unset thorough or set final")
        for name, least in (("hosts", 2), ("tuned_on", 1), ("plans", 0), ("recorded", 0)):
            if getattr(self, name) < least:
                raise EsperError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if self.price is not None and not self.price >= 0:
            raise EsperError(f"price must not be negative, not {self.price}")
        if not self.rates or not all(rate > 0 for rate in self.rates):
            raise EsperError(f"rates must hold at least one number, all positive, not {self.rates}")


QUICK = ExamConfig(hosts=16, rates=(1.0,), plans=0, thorough=False, final=False)
"""A preliminary exam: never, random and the heuristic, at the recipe's learning rate, on validation data."""


def quick(asked: ExamConfig, settings: int) -> ExamConfig:
    """Return the preliminary exam that is closest to the one asked for: fewer hosts where there are many settings."""
    hosts = min(asked.hosts, QUICK.hosts, max(64 // settings, 2))
    return replace(QUICK, hosts=hosts, tuned_on=min(asked.tuned_on, 8), price=asked.price)
