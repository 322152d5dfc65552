"""Choose actions for all hosts of a fleet: baseline policies, and the learned one."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esper.leyline.actions import TWIN, ActionSpace, Head, Op
from esper.leyline.errors import EsperError
from esper.leyline.lifecycle import Stage
from esper.leyline.state import Setting
from esper.tamiyo.features import View
from esper.tamiyo.heads import masked, sample
from esper.tamiyo.network import Controller, HiddenState, Observation, describe, look, num_draws


@runtime_checkable
class Policy(Protocol):
    """The interface of policies: once per epoch, one action for every host of a fleet.

    A policy keeps its own memory of the hosts. `esper.evaluate` runs one on a fleet, `esper.grow_host` on one host.

    Example:
        >>> class PlantOnce:
        ...     name = "plant once"
        ...
        ...     def begin(self, setting, num_hosts, device):
        ...         self.wait = torch.tensor(setting.space.action("WAIT"), device=device)
        ...         plant = setting.space.action("GERMINATE", slot="s0", blueprint="norm")
        ...         self.plant = torch.tensor(plant, device=device)
        ...
        ...     def decide(self, view, fresh, uniform):
        ...         return torch.where(fresh[:, None], self.plant, self.wait)
    """

    @property
    def name(self) -> str:
        """Name under which reports show the policy."""
        ...

    def begin(self, setting: Setting, num_hosts: int, device: torch.device) -> None:
        """Prepare for a fleet of fresh hosts.

        Args:
            setting: What all hosts of the fleet have in common: choices, length of episodes, sizes of seeds.
            num_hosts: Number of hosts.
            device: Device that the tensors of `decide` are on.
        """
        ...

    def decide(self, view: View, fresh: Bool[Tensor, " N"], uniform: Float[Tensor, "N A"]) -> Int[Tensor, "N H"]:
        """Return an action for every host.

        Args:
            view: Measurements of the hosts and their history.
            fresh: Mask of the hosts whose episode has just begun: forget what was remembered of them.
            uniform: Random numbers between 0 and 1 to sample from, so that equal seeds give equal actions.

        Returns:
            One row per host, as `setting.space.action` returns it. Illegal actions are refused, and count as waiting.
        """
        ...


def draws(setting: Setting) -> int:
    """Return how many uniform numbers one decision of one host takes."""
    return num_draws(len(setting.space.slots), len(setting.space.blueprints))


class Rule:
    """A base class of policies without memory: every host waits, unless a subclass decides otherwise."""

    name = "rule"
    reads_contributions = True
    """Whether it looks at the contributions of seeds, or uses ops that need them."""
    reads_rent = True
    """Whether it, or a subclass, looks at the price of growth; where none does, one episode counts at every price."""

    def begin(self, setting: Setting, num_hosts: int, device: torch.device) -> None:
        """Prepare for a fleet of fresh hosts."""
        self.space = setting.space

    def decide(self, view: View, fresh: Bool[Tensor, " N"], uniform: Float[Tensor, "N A"]) -> Int[Tensor, "N H"]:
        """Make every host wait."""
        return self.wait(view)

    def wait(self, view: View) -> Int[Tensor, "N H"]:
        """Return the action of waiting for every host."""
        return self.all(view, self.space.action())

    def all(self, view: View, action: Sequence[int]) -> Int[Tensor, "N H"]:
        """Return one action for every host."""
        return torch.tensor(action, device=view.signals.age.device).repeat(len(view.signals.age), 1)


class Never(Rule):
    """A policy that never grows: every host waits at every decision.

    Example:
        >>> esper.evaluate(env, esper.Never(), rent=0.02)
    """

    name = "never"
    reads_contributions = reads_rent = False


class RandomLegal(Rule):
    """A policy that chooses a uniformly random legal op, a random legal slot for it, and random other choices.

    Example:
        >>> esper.evaluate(env, esper.RandomLegal(), rent=0.02, rng_seed=1)
    """

    name, reads_rent = "random", False

    def decide(self, view: View, fresh: Bool[Tensor, " N"], uniform: Float[Tensor, "N A"]) -> Int[Tensor, "N H"]:
        parts = uniform.split(self.space.sizes, dim=1)
        legal = view.signals.legal
        op = _any(legal.any(2), parts[Head.OP])
        slot = _any(legal[torch.arange(len(op), device=op.device), op], parts[Head.SLOT])
        rest = [_any(torch.ones_like(part, dtype=torch.bool), part) for part in parts[Head.BLUEPRINT :]]
        return torch.stack([op, slot, *rest], 1)


@dataclass(frozen=True)
class PlanStep:
    """One action of a fixed plan, and the decision at which it is due.

    Example:
        >>> PlanStep(0, {"op": "GERMINATE", "slot": "s0", "blueprint": "conv_heavy"})
    """

    decision: int
    """Decision of the episode, counted from 0."""
    action: Mapping[str, object]
    """Op and choices by name, as for `space.action`: `{"op": "GERMINATE", "slot": "s0", "blueprint": "conv_heavy"}`."""


class FixedPlan(Rule):
    """A policy that follows a fixed plan: each action when it is due, or as soon after as it is legal.

    It takes at most one action per decision, and waits otherwise.

    Args:
        plan: Actions and their decisions, in any order.
        name: Name under which reports show the policy.

    Raises:
        EsperError: When a fleet begins, if an action has no op or names an unknown choice.

    Example:
        >>> plan = [esper.PlanStep(0, {"op": "GERMINATE", "slot": "s0", "blueprint": "conv_heavy"})]
        >>> esper.evaluate(env, esper.FixedPlan(plan), rent=0.02)
    """

    def __init__(self, plan: Sequence[PlanStep], name: str = "plan") -> None:
        self.plan, self.name, self.reads_rent = sorted(plan, key=lambda line: line.decision), name, False
        self.reads_contributions = any(str(line.action.get("op")) == Op.FOSSILIZE.name for line in plan)

    def __str__(self) -> str:
        return "; ".join(f"{line.decision}: {' '.join(map(str, line.action.values()))}" for line in self.plan)

    def begin(self, setting: Setting, num_hosts: int, device: torch.device) -> None:
        super().begin(setting, num_hosts, device)
        self.actions = torch.tensor([_action(self.space, line.action) for line in self.plan], device=device)
        self.times = [line.decision for line in self.plan]
        self.done = torch.zeros(num_hosts, len(self.plan), dtype=torch.bool, device=device)

    def decide(self, view: View, fresh: Bool[Tensor, " N"], uniform: Float[Tensor, "N A"]) -> Int[Tensor, "N H"]:
        self.done &= ~fresh[:, None]
        chosen, free = self.wait(view), torch.ones_like(fresh)
        for i, time in enumerate(self.times):
            action = self.actions[i]
            possible = view.signals.legal[:, action[Head.OP], action[Head.SLOT]]
            now = free & possible & (view.signals.age >= time) & ~self.done[:, i]
            chosen = torch.where(now[:, None], action, chosen)
            self.done[:, i] |= now
            free &= ~now
        return chosen


def in_first_half(view: View) -> Bool[Tensor, " N"]:
    """Return whether less than half of the episode is over: of its budget, or of its epochs."""
    signals = view.signals
    return signals.age < view.setting.episode // 2 if signals.spent is None else signals.spent < 0.5


class Gardener(Rule):
    """A base class of policies that plant one blueprint, fossilize seeds that contribute, and prune the rest.

    A subclass says when to plant, in `wants`, and where, in `prefers`. Nothing is planted in the second half of an
    episode. Its arguments are those of `Heuristic`.
    """

    reads_rent = False  # a subclass that does must say so

    def __init__(self, blueprint: str | None = None, slots: Sequence[str] | None = None, **choices: object) -> None:
        self.blueprint, self.slots, self.choices = blueprint, slots, choices

    def wants(self, view: View) -> Bool[Tensor, " N"]:
        """Return a mask of the hosts to plant a seed in."""
        raise NotImplementedError

    def prefers(self, view: View) -> Float[Tensor, "N S"]:
        """Return the preference for each slot: the highest is planted in first, −inf never."""
        rank = torch.full((len(self.space.slots),), -torch.inf)
        rank[self.order] = -torch.arange(len(self.order), dtype=torch.float32)
        return rank.to(view.signals.score.device).expand(len(view.signals.age), -1)

    def begin(self, setting: Setting, num_hosts: int, device: torch.device) -> None:
        super().begin(setting, num_hosts, device)
        largest = setting.space.blueprints[int(setting.seed_parameters.sum(0).argmax())]
        self.order = [_index(setting.space, slot) for slot in self.slots or setting.space.slots]
        self.seed = setting.space.action(Op.GERMINATE, blueprint=self.blueprint or largest, **self.choices)

    def decide(self, view: View, fresh: Bool[Tensor, " N"], uniform: Float[Tensor, "N A"]) -> Int[Tensor, "N H"]:
        legal, slots = view.signals.legal, view.signals.slots
        preference = self.prefers(view)
        open_slots = legal[:, Op.GERMINATE] & preference.isfinite()
        plant = self.all(view, self.seed)
        plant[:, Head.SLOT] = preference.masked_fill(~open_slots, -torch.inf).argmax(1)
        early = in_first_half(view)  # a later seed costs rent and has no time to learn
        chosen = torch.where((self.wants(view) & early & open_slots.any(1))[:, None], plant, self.wait(view))
        worth = view.signals.vitals.contribution
        proven = legal[:, Op.FOSSILIZE] & (worth > 0)
        useless = legal[:, Op.PRUNE] & (slots.stage == Stage.HOLDING) & (slots.age >= 3) & (worth <= 0)
        for op, where in ((Op.PRUNE, useless), (Op.FOSSILIZE, proven)):
            slot = where.float().argmax(1)
            action = self.wait(view)
            action[:, Head.OP], action[:, Head.SLOT] = int(op), slot
            chosen = torch.where(where.any(1)[:, None], action, chosen)
        return chosen


class Heuristic(Gardener):
    """A policy that plants one seed at a time, fossilizes it if it contributes, and prunes it otherwise.

    Nothing is planted in the second half of an episode.

    Args:
        blueprint: Blueprint to plant. None: the largest.
        slots: Names of the slots to plant in, in order of preference. None: all, in order.
        choices: Choices of other heads for planting, such as `style="gate"` or `tempo=3`.

    Example:
        >>> esper.evaluate(env, esper.Heuristic("conv_light", slots=["s0"]), rent=0.02)
    """

    name = "heuristic"

    def wants(self, view: View) -> Bool[Tensor, " N"]:
        return _settled(view)


class Schedule(Gardener):
    """A policy that plants a seed at regular intervals, and otherwise acts as `Heuristic`.

    Args:
        every: Decisions between two seeds.
        options: `blueprint`, `slots` and choices of other heads, as for `Heuristic`.

    Example:
        >>> esper.evaluate(env, esper.Schedule(every=4), rent=0.02)
    """

    name = "schedule"

    def __init__(self, every: int = 5, **options: object) -> None:
        super().__init__(**options)  # pyright: ignore[reportArgumentType]
        self.every = every

    def wants(self, view: View) -> Bool[Tensor, " N"]:
        return view.signals.age % self.every == 0


class Oversized(Gardener):
    """A policy that plants a seed in every slot at the beginning, then prunes those that contribute nothing.

    Its arguments are those of `Heuristic`.

    Example:
        >>> esper.evaluate(env, esper.Oversized(), rent=0.02)
    """

    name = "oversized"

    def wants(self, view: View) -> Bool[Tensor, " N"]:
        return view.signals.age < len(self.space.slots)


class Plateau(Gardener):
    """A policy that plants a seed when the score has stopped rising, and otherwise acts as `Heuristic`.

    Args:
        patience: Decisions without a new best score before a seed is planted.
        options: `blueprint`, `slots` and choices of other heads, as for `Heuristic`.

    Example:
        >>> esper.evaluate(env, esper.Plateau(patience=2), rent=0.02)
    """

    name = "plateau"

    def __init__(self, patience: int = 1, **options: object) -> None:
        super().__init__(**options)  # pyright: ignore[reportArgumentType]
        self.patience = patience

    def wants(self, view: View) -> Bool[Tensor, " N"]:
        return _settled(view) & (view.history.since_best >= self.patience)


class GapTrigger(Gardener):
    """A policy that plants a seed while validation and training loss are close, and otherwise acts as `Heuristic`.

    A small gap means that the host underfits, so that more parameters can help.

    Args:
        gap: Gap below which a seed is planted, as a share of the loss of guessing.
        options: `blueprint`, `slots` and choices of other heads, as for `Heuristic`.

    Example:
        >>> esper.evaluate(env, esper.GapTrigger(gap=0.05), rent=0.02)
    """

    name = "gap"

    def __init__(self, gap: float = 0.1, **options: object) -> None:
        super().__init__(**options)  # pyright: ignore[reportArgumentType]
        self.gap = gap

    def wants(self, view: View) -> Bool[Tensor, " N"]:
        gap = (view.signals.loss - view.signals.train_loss) / view.setting.guess
        return _settled(view) & (gap < self.gap) & (view.signals.age > 0)


class GreedyGradient(Gardener):
    """A policy that plants one seed at a time, in the slot whose stream has the largest gradient.

    It otherwise acts as `Heuristic`.

    Args:
        against: Plant where the gradient is smallest instead, as a control.
        options: `blueprint` and choices of other heads, as for `Heuristic`.

    Example:
        >>> esper.evaluate(env, esper.GreedyGradient(), rent=0.02)
    """

    def __init__(self, *, against: bool = False, **options: object) -> None:
        super().__init__(**options)  # pyright: ignore[reportArgumentType]
        self.against, self.name = against, "least gradient" if against else "gradient"

    def wants(self, view: View) -> Bool[Tensor, " N"]:
        return _settled(view) & (view.signals.age > 0)

    def prefers(self, view: View) -> Float[Tensor, "N S"]:
        return -view.signals.vitals.pull if self.against else view.signals.vitals.pull


ROUNDING = 1e-6
"""Error of a share of the budget that is not worth another epoch."""


class Doubling(Rule):
    """A policy that doubles the number of blocks when given shares of the budget are spent, one seed at a time.

    With three slots behind each block, two blocks become four by seeds in the middle slots, and eight by seeds in all
    others. Seeds are blended in over the shortest tempo, and kept.

    Args:
        at: Shares of the budget, or of the episode, at which it doubles.
        blueprint: Blueprint to plant. The default copies the block in front of each slot.

    Raises:
        EsperError: If a share is not between 0 and 1, or, when a fleet begins, if its hosts have no such blueprint.

    Example:
        >>> from esper.tamiyo.policies import Doubling
        >>> esper.evaluate(env, Doubling(at=(0.3, 0.6)), rent=0.02)
    """

    name = "doubling"
    reads_contributions = reads_rent = False

    def __init__(self, at: Sequence[float] = (0.3, 0.6), blueprint: str = TWIN) -> None:
        if not all(0 <= share < 1 for share in at):
            raise EsperError(f"at must be shares from 0 to below 1, not {tuple(at)}")
        self.at, self.blueprint = tuple(sorted(at)), blueprint

    def begin(self, setting: Setting, num_hosts: int, device: torch.device) -> None:
        """Find out which slots each doubling fills."""
        super().begin(setting, num_hosts, device)
        self.seed = torch.tensor(self.space.action(Op.GERMINATE, blueprint=self.blueprint, tempo="3"), device=device)
        order = levels(setting.slots_each) * (len(self.space.slots) // setting.slots_each)
        shares = [self.at[level] if level < len(self.at) else torch.inf for level in order]
        self.due = torch.tensor(shares, dtype=torch.float64, device=device) - ROUNDING

    def decide(self, view: View, fresh: Bool[Tensor, " N"], uniform: Float[Tensor, "N A"]) -> Int[Tensor, "N H"]:
        signals = view.signals
        spent = signals.age / view.setting.episode if signals.spent is None else signals.spent
        wanted = (spent[:, None] >= self.due) & signals.legal[:, Op.GERMINATE] & (signals.slots.births == 0)
        first = self.due.expand_as(wanted).masked_fill(~wanted, torch.inf).argmin(1)
        plant = self.seed.repeat(len(first), 1)
        plant[:, Head.SLOT] = first
        return torch.where(wanted.any(1)[:, None], plant, self.wait(view))


def levels(slots: int) -> list[int]:
    """Return which doubling fills each slot behind a block: the first the middle one, the next those of both halves."""
    if not slots:
        return []
    half = [level + 1 for level in levels(slots // 2)]
    return [*half, 0, *[level + 1 for level in levels(slots - slots // 2 - 1)]]


class LearnedPolicy:
    """A policy that asks a controller, and samples its choices or takes the most likely ones.

    Args:
        controller: Controller to ask. It must be on the device of the hosts.
        greedy: Take the most likely choices instead of sampling.
        name: Name under which reports show the policy.

    Example:
        >>> policy = esper.LearnedPolicy(esper.load_controller(), greedy=True)
        >>> reports = list(esper.grow_host(trainer, policy, epochs=20))
    """

    def __init__(self, controller: Controller, *, greedy: bool = False, name: str = "learned") -> None:
        self.controller, self.greedy, self.name = controller, greedy, name

    def begin(self, setting: Setting, num_hosts: int, device: torch.device) -> None:
        """Prepare for a fleet of fresh hosts."""
        self.memory = self.controller.blank(num_hosts, device)
        table = describe(setting)
        self.blueprints = table.to(device).expand(num_hosts, *table.shape)

    def decide(self, view: View, fresh: Bool[Tensor, " N"], uniform: Float[Tensor, "N A"]) -> Int[Tensor, "N H"]:
        """Return an action for every host, and advance the hidden state."""
        blank = self.controller.blank(len(fresh), fresh.device)
        self.memory = HiddenState(
            *(torch.where(fresh[:, None], new, old) for new, old in zip(blank, self.memory, strict=True))
        )
        seen = Observation(*look(view), self.blueprints)
        self.last = seen, self.memory
        even = torch.full_like(uniform, 0.5) if self.greedy else uniform
        with torch.no_grad():
            choice, self.memory = self.controller.act(seen, self.memory, even)
        return choice.action


class SideBySide:
    """Several policies on one fleet: host n follows policy n modulo their number.

    With groups of that size, all policies start from equal weights and see equal batches.
    """

    name = "side by side"

    def __init__(self, policies: Sequence[Policy]) -> None:
        if not policies:
            raise EsperError("policies must hold at least one policy; it is empty")
        self.policies = [copy(policy) for policy in policies]  # a policy listed twice needs two memories

    def begin(self, setting: Setting, num_hosts: int, device: torch.device) -> None:
        for policy in self.policies:
            policy.begin(setting, num_hosts, device)

    def decide(self, view: View, fresh: Bool[Tensor, " N"], uniform: Float[Tensor, "N A"]) -> Int[Tensor, "N H"]:
        actions = torch.stack([policy.decide(view, fresh, uniform) for policy in self.policies])
        hosts = torch.arange(len(fresh), device=fresh.device)
        return actions[hosts % len(self.policies), hosts]


def _action(space: ActionSpace, written: Mapping[str, object]) -> tuple[int, ...]:
    if "op" not in written:
        raise EsperError(
            f"a PlanStep's action needs an op, and this has none: {dict(written)}; add one, such as 'WAIT'"
        )
    choices = {name: choice for name, choice in written.items() if name != "op"}
    return space.action(str(written["op"]), **choices)


def _index(space: ActionSpace, slot: str) -> int:
    return space.action(slot=slot)[Head.SLOT]


def _any(mask: Bool[Tensor, "N C"], uniform: Float[Tensor, "N C"]) -> Int[Tensor, " N"]:
    return sample(masked(torch.zeros_like(mask, dtype=torch.float32), mask), uniform)


def _settled(view: View) -> Bool[Tensor, " N"]:
    """Return a mask of the hosts without a seed between germination and fossilization or removal."""
    stage = view.signals.slots.stage
    return ((stage == Stage.DORMANT) | (stage == Stage.FOSSILIZED) | (stage == Stage.EMBARGOED)).all(1)
