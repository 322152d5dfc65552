"""Policies behind one protocol: rules that anyone could have written, and the learned one.

A policy decides for all hosts of a fleet at once. What it remembers of their lives it keeps itself.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esper.leyline.actions import ActionSpace, Head, Op
from esper.leyline.errors import EsperError
from esper.leyline.lifecycle import Stage
from esper.leyline.state import Setting
from esper.tamiyo.features import View
from esper.tamiyo.heads import masked, sample
from esper.tamiyo.network import Controller, HiddenState, Observation, describe, look, num_draws


@runtime_checkable
class Policy(Protocol):
    """Decides once per epoch for every host of a fleet."""

    @property
    def name(self) -> str: ...

    def begin(self, setting: Setting, num_hosts: int, device: torch.device) -> None:
        """A fleet of newborn hosts."""
        ...

    def decide(self, view: View, fresh: Bool[Tensor, " N"], uniform: Float[Tensor, "N A"]) -> Int[Tensor, "N H"]:
        """An action for every host; `fresh` ones have just been born."""
        ...


def draws(setting: Setting) -> int:
    """How many uniform numbers a decision takes."""
    return num_draws(len(setting.space.slots), len(setting.space.blueprints))


class Rule:
    """A policy without memory: subclasses say what to do with which hosts; all others wait."""

    name = "rule"

    def begin(self, setting: Setting, num_hosts: int, device: torch.device) -> None:
        self.space = setting.space

    def decide(self, view: View, fresh: Bool[Tensor, " N"], uniform: Float[Tensor, "N A"]) -> Int[Tensor, "N H"]:
        return self.wait(view)

    def wait(self, view: View) -> Int[Tensor, "N H"]:
        return self.all(view, self.space.action())

    def all(self, view: View, action: Sequence[int]) -> Int[Tensor, "N H"]:
        return torch.tensor(action, device=view.signals.age.device).repeat(len(view.signals.age), 1)


class Never(Rule):
    """Never grows."""

    name = "never"


class RandomLegal(Rule):
    """Any legal op, any legal slot for it, any choice of the other heads."""

    name = "random"

    def decide(self, view: View, fresh: Bool[Tensor, " N"], uniform: Float[Tensor, "N A"]) -> Int[Tensor, "N H"]:
        parts = uniform.split(self.space.sizes, dim=1)
        legal = view.signals.legal
        op = _any(legal.any(2), parts[Head.OP])
        slot = _any(legal[torch.arange(len(op), device=op.device), op], parts[Head.SLOT])
        rest = [_any(torch.ones_like(part, dtype=torch.bool), part) for part in parts[Head.BLUEPRINT :]]
        return torch.stack([op, slot, *rest], 1)


@dataclass(frozen=True)
class PlanStep:
    """One line of a written plan."""

    decision: int
    action: Mapping[str, object]
    """`{"op": "GERMINATE", "slot": "s0", "blueprint": "conv_heavy"}`"""


class FixedPlan(Rule):
    """Does what is written, at its time or as soon after as it is legal, one thing a decision."""

    def __init__(self, plan: Sequence[PlanStep], name: str = "plan") -> None:
        self.plan, self.name = sorted(plan, key=lambda line: line.decision), name

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


class Gardener(Rule):
    """Plants one blueprint in empty slots, in order, when `wants` says so in the first half of a life; keeps what
    contributes, prunes the rest."""

    def __init__(self, blueprint: str | None = None, slots: Sequence[str] | None = None, **choices: object) -> None:
        self.blueprint, self.slots, self.choices = blueprint, slots, choices

    def wants(self, view: View) -> Bool[Tensor, " N"]:
        raise NotImplementedError

    def prefers(self, view: View) -> Float[Tensor, "N S"]:
        """The slot of the highest value is planted in first."""
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
        early = view.signals.age < view.setting.episode // 2  # later there is rent to pay, and no time to learn
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
    """Grows one seed at a time: while nothing is on its way."""

    name = "heuristic"

    def wants(self, view: View) -> Bool[Tensor, " N"]:
        return _settled(view)


class Schedule(Gardener):
    """Plants at even intervals, whatever is measured."""

    name = "schedule"

    def __init__(self, every: int = 5, **options: object) -> None:
        super().__init__(**options)  # pyright: ignore[reportArgumentType]
        self.every = every

    def wants(self, view: View) -> Bool[Tensor, " N"]:
        return view.signals.age % self.every == 0


class Oversized(Gardener):
    """Plants in every slot at the beginning, and prunes what turns out to contribute nothing."""

    name = "oversized"

    def wants(self, view: View) -> Bool[Tensor, " N"]:
        return view.signals.age < len(self.space.slots)


class Plateau(Gardener):
    """Plants when the score has not risen."""

    name = "plateau"

    def __init__(self, patience: int = 1, **options: object) -> None:
        super().__init__(**options)  # pyright: ignore[reportArgumentType]
        self.patience = patience

    def wants(self, view: View) -> Bool[Tensor, " N"]:
        return _settled(view) & (view.history.since_best >= self.patience)


class GapTrigger(Gardener):
    """Plants while training and validation losses are close: the host is too small, not too specialised."""

    name = "gap"

    def __init__(self, gap: float = 0.1, **options: object) -> None:
        super().__init__(**options)  # pyright: ignore[reportArgumentType]
        self.gap = gap

    def wants(self, view: View) -> Bool[Tensor, " N"]:
        apart = (view.signals.loss - view.signals.train_loss) / view.setting.guess
        return _settled(view) & (apart < self.gap) & (view.signals.age > 0)


class GreedyGradient(Gardener):
    """Plants one seed at a time where the loss pulls hardest at the stream, or, `against` it, where it pulls least."""

    def __init__(self, *, against: bool = False, **options: object) -> None:
        super().__init__(**options)  # pyright: ignore[reportArgumentType]
        self.against, self.name = against, "least gradient" if against else "gradient"

    def wants(self, view: View) -> Bool[Tensor, " N"]:
        return _settled(view) & (view.signals.age > 0)

    def prefers(self, view: View) -> Float[Tensor, "N S"]:
        return -view.signals.vitals.pull if self.against else view.signals.vitals.pull


class LearnedPolicy:
    """A controller at work: sampled, or always the likeliest choice."""

    def __init__(self, controller: Controller, *, greedy: bool = False, name: str = "learned") -> None:
        self.controller, self.greedy, self.name = controller, greedy, name

    def begin(self, setting: Setting, num_hosts: int, device: torch.device) -> None:
        self.memory = self.controller.blank(num_hosts, device)
        table = describe(setting.families, setting.seed_parameters)
        self.blueprints = table.to(device).expand(num_hosts, *table.shape)

    def decide(self, view: View, fresh: Bool[Tensor, " N"], uniform: Float[Tensor, "N A"]) -> Int[Tensor, "N H"]:
        blank = self.controller.blank(len(fresh), fresh.device)
        self.memory = HiddenState(
            *(torch.where(fresh[:, None], new, old) for new, old in zip(blank, self.memory, strict=True))
        )
        seen = Observation(*look(view), self.blueprints)
        even = torch.full_like(uniform, 0.5) if self.greedy else uniform
        with torch.no_grad():
            choice, self.memory = self.controller.act(seen, self.memory, even)
        return choice.action


class SideBySide:
    """Several policies on one fleet: host n is played by the policy numbered n modulo their count.

    With groups of that size, every policy gets a host of the same weights and the same batches.
    """

    name = "side by side"

    def __init__(self, policies: Sequence[Policy]) -> None:
        if not policies:
            raise EsperError("policies must hold at least one")
        self.policies = [copy(policy) for policy in policies]  # one that is here twice remembers two things

    def begin(self, setting: Setting, num_hosts: int, device: torch.device) -> None:
        for policy in self.policies:
            policy.begin(setting, num_hosts, device)

    def decide(self, view: View, fresh: Bool[Tensor, " N"], uniform: Float[Tensor, "N A"]) -> Int[Tensor, "N H"]:
        actions = torch.stack([policy.decide(view, fresh, uniform) for policy in self.policies])
        hosts = torch.arange(len(fresh), device=fresh.device)
        return actions[hosts % len(self.policies), hosts]


def _action(space: ActionSpace, written: Mapping[str, object]) -> tuple[int, ...]:
    if "op" not in written:
        raise EsperError(f"a line of a plan needs an op, and this has none: {dict(written)}")
    choices = {name: choice for name, choice in written.items() if name != "op"}
    return space.action(str(written["op"]), **choices)


def _index(space: ActionSpace, slot: str) -> int:
    return space.action(slot=slot)[Head.SLOT]


def _any(mask: Bool[Tensor, "N C"], uniform: Float[Tensor, "N C"]) -> Int[Tensor, " N"]:
    return sample(masked(torch.zeros_like(mask, dtype=torch.float32), mask), uniform)


def _settled(view: View) -> Bool[Tensor, " N"]:
    """No seed is on its way in or out."""
    stage = view.signals.slots.stage
    return ((stage == Stage.DORMANT) | (stage == Stage.FOSSILIZED) | (stage == Stage.EMBARGOED)).all(1)
