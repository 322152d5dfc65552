"""Wrap a fleet as an environment: actions for every host go in, signals come out.

Hosts may be of different age. An episode ends after its last decision (truncated) or when the host fails (terminated);
a fresh host takes its place at once.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils._pytree import tree_map

from esper.leyline.errors import EsperError
from esper.leyline.rng import key
from esper.leyline.state import Signals, Split
from esper.tolaria.beginning import spending_of
from esper.tolaria.episodes import EnvConfig, EnvState, Good, Step
from esper.tolaria.fleet import Fleet
from esper.tolaria.governor import GovernorConfig, HealthHistory, empty_health, judge
from esper.tolaria.measuring import Measured
from esper.tolaria.recording import replayed
from esper.tolaria.setting import make_setting
from esper.tolaria.signals import Situation, signals_of

Record = TypeVar("Record", bound=tuple)


class EpochEnd(NamedTuple):
    """What an epoch led to."""

    sick: Bool[Tensor, " N"]
    """Whether the host has failed."""
    history: HealthHistory
    now: Signals
    final: Signals
    """Of failed hosts, the signals of their last good epoch."""


class FleetEnv:
    """An environment that trains the hosts of a fleet in episodes, and replaces a host when its episode ends.

    Call `reset` first, then `step` with an action for every host.

    Args:
        fleet: Hosts to train. The env gives them weights and data order of its own, from `config.rng_seed`.
        config: Length of episodes, groups, and the thresholds of failure.
        test: Data to evaluate hosts on when their episode ends.
        on_end: Called with a mask of the hosts whose episode ends, failed ones included, before fresh hosts replace
            them: the last moment at which `fleet.host(n)` returns the grown host.

    Raises:
        EsperError: If the group size does not divide the number of hosts.

    Example:
        >>> def keep(ended):
        ...     for n in ended.nonzero()[:, 0].tolist():
        ...         esper.save_model(f"host_{n}.safetensors", fleet.host(n))
        >>> env = FleetEnv(fleet, EnvConfig(episode=20), on_end=keep)
        >>> outcome = esper.evaluate(env, esper.Heuristic(), rent=0.02)
    """

    charges_measuring: bool | Bool[Tensor, " N"] = True
    """Whether hosts are charged for measuring the contribution of their seeds."""
    pauses: Sequence[float] = ()
    """Shares of the budget at which every host ends an epoch, however short it then is. Set by `pause_at`."""

    def __init__(
        self,
        fleet: Fleet,
        config: EnvConfig = EnvConfig(),
        test: Split | None = None,
        on_end: Callable[[Bool[Tensor, " N"]], None] | None = None,
    ) -> None:
        if fleet.num_hosts % config.group:
            raise EsperError(
                f"group ({config.group}) must divide the fleet's {fleet.num_hosts} hosts; change one of them"
            )
        self.fleet, self.config, self.test, self.on_end = fleet, config, test, on_end
        bare = fleet.trunk.layout.num_parameters
        costs = None if config.budget is None else fleet.costs
        facts = (fleet.task, fleet.slots, fleet.space, fleet.seed_sizes, bare, config.decisions, costs)
        self.setting = make_setting(*facts)._replace(slots_each=fleet.spec.slots)
        places = torch.arange(fleet.num_hosts, device=fleet.device)
        self.groups = places // config.group
        nan = torch.full_like(fleet.lr, torch.nan)
        unmeasured = Measured(nan, nan, nan, contribution=torch.full_like(fleet.vitals.contribution, torch.nan))
        self.state = EnvState(
            age=torch.zeros_like(places),
            sibling=torch.ones_like(fleet.everyone),
            births=torch.zeros_like(places),
            generation=torch.zeros_like(places),
            history=empty_health(fleet),
            good=Good(fleet.state, fleet.vitals, unmeasured),
        )

    def reset(self) -> Signals:
        """Replace all hosts by fresh ones and return their first signals."""
        age = self.groups % self.config.episode if self.config.staggered else torch.zeros_like(self.groups)
        self.fleet.budget, self.fleet.charges_measuring = self.life(), self.charges_measuring
        self.fleet.pauses = None
        if self.pauses and self.fleet.budget is not None:
            shares = torch.tensor(self.pauses, dtype=torch.float64, device=self.fleet.device)
            self.fleet.pauses = shares[:, None] * self.fleet.budget
        everyone = torch.ones_like(self.state.sibling)
        state, measured = self.renew(self.state._replace(age=age), everyone, everyone)
        self.state = state._replace(good=Good(self.fleet.state, self.fleet.vitals, measured))
        return self.first_signals(measured)

    def pause_at(self, shares: Sequence[float]) -> None:
        """Let every host end an epoch at these shares of its budget, which takes as many decisions more."""
        more = len(shares) - len(self.pauses)
        self.pauses, self.setting = tuple(shares), self.setting._replace(episode=self.setting.episode + more)

    def renew(
        self, state: EnvState, fresh: Bool[Tensor, " N"], together: Bool[Tensor, " N"]
    ) -> tuple[EnvState, Measured]:
        """Replace the `fresh` hosts; return the new state, and what all hosts measure.

        Where `together`, the whole group begins with equal weights; elsewhere a host begins with its own.
        """
        births, generation = state.births + fresh, state.generation + (fresh & together)
        self.fleet.reset(fresh, self.keys(together, births, generation))
        pairs = zip(empty_health(self.fleet), state.history, strict=True)
        state = state._replace(
            sibling=torch.where(fresh, together, state.sibling),
            births=births,
            generation=generation,
            history=HealthHistory(*(torch.where(fresh, new, old) for new, old in pairs)),
        )
        return state, self.fleet.evaluate(switch="bare")

    def keys(
        self, together: Bool[Tensor, " N"], births: Int[Tensor, " N"], generation: Int[Tensor, " N"]
    ) -> Int[Tensor, " N"]:
        """Return what determines the weights and batches of the episodes that begin."""
        shared = key(self.config.rng_seed, "group", self.groups, generation)
        alone = key(self.config.rng_seed, "place", torch.arange(len(births), device=births.device), births)
        return torch.where(together, shared, alone)

    def succeed(
        self, state: EnvState, ended: Bool[Tensor, " N"], over: Bool[Tensor, " N"]
    ) -> tuple[EnvState, Measured]:
        """Replace the hosts whose episode has ended: those that failed, and those that are `over`.

        Where episodes are counted in epochs, a failed host's replacement has a seed of its own, and stays until its
        group's episode ends. On a budget every episode is a whole one, and begins when the host's last one has ended.
        """
        if self.config.budget is None:
            return self.renew(state._replace(age=torch.where(over, 0, state.age)), ended, over)
        age, generation = torch.where(ended, 0, state.age), torch.where(ended, self.upcoming - 1, state.generation)
        return self.renew(state._replace(age=age, generation=generation), ended, torch.ones_like(ended))

    @property
    def upcoming(self) -> Int[Tensor, " N"]:
        """Return the number of each host's next episode in its group.

        Episodes of siblings with equal numbers begin with equal weights and batches. On a budget siblings drift apart;
        those that fall behind go on with the newest episode of their group.
        """
        own = self.state.generation
        newest = own.view(-1, self.config.group).amax(1).repeat_interleave(self.config.group)
        return torch.maximum(own + 1, newest)

    def first_signals(self, measured: Measured) -> Signals:
        """Return the signals of hosts that have not been trained yet."""
        unknown = torch.full_like(measured.loss, torch.nan, dtype=torch.float64)
        situation = self.situation(measured, unknown, torch.zeros_like(unknown))
        return replayed(self.fleet.programs, "first signals", partial(signals_of, self.fleet), (situation,))

    def situation(self, measured: Measured, train_loss: Tensor, flops: Tensor) -> Situation:
        """Return what is known of all hosts now."""
        fleet, state = self.fleet, self.state
        return Situation(
            fleet.state, fleet.vitals, measured, train_loss, flops, state.age, state.sibling, spending_of(fleet)
        )

    def life(self) -> Float[Tensor, " N"] | None:
        """Return the FLOPs of each host's episode; None if episodes are counted in epochs."""
        if self.config.budget is None:
            return None
        epoch = self.fleet.num_steps * self.fleet.config.batch_size * self.fleet.costs.host.train
        return torch.full_like(self.fleet.spent, self.config.budget * epoch)

    def flops(self) -> Int[Tensor, " N"]:
        """Return the FLOPs of the last epoch of each host, validation included."""
        return self.fleet.flops(self.charges_measuring)

    def step(self, actions: Int[Tensor, "N H"]) -> Step:
        """Apply an action to every host, train for one epoch, and replace the hosts whose episode has ended.

        Args:
            actions: One row per host, as `fleet.space.action` returns it. Illegal actions are refused, and count as
                waiting.

        Returns:
            The signals for the next decision, the signals this one led to, and which episodes ended.
        """
        before = self.fleet.spent
        refused, train_loss, measured = self.fleet.decide(actions)
        has_budget = self.config.budget is not None
        flops = self.fleet.spent - before if has_budget else self.flops().double()
        self.state = self.state._replace(age=self.state.age + 1)
        situation, thresholds = self.situation(measured, train_loss, flops), self.config.governor
        inputs = (situation, self.state, thresholds, self.setting.chance)
        end = replayed(self.fleet.programs, "end of an epoch", partial(epoch_end, self.fleet), inputs)
        self.state = state = self.state._replace(history=end.history)
        over = self.fleet.over if has_budget else state.age >= self.config.episode
        signals, ended, test = end.now, end.sick | over, None
        if bool(ended.any()):  # waits for the device
            if self.on_end is not None:
                self.on_end(ended)
            test = None if self.test is None else self.fleet.evaluate(self.test)
            self.state, renewed = self.succeed(state, ended, over)
            measured = choose(ended, renewed, measured)
            signals = choose(ended, self.first_signals(measured), end.now)
        self.state = self.state._replace(good=Good(self.fleet.state, self.fleet.vitals, measured))
        penalty = end.sick * self.config.penalty
        return Step(signals, end.final, penalty, refused, end.sick, over & ~end.sick, test)


def choose(rows: Bool[Tensor, " N"], yes: Record, no: Record) -> Record:
    """Return a record with the rows of `yes` where `rows` is true, and of `no` elsewhere."""

    def chosen(a: Tensor | None, b: Tensor | None) -> Tensor | None:
        return None if a is None or b is None else torch.where(rows.view(-1, *[1] * (b.ndim - 1)), a, b)

    return tree_map(chosen, yes, no)


def epoch_end(
    fleet: Fleet, situation: Situation, state: EnvState, thresholds: GovernorConfig, chance: float
) -> EpochEnd:
    """Return which hosts have failed, and what the epoch led to. Of the fleet, this reads what never changes."""
    score, good = situation.measured.score, state.good
    sick, history = judge(state.history, situation.vitals.sane, situation.train_loss, score, chance, thresholds)
    now = signals_of(fleet, situation)
    last = situation._replace(slots=good.state, vitals=good.vitals, measured=good.measured)
    return EpochEnd(sick, history, now, choose(sick, signals_of(fleet, last), now))
