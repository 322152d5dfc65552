"""The one loop over lives: observe, decide, step, remember.

`lives` yields one `Transition` after the other, without end; rollouts, recordings, searches and exams fold over it.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esper.leyline.errors import EsperError
from esper.leyline.rng import Purpose, key, uniform
from esper.leyline.state import Setting, Signals
from esper.tamiyo.features import ScoreHistory, View, empty_history, remember
from esper.tamiyo.policies import Policy, draws
from esper.tolaria.env import Step

Actions = Sequence[Int[Tensor, "N H"]]
"""One tensor of actions per fleet."""


@runtime_checkable
class World(Protocol):
    """What hosts live in: a `FleetEnv`, or one host alone."""

    setting: Setting

    def reset(self) -> Signals:
        """Replace all hosts by fresh ones and return their first signals."""
        ...

    def step(self, actions: Int[Tensor, "N H"]) -> Step:
        """Apply an action to every host, and train for one epoch."""
        ...


class LifeState(NamedTuple):
    """What the next decision for one fleet depends on, besides its world and the policy's hidden state."""

    signals: Signals
    history: ScoreHistory
    rent: Float[Tensor, " N"]
    fresh: Bool[Tensor, " N"]
    """Whether the host's episode has just begun."""

    def view(self, setting: Setting, budget: Float[Tensor, " N"]) -> View:
        """Return what a policy sees. The budget is the largest growth that each host may reach."""
        return View(self.signals, self.history, setting, self.rent, budget)

    def followed_by(self, signals: Signals, fresh: Bool[Tensor, " N"], rent: "Rent") -> "LifeState":
        """Return the state after a step. Hosts that are `fresh` pay another rent, and have no history."""
        return LifeState(signals, remember(self.history, signals, fresh), torch.where(fresh, rent, self.rent), fresh)


class Transition(NamedTuple):
    """One decision for every host of every fleet and what it led to; one entry per fleet."""

    before: Sequence[LifeState]
    actions: Actions
    steps: Sequence[Step]
    after: Sequence[LifeState]


Decide = Callable[[Sequence[LifeState]], Actions]
"""Chooses an action for every host of every fleet."""
Rent = float | Float[Tensor, " N"]
"""Price of growth: one for all hosts of a fleet, or one for each."""


def side_by_side(rent: float | Sequence[float], policies: int, hosts: int, device: torch.device) -> Rent:
    """Return the price that each host pays if host n follows policy n modulo their number.

    `rent` is one price, or one for each policy.
    """
    if not isinstance(rent, Sequence):
        return rent
    if len(rent) != policies:
        raise EsperError(f"rent must be one price, or one for each of the {policies} policies, not {len(rent)} prices")
    return torch.tensor(rent, dtype=torch.float32, device=device).repeat(hosts // policies)


def newborn(world: World, rent: Rent) -> LifeState:
    """Reset a world and return its first state."""
    signals = world.reset()
    fresh = torch.ones_like(signals.sibling)
    history = remember(empty_history(len(fresh), fresh.device), signals, fresh)
    rents = torch.zeros_like(signals.score, dtype=torch.float32) + rent
    return LifeState(signals, history, rents, fresh)


def lives(
    worlds: Sequence[World], states: Sequence[LifeState], decide: Decide, rents: Callable[[], Sequence[Rent]]
) -> Iterator[Transition]:
    """Yield the decisions for all hosts of several fleets, without end.

    Args:
        worlds: Where the hosts live.
        states: State of each world.
        decide: Chooses the actions.
        rents: Returns the price of growth in episodes that begin after the next decision, for each fleet.
    """
    while True:
        actions, prices = decide(states), rents()
        steps = [world.step(chosen) for world, chosen in zip(worlds, actions, strict=True)]
        after = [
            state.followed_by(step.signals, step.terminated | step.truncated, price)
            for state, step, price in zip(states, steps, prices, strict=True)
        ]
        yield Transition(states, actions, steps, after)
        states = after


def episode(
    world: World, policy: Policy, rent: Rent, rng_seed: int = 0, budget: float = float("inf")
) -> Iterator[Transition]:
    """Yield the decisions of a policy for one episode of fresh hosts.

    Args:
        world: Where they live. It is reset first, and must not be staggered: some episodes would be cut short.
        policy: Policy that chooses the actions.
        rent: Price of growth that it pays: one for all hosts, or one for each.
        rng_seed: Seed of sampled actions.
        budget: Largest growth that it may reach.
    """
    state, setting, decisions = newborn(world, rent), world.setting, count()
    hosts, device, budgets = len(state.fresh), state.fresh.device, torch.full_like(state.rent, budget)
    policy.begin(setting, hosts, device)

    def decide(states: Sequence[LifeState]) -> Actions:
        (now,) = states
        random = drawn(rng_seed, next(decisions), hosts, draws(setting), device)
        return [policy.decide(now.view(setting, budgets), now.fresh, random)]

    yield from islice(lives([world], [state], decide, lambda: [rent]), setting.episode)


def drawn(
    rng_seed: int, decision: int, hosts: int, numbers: int, device: torch.device, first: int = 0
) -> Float[Tensor, "N A"]:
    """Draw the uniform numbers of one decision for every host, keyed by the host's place and the decision's number.

    `first` is the place of the first of these hosts.
    """
    places = torch.arange(first, first + hosts, device=device)
    return uniform(key(key(rng_seed, Purpose.ACTION, decision), places), numbers)
