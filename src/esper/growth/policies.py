"""Decide when to grow a user's model."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from esper.leyline.errors import EsperError, unknown

if TYPE_CHECKING:
    from esper.growth.growth import Growth


@dataclass(frozen=True)
class Deepen:
    """Plant twins behind the blocks of a chain."""

    chain: str | None = None
    """Name of a chain; None for all."""
    times: int = 2
    """Factor by which the number of blocks grows."""

    def __post_init__(self) -> None:
        if self.times < 2:
            raise EsperError(f"times must be at least 2, not {self.times}")


Policy = Callable[["Growth"], Deepen | Iterable[Deepen] | None]
"""Looks at a growth after a step and says what to grow, if anything."""


class Doubling:
    """Double every chain at given shares of the compute budget.

    Args:
        at: Shares of the budget at which chains are doubled. By default about 0.3 and 0.6 of the optimizer steps: the
            steps after a doubling cost more.
    """

    def __init__(self, at: tuple[float, ...] = (0.12, 0.36)) -> None:
        if not all(0 < share < 1 for share in at):
            raise EsperError(f"at must be shares strictly between 0 and 1, not {at}")
        self.at = tuple(sorted(at))
        self.made = 0

    def state_dict(self) -> dict[str, Any]:
        """Return what the next decision depends on, as JSON."""
        return {"at": list(self.at), "made": self.made}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the state of another policy of this kind."""
        self.at, self.made = tuple(state["at"]), int(state["made"])

    def __call__(self, growth: "Growth") -> Deepen | None:
        due = sum(growth.progress >= share for share in self.at)
        if due <= self.made or growth.is_blending:
            return None
        self.made += 1
        return Deepen()


class Plateau:
    """Double every chain when the loss, or a reported metric, has stopped improving.

    Args:
        patience: Share of the budget without improvement after which chains are doubled.
        improvement: Relative improvement that counts.
        until: Share of the budget after which nothing is grown.
    """

    def __init__(self, patience: float = 0.05, improvement: float = 0.005, until: float = 0.7) -> None:
        for name, share in (("patience", patience), ("until", until)):
            if not 0 < share < 1:
                raise EsperError(f"{name} must lie strictly between 0 and 1, not {share}")
        self.patience, self.improvement, self.until = patience, improvement, until
        self.best, self.since = float("inf"), 0.0

    def state_dict(self) -> dict[str, Any]:
        """Return what the next decision depends on, as JSON."""
        options = {"patience": self.patience, "improvement": self.improvement, "until": self.until}
        return options | {"best": None if self.best == float("inf") else self.best, "since": self.since}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the state of another policy of this kind."""
        self.patience, self.improvement, self.until = (state[k] for k in ("patience", "improvement", "until"))
        self.best = float("inf") if state["best"] is None else float(state["best"])
        self.since = float(state["since"])

    def __call__(self, growth: "Growth") -> Deepen | None:
        value = growth.measure()
        if value is None:
            return None
        if value < self.best - self.improvement * abs(self.best) or self.best == float("inf"):
            self.best, self.since = value, growth.progress
        if growth.is_blending:
            self.since = growth.progress
        if growth.progress - self.since < self.patience or growth.progress > self.until:
            return None
        self.best, self.since = float("inf"), growth.progress
        return Deepen()


POLICIES: dict[str, Callable[[], Policy]] = {"doubling": Doubling, "plateau": Plateau}


def named_policy(policy: str | Policy) -> Policy:
    """Return a policy by its name, or the function that was given."""
    if callable(policy):
        return policy
    if policy not in POLICIES:
        raise unknown("policy", policy, POLICIES)
    return POLICIES[policy]()


def restored_policy(policy: str | Policy | None, saved: dict[str, Any]) -> Policy:
    """Return the policy of a saved growth, with its state."""
    kinds = {kind.__qualname__: name for name, kind in POLICIES.items()}
    if policy is None and saved["kind"] not in kinds:
        raise EsperError(f"the growth was saved with a policy of its own ({saved['kind']}): pass policy=")
    found = named_policy(kinds[saved["kind"]] if policy is None else policy)
    load: Callable[[dict[str, Any]], None] | None = getattr(found, "load_state_dict", None)
    if saved["state"] and load is not None:
        load(saved["state"])
    return found
