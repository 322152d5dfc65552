"""The fleet as an environment: a decision for every host goes in, what was measured comes out; lives end and begin.

Hosts may be of different age. A life ends when its time is up (truncated) or when the host falls sick (terminated); a
fresh host takes its place at once.
"""

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils._pytree import tree_map

from esper.kasmina.blueprints import blueprint
from esper.kasmina.lifecycle import legal
from esper.leyline.actions import Graft
from esper.leyline.errors import EsperError
from esper.leyline.rng import key
from esper.leyline.state import Setting, Signals, SlotState, Split, Vitals
from esper.tolaria.fleet import Fleet, Measured
from esper.tolaria.governor import GovernorConfig, HealthHistory, empty_health, judge

Record = TypeVar("Record", Signals, Measured)


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    episode: int = 25
    """Decisions in a host's life."""
    group: int = 1
    """Hosts that start from the same weights and see the same batches, so that only their actions differ."""
    staggered: bool = False
    """Let the first lives end at different times, instead of all together."""
    penalty: float = 0.1
    """What falling sick costs, once."""
    rng_seed: int = 0
    governor: GovernorConfig = GovernorConfig()

    def __post_init__(self) -> None:
        for name in ("episode", "group"):
            if getattr(self, name) < 1:
                raise EsperError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not self.penalty >= 0:
            raise EsperError(f"penalty must not be negative, not {self.penalty}")


class Step(NamedTuple):
    """What a decision led to."""

    signals: Signals
    """Where the next decision is made from; a fresh host's, where a life has ended."""
    final: Signals
    """Where this decision led: of a host that fell sick, its last good epoch."""
    penalty: Float[Tensor, " N"]
    refused: Bool[Tensor, " N"]
    terminated: Bool[Tensor, " N"]
    truncated: Bool[Tensor, " N"]
    test: Measured | None = None
    """What hosts whose lives have ended score on test data, where an exam is held."""


class Good(NamedTuple):
    """What a fleet's last good epoch said of it. A sick host is replaced, so its weights are not kept."""

    state: SlotState
    vitals: Vitals
    measured: Measured


class FleetEnv:
    """Lives of hosts in the places of a fleet."""

    def __init__(self, fleet: Fleet, config: EnvConfig = EnvConfig(), test: Split | None = None) -> None:
        if fleet.num_hosts % config.group:
            raise EsperError(f"group ({config.group}) must divide the fleet's {fleet.num_hosts} hosts")
        self.fleet, self.config, self.test = fleet, config, test
        self.setting = setting_of(fleet, config.episode)
        places = torch.arange(fleet.num_hosts, device=fleet.device)
        self.groups = places // config.group
        self.births = torch.zeros_like(places)
        """Lives begun in each place."""
        self.generation = torch.zeros_like(places)
        """Lives begun by each place's group together."""

    def reset(self) -> Signals:
        """Fresh hosts everywhere."""
        fleet = self.fleet
        self.age = torch.zeros_like(self.groups)
        if self.config.staggered:
            self.age = self.groups % self.config.episode
        self.sibling = torch.ones_like(self.fleet.everyone)
        self.history: HealthHistory = empty_health(fleet)
        measured = self.renew(self.sibling, self.sibling)
        self.good = Good(fleet.state, fleet.vitals, measured)
        return self.first_signals(measured)

    def renew(self, fresh: Bool[Tensor, " N"], together: Bool[Tensor, " N"]) -> Measured:
        """Fresh hosts in some places: with the whole group where `together`, else alone. Returns what they measure."""
        self.births += fresh
        self.generation += fresh & together
        shared = key(self.config.rng_seed, "group", self.groups, self.generation)
        alone = key(self.config.rng_seed, "place", torch.arange(len(fresh), device=fresh.device), self.births)
        self.fleet.reset(fresh, torch.where(together, shared, alone))
        self.sibling = torch.where(fresh, together, self.sibling)
        empty = empty_health(self.fleet)
        pairs = zip(empty, self.history, strict=True)
        self.history = HealthHistory(*(torch.where(fresh, new, old) for new, old in pairs))
        return self.fleet.evaluate_bare()

    def first_signals(self, measured: Measured) -> Signals:
        """Of hosts that were not trained yet."""
        unknown = torch.full_like(measured.loss, torch.nan, dtype=torch.float64)
        return self.signals(measured, unknown, torch.zeros_like(unknown), self.fleet)

    def signals(self, measured: Measured, train_loss: Tensor, flops: Tensor, of: Fleet | Good) -> Signals:
        return Signals(
            score=measured.score,
            metric=measured.metric,
            loss=measured.loss,
            train_loss=train_loss,
            growth=self.fleet.growth(of.state),
            flops=flops,
            age=self.age,
            sibling=self.sibling,
            legal=legal(of.state, of.vitals, self.fleet.lifecycle),
            slots=of.state,
            vitals=of.vitals,
        )

    def flops(self) -> Int[Tensor, " N"]:
        """What the last epoch cost each host."""
        return self.fleet.flops()

    def step(self, actions: Int[Tensor, "N H"]) -> Step:
        """One decision for every host, one epoch, and fresh hosts where lives have ended."""
        refused, train_loss, measured = self.fleet.decide(actions)
        self.age = self.age + 1
        chance, flops = self.setting.chance, self.flops().double()
        sane = self.fleet.vitals.sane
        sick, self.history = judge(self.history, sane, train_loss, measured.score, chance, self.config.governor)
        truncated = (self.age >= self.config.episode) & ~sick
        now = self.signals(measured, train_loss, flops, self.fleet)
        final = _choose(sick, self.signals(self.good.measured, train_loss, flops, self.good), now)
        signals, penalty = now, sick * self.config.penalty
        over = self.age >= self.config.episode
        ended = sick | over
        test = None
        if bool(ended.any()):  # waits for the device
            test = None if self.test is None else self.fleet.evaluate_on(self.test)
            self.age = torch.where(over, 0, self.age)
            # A host that falls sick is replaced by one of its own seed, which lives out the group's time.
            measured = _choose(ended, self.renew(ended, over), measured)
            signals = _choose(ended, self.first_signals(measured), now)
        self.good = Good(self.fleet.state, self.fleet.vitals, measured)
        return Step(signals, final, penalty, refused, sick, truncated, test)


def setting_of(fleet: Fleet, episode: int) -> Setting:
    """What a controller needs to know of a fleet's hosts."""
    stream = fleet.slots[0].stream
    bare = fleet.trunk.layout.num_parameters
    return Setting(
        space=fleet.space,
        episode=episode,
        chance=fleet.objective.chance(fleet.num_outputs),
        guess=fleet.objective.guess(fleet.num_outputs),
        parameters=bare,
        families=tuple(blueprint(name, stream).spec.family for name in fleet.space.blueprints),
        seed_parameters=fleet.seed_sizes[:, :, Graft.ADD] / bare,
    )


def _choose(rows: Bool[Tensor, " N"], yes: Record, no: Record) -> Record:
    """One record's rows where `rows`, the other's elsewhere."""
    return tree_map(lambda a, b: torch.where(rows.view(-1, *[1] * (b.ndim - 1)), a, b), yes, no)
