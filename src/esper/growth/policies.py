"""Decide when to grow a user's model, and what."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esper.leyline.actions import Op
from esper.leyline.errors import EsperError, FileError, unknown
from esper.tamiyo.policies import Policy as FleetPolicy

if TYPE_CHECKING:
    from esper.growth.captures import Capture
    from esper.growth.growth import Growth


@dataclass(frozen=True)
class Deepen:
    """Plant twins behind the blocks of a chain.

    Example:
        >>> growth.apply(esper.Deepen("blocks", times=2))
    """

    chain: str | None = None
    """Name of a chain; None for all."""
    times: int = 2
    """Factor by which the number of blocks grows."""

    def __post_init__(self) -> None:
        if self.times < 2:
            raise EsperError(f"times must be at least 2, not {self.times}")


@dataclass(frozen=True)
class SlotAction:
    """Use an op on a slot: plant (GERMINATE), retarget (SET_ALPHA_TARGET), PRUNE or FOSSILIZE a seed.

    Example:
        >>> growth.apply(esper.SlotAction("GERMINATE", {"slot": "fc1", "blueprint": "mlp"}))
    """

    op: str
    """Name of an op."""
    choices: dict[str, Any] = field(default_factory=dict)
    """Choices of the heads that the op uses: slot, blueprint, style, tempo, alpha_target, alpha_speed, alpha_curve."""

    def __post_init__(self) -> None:
        if self.op not in Op.__members__:
            raise unknown("op", self.op, Op.__members__)


Action = Deepen | SlotAction
GrowthPolicy = Callable[["Growth"], Action | Iterable[Action] | None]
"""Looks at a growth after a step and says what to grow, if anything."""


def listed(actions: Action | Iterable[Action] | None) -> Sequence[Action]:
    """Return what a policy says as a sequence of actions."""
    if actions is None:
        return ()
    return (actions,) if isinstance(actions, Deepen | SlotAction) else tuple(actions)


class Doubling:
    """Double every chain at given shares of the compute budget.

    Args:
        at: Shares of the budget at which chains are doubled. By default about 0.3 and 0.6 of the optimizer steps: the
            steps after a doubling cost more.

    Example:
        >>> growth = esper.grow(model, optimizer, total=4500, policy=esper.Doubling(at=(0.1, 0.3)))
    """

    def __init__(self, at: Sequence[float] = (0.12, 0.36)) -> None:
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

    Example:
        >>> growth = esper.grow(model, optimizer, total=4500, policy=esper.growth.Plateau(patience=0.1))
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


class Probe:
    """Try a doubling out before it is kept: train a grown copy and the model as it is, and keep the better.

    Both are paid for out of the budget, with equal compute. They are compared by `evaluate` if the growth has it, else
    by the average training loss.

    Args:
        at: Shares of the budget at which a doubling is tried.
        length: Compute that each of the two gets, as a share of the budget.

    Example:
        >>> growth = esper.grow(model, optimizer, total=4500, policy="probe", evaluate=validation_loss)
    """

    def __init__(self, at: Sequence[float] = (0.1, 0.25, 0.45), length: float = 0.04) -> None:
        if not all(0 < share < 1 for share in at):
            raise EsperError(f"at must be shares strictly between 0 and 1, not {at}")
        if not 0 < length < 0.5:
            raise EsperError(f"length must lie strictly between 0 and 0.5, not {length}")
        self.at, self.length = tuple(sorted(at)), length
        self.made, self.phase, self.since, self.grown = 0, "train", 0.0, 0.0

    def state_dict(self) -> dict[str, Any]:
        """Return what the next decision depends on, as JSON."""
        names = ("length", "made", "phase", "since", "grown")
        return {"at": list(self.at), **{name: getattr(self, name) for name in names}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the state of another policy of this kind."""
        for name, value in state.items():
            setattr(self, name, tuple(value) if name == "at" else value)

    def __call__(self, growth: "Growth") -> None:
        if self.phase == "train":
            self._begin(growth)
        elif growth.progress - self.since >= self.length and not (self.phase == "grown" and growth.is_blending):
            (self._try_without if self.phase == "grown" else self._choose)(growth)

    def _begin(self, growth: "Growth") -> None:
        due = sum(growth.progress >= share for share in self.at)
        if due <= self.made or growth.is_blending:
            return
        self.made = due
        before = growth.capture()
        if growth.apply(Deepen()):
            growth.held["fork"] = before
            self.phase, self.since = "grown", growth.progress

    def _try_without(self, growth: "Growth") -> None:
        self.grown = growth.judge()
        grown = growth.capture()
        growth.restore(growth.held["fork"])
        growth.held["fork"] = grown
        self.phase, self.since = "bare", growth.progress

    def _choose(self, growth: "Growth") -> None:
        bare = growth.judge()
        grown: Capture = growth.held.pop("fork")
        self.phase = "train"
        if self.grown < bare:
            growth.restore(grown)
        growth.note("keep" if self.grown < bare else "discard", f"loss {self.grown:.4g} grown, {bare:.4g} as it was")


class Plan:
    """Carry out listed actions when their share of the budget is spent.

    Args:
        steps: Pairs of a share of the budget and an action.

    Example:
        >>> plan = esper.growth.Plan([(0.2, esper.Deepen()), (0.5, esper.Deepen("blocks"))])
        >>> growth = esper.grow(model, optimizer, total=4500, policy=plan)
    """

    def __init__(self, steps: Sequence[tuple[float, Action]]) -> None:
        for share, _ in steps:
            if not 0 <= share < 1:
                raise EsperError(f"a plan's shares lie between 0 and 1, not at {share}")
        self.steps = sorted(steps, key=lambda step: step[0])
        self.made = 0

    @classmethod
    def read(cls, path: str | Path) -> "Plan":
        """Read a plan: a JSON list of objects with `at`, and either `deepen` and `times`, or `op` and choices.

        Raises:
            FileError: If the file is missing or holds something else.
        """
        try:
            lines = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise FileError(f"{path} is no plan: {error}") from None
        if not isinstance(lines, list) or not all(isinstance(line, dict) for line in lines):
            raise FileError(
                f"{path} is no plan: it must be a list of objects such as {{'at': 0.3, 'deepen': 'blocks'}}"
            )
        try:
            return cls([_planned(line) for line in lines])
        except (EsperError, TypeError, ValueError) as error:
            raise FileError(f"{path} is no plan: {error}") from None

    def state_dict(self) -> dict[str, Any]:
        """Return what the next decision depends on, as JSON."""
        lines = [
            {"at": at} | ({"deepen": a.chain, "times": a.times} if isinstance(a, Deepen) else {"op": a.op, **a.choices})
            for at, a in self.steps
        ]
        return {"steps": lines, "made": self.made}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the state of another policy of this kind."""
        self.steps, self.made = [_planned(line) for line in state["steps"]], int(state["made"])

    def __call__(self, growth: "Growth") -> list[Action]:
        due = []
        while self.made < len(self.steps) and growth.progress >= self.steps[self.made][0]:
            if isinstance(self.steps[self.made][1], Deepen) and (growth.is_blending or due):
                break
            due.append(self.steps[self.made][1])
            self.made += 1
        return due


def _planned(line: dict[str, Any]) -> tuple[float, Action]:
    rest = {name: value for name, value in line.items() if name not in ("at", "deepen", "times", "op")}
    if not isinstance(line.get("at"), int | float):
        raise EsperError(f"{line} has no 'at', the share of the budget at which it is due")
    if ("deepen" in line) == ("op" in line):
        raise EsperError(f"{line} needs either 'deepen', the name of a chain or null, or 'op', what to do with a slot")
    if "deepen" in line and rest:
        raise unknown("field", next(iter(rest)), ("at", "deepen", "times"))
    action = Deepen(line["deepen"], line.get("times", 2)) if "deepen" in line else SlotAction(line["op"], rest)
    return float(line["at"]), action


def heuristic() -> "GrowthPolicy":
    """Return the rule that plants one seed at a time and keeps what contributes."""
    from esper.growth.slot_policies import SlotPolicy
    from esper.tamiyo.policies import Heuristic

    return SlotPolicy(Heuristic())


def learned() -> "GrowthPolicy":
    """Return the controller that ships with Esper."""
    from esper.growth.slot_policies import SlotPolicy
    from esper.tamiyo import load_controller
    from esper.tamiyo.policies import LearnedPolicy

    return SlotPolicy(LearnedPolicy(load_controller(), greedy=True))


POLICIES: dict[str, Callable[[], GrowthPolicy]] = {
    "doubling": Doubling,
    "plateau": Plateau,
    "probe": Probe,
    "heuristic": heuristic,
    "learned": learned,
}


def named_policy(policy: str | Path | GrowthPolicy | FleetPolicy) -> GrowthPolicy:
    """Return a policy by its name, a plan by its file, or the function that was given."""
    if callable(policy):
        return policy
    if isinstance(policy, FleetPolicy):
        from esper.growth.slot_policies import SlotPolicy

        return SlotPolicy(policy)
    if str(policy).endswith(".json"):
        return Plan.read(policy)
    if policy not in POLICIES:
        raise unknown("policy", policy, POLICIES)
    return POLICIES[str(policy)]()


def restored_policy(policy: str | Path | GrowthPolicy | FleetPolicy | None, saved: dict[str, Any]) -> GrowthPolicy:
    """Return the policy of a saved growth, with its state."""
    kind, name = saved["kind"], saved["state"].get("name", "") if isinstance(saved["state"], dict) else ""
    kinds: dict[str, Callable[[], GrowthPolicy]] = {
        "Doubling": Doubling,
        "Plateau": Plateau,
        "Probe": Probe,
        "Plan": lambda: Plan([]),
    }
    kinds |= {"SlotPolicy": POLICIES[name]} if name in POLICIES else {}
    if policy is None and kind not in kinds:
        raise EsperError(f"the growth was saved with a policy of its own ({kind}): pass policy=")
    found = kinds[kind]() if policy is None else named_policy(policy)
    load: Callable[[dict[str, Any]], None] | None = getattr(found, "load_state_dict", None)
    if saved["state"] and load is not None:
        load(saved["state"])
    return found
