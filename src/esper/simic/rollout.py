"""Rollouts: T decisions of all hosts of several fleets under a policy, joined along N."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esper.leyline.actions import Head
from esper.leyline.errors import EsperError
from esper.leyline.rng import Purpose, key, uniform
from esper.leyline.state import Setting
from esper.simic.lives import Actions, LifeState, Rent, Transition, drawn, lives, newborn, side_by_side
from esper.simic.rewards import RewardConfig, objective, reward
from esper.simic.workers import ALONE, Workers
from esper.tamiyo.features import Features, View
from esper.tamiyo.heads import check
from esper.tamiyo.network import Choice, Controller, HiddenState, Observation, describe, look, num_draws
from esper.tamiyo.policies import Policy, SideBySide, draws
from esper.tolaria import FleetEnv
from esper.tolaria.env import Step


@dataclass(frozen=True, kw_only=True)
class CollectConfig:
    """How rollouts are collected.

    Example:
        ```python
        CollectConfig(horizon=50, budget=2.0)  # 50 decisions of every host; seeds add at most twice its parameters
        ```
    """

    horizon: int = 25
    """Decisions of every host in one rollout; episodes may span several rollouts."""
    terminal: bool = True
    """Treat the time limit as the end of the episode, without bootstrapping. If false, the value after it is
    bootstrapped from the critic."""
    budget: float = float("inf")
    """Largest growth that a host may reach: added parameters over those of the bare host."""
    prices: tuple[float, ...] = ()
    """Prices of growth of which every episode draws one, as its rent; empty: all pay the rent of the update."""

    def __post_init__(self) -> None:
        if self.horizon < 1:
            raise EsperError(f"horizon must be at least 1, not {self.horizon}")
        if not self.budget > 0:
            raise EsperError(f"budget must be positive, not {self.budget}")
        if not all(price >= 0 for price in self.prices):
            raise EsperError(f"prices must not be negative, not {list(self.prices)}")


MOST_DECISIONS = 2**32
"""More than an episode can have."""


class Rollout(NamedTuple):
    """Observations, choices and rewards of T decisions of N hosts."""

    seen: Observation
    choice: Choice
    reward: Float[Tensor, "T N"]
    after: Float[Tensor, "T N"]
    """Critic's value of the state that the decision led to; 0 where the episode terminated."""
    ended: Bool[Tensor, "T N"]
    """Whether the episode ended after the decision."""
    sick: Bool[Tensor, "T N"]
    """Whether it ended early because the host failed."""
    start: Bool[Tensor, "T N"]
    """Whether this is the first decision of an episode."""
    comparable: Bool[Tensor, "T N"]
    """Whether the host's episode began together with those of its group."""
    objective: Float[Tensor, "T N"]
    """J after the decision."""
    score: Float[Tensor, "T N"]
    """Validation score after the decision."""
    growth: Float[Tensor, "T N"]
    """Growth after the decision."""
    groups: Int[Tensor, " N"]
    """Group of each host; its members share initial weights and data order."""
    memory: HiddenState
    """Hidden state before the first decision."""
    twin: Bool[Tensor, "T N S"] | None = None
    """Whether the slot held a twin before the decision; None if it was not recorded."""
    moment: Int[Tensor, "T N"] | None = None
    """Numbers of the host's episode and of the decision in it, as one number: siblings are compared where theirs are
    equal. None: siblings make their decisions at the same time."""


def whole_episodes(seen: Observation, choice: Choice, reward: Float[Tensor, "T N"], memory: HiddenState) -> Rollout:
    """Return a rollout of episodes that begin and end together, each host in a group of its own.

    J, score and growth are not known: the rewards stand in their place.
    """
    start, ended = torch.zeros_like(reward, dtype=torch.bool), torch.zeros_like(reward, dtype=torch.bool)
    start[0], ended[-1] = True, True
    return Rollout(
        seen=seen,
        choice=choice,
        reward=reward,
        after=torch.cat([choice.value[1:], torch.zeros_like(reward[:1])]),
        ended=ended,
        sick=torch.zeros_like(ended),
        start=start,
        comparable=torch.ones_like(ended),
        objective=reward,
        score=reward,
        growth=reward,
        groups=torch.arange(reward.shape[1], device=reward.device),
        memory=memory,
    )


def require_undiscounted(envs: Sequence[FleetEnv], gamma: float) -> None:
    """Raise EsperError if returns are discounted on a budget, where hosts that grow make fewer decisions."""
    if gamma != 1 and any(env.config.budget is not None for env in envs):
        raise EsperError(
            f"gamma must be 1 where episodes have a budget, not {gamma}: growing shortens them, and a discount per"
            " decision would reward that; set learn.ppo.gamma and learn.reward.gamma to 1"
        )


def require_finite(rollout: Rollout) -> None:
    """Raise EsperError if a recorded rollout holds rewards or features that are not finite."""
    if not bool(rollout.reward.isfinite().all() & rollout.seen.features.host.isfinite().all()):
        raise EsperError("episodes hold rewards or features that are not finite; record them again")


class Collector:
    """Several fleets that one policy acts on, and their state between two rollouts.

    Random numbers, padding and the numbers of groups are those of one worker that has the fleets of all.
    """

    def __init__(
        self,
        envs: Sequence[FleetEnv],
        controller: Controller,
        config: CollectConfig,
        rng_seed: int = 0,
        workers: Workers = ALONE,
    ) -> None:
        if not envs:
            raise EsperError("envs must hold at least one fleet")
        self.envs, self.config, self.rng_seed = list(envs), config, rng_seed
        self.device = envs[0].fleet.device
        self.sizes = [env.fleet.num_hosts for env in envs]
        offsets = torch.tensor([0, *(int(env.groups.max()) + 1 for env in envs)]).cumsum(0)
        slots = max(len(env.setting.space.slots) for env in envs)
        blueprints = max(len(env.setting.space.blueprints) for env in envs)
        every = workers.numbers(len(envs), sum(self.sizes), int(offsets[-1]), slots, blueprints)
        self.num_slots, self.num_blueprints = (max(column) for column in list(zip(*every, strict=True))[3:])
        before = [sum(row[i] for row in every[: workers.rank]) for i in range(3)]
        self.first_fleet, self.first_host, first_group = before
        ends = accumulate(row[0] for row in every)
        self.shares = [range(end - row[0], end) for end, row in zip(ends, every, strict=True)]
        """Indices of the fleets of each worker."""
        budgets = torch.full((sum(self.sizes),), config.budget, device=self.device).split(self.sizes)
        self.worlds = [(env.setting, budget) for env, budget in zip(envs, budgets, strict=True)]
        """The setting of each fleet, and the largest growth that its hosts may reach."""
        self.blueprints = torch.cat([self._described(env) for env in envs])
        pairs = zip(envs, (first_group + offsets).tolist(), strict=False)
        self.groups = torch.cat([env.groups + offset for env, offset in pairs])
        self.prices = torch.tensor(config.prices, device=self.device)  # once: a copy to a device waits
        self.decisions = 0
        self.states: Sequence[LifeState] = []
        self.memory = controller.blank(sum(self.sizes), self.device)

    def _described(self, env: FleetEnv) -> Tensor:
        table = describe(env.setting)
        padded = _padded(table, 0.0, (self.num_slots, self.num_blueprints))
        return padded.expand(env.fleet.num_hosts, *padded.shape)

    def begin(self, rent: float | Tensor) -> None:
        """Reset all fleets. Raises EsperError if a host has no legal op."""
        self.states = [newborn(env, price) for env, price in zip(self.envs, self.rents(rent), strict=True)]
        check(self.observe().legal.any(-1), Head.OP.name.lower())

    def observe(self, states: Sequence[LifeState] | None = None) -> Observation:
        """Return the policy's observation of all fleets, padded and joined along N."""
        states = self.states if states is None else states
        parts = [self._observe(state.view(*world)) for state, world in zip(states, self.worlds, strict=True)]
        joined = _Padded(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))
        return Observation(Features(joined.host, joined.slots), joined.legal, joined.affordable, self.blueprints)

    def _observe(self, view: View) -> "_Padded":
        features, legal, affordable = look(view)
        return _Padded(
            features.host,
            _padded(features.slots, 0.0, (self.num_slots,), 1),
            _padded(legal, False, (self.num_slots,), 2),
            _padded(affordable, False, (self.num_slots, self.num_blueprints), 1),
        )

    def moments(self, states: Sequence[LifeState]) -> Int[Tensor, " N"]:
        """Return the numbers of each host's episode and of the decision at hand, as one number."""
        pairs = zip(self.envs, states, strict=True)
        return torch.cat([env.state.generation * MOST_DECISIONS + state.signals.age for env, state in pairs])

    def rents(self, rent: float | Tensor) -> Sequence[Rent]:
        """Return what growth costs in episodes that begin now, for each fleet: siblings that draw it pay the same."""
        if not self.config.prices:
            return rent.split(self.sizes) if isinstance(rent, Tensor) else [rent] * len(self.envs)
        upcoming = torch.cat([env.upcoming for env in self.envs])
        chosen = uniform(key(self.rng_seed, Purpose.PRICE, self.groups, upcoming), 1)[:, 0]
        return self.prices[(chosen * len(self.prices)).long()].split(self.sizes)

    def draws(self) -> Float[Tensor, "N A"]:
        """Draw uniform numbers for every choice of every host."""
        self.decisions += 1
        numbers = num_draws(self.num_slots, self.num_blueprints)
        return drawn(self.rng_seed, self.decisions, sum(self.sizes), numbers, self.device, self.first_host)


class _Padded(NamedTuple):
    """What is observed of one fleet, with as many slots and blueprints as the largest has."""

    host: Tensor
    slots: Tensor
    legal: Tensor
    affordable: Tensor


def _padded(x: Tensor, value: float | bool, sizes: tuple[int, ...], axis: int = 0) -> Tensor:
    """Pad axes, from `axis` on, to these sizes."""
    for i, size in enumerate(sizes):
        missing = size - x.shape[axis + i]
        if missing:
            shape = list(x.shape)
            shape[axis + i] = missing
            x = torch.cat([x, x.new_full(shape, value)], axis + i)
    return x


def collect(fleets: Collector, controller: Controller, rent: float, rewards: RewardConfig) -> Rollout:
    """Collect a rollout under a controller. Episodes that begin during it pay `rent` until they end."""

    def choose(seen: Observation, states: Sequence[LifeState]) -> Choice:
        with torch.inference_mode():
            choice, fleets.memory = controller.act(seen, fleets.memory, fleets.draws())
        return choice

    def expect(seen: Observation) -> Tensor:
        with torch.inference_mode():
            return controller.expect(seen, fleets.memory)

    return _collect(fleets, choose, expect, rent, rewards)


def record(fleets: Collector, policies: Sequence[Policy], rent: float | Tensor, rewards: RewardConfig) -> Rollout:
    """Collect a rollout under one policy per fleet; values and log-probabilities in it are 0."""
    for policy, env in zip(policies, fleets.envs, strict=True):
        policy.begin(env.setting, env.fleet.num_hosts, fleets.device)
    no_value = torch.zeros(sum(fleets.sizes), device=fleets.device)

    def choose(seen: Observation, states: Sequence[LifeState]) -> Choice:
        actions = []
        uniforms = fleets.draws().split(fleets.sizes)
        for policy, (setting, budget), state, random in zip(policies, fleets.worlds, states, uniforms, strict=True):
            view = state.view(setting, budget)
            actions.append(policy.decide(view, state.fresh, random[:, : draws(setting)]))
        action = torch.cat(actions)
        log_probs = torch.zeros_like(action, dtype=torch.float32)
        return Choice(action, log_probs, no_value)

    return _collect(fleets, choose, lambda seen: no_value, rent, rewards)


def record_episodes(
    env: FleetEnv,
    policies: Sequence[Policy],
    controller: Controller,
    rent: float | Sequence[float],
    rewards: RewardConfig,
    rng_seed: int,
) -> Rollout:
    """Record one episode of every host under the given policies, for a controller to learn from.

    Args:
        env: Fleet to run; all episodes must begin together.
        policies: Host n follows policy n modulo their number.
        controller: Controller that will learn from the recording; it fixes the size of the hidden state.
        rent: Price of growth in J, or one for each policy.
        rewards: Which reward to record.
        rng_seed: Seed of the policies' random numbers.

    Returns:
        The decisions of all hosts, to be passed to `clone` or `learn_offline`, or kept with `save_episodes`.

    Example:
        ```python
        policies = [Heuristic(), Never()]
        episodes = record_episodes(env, policies, controller, rent=0.02, rewards=RewardConfig(), rng_seed=0)
        for report in clone(controller, [episodes]):
            print(report.epoch, report.held_out_loss)
        ```
    """
    require_undiscounted([env], rewards.gamma)
    fleets = Collector([env], controller, CollectConfig(horizon=env.setting.episode), rng_seed)
    paid = side_by_side(rent, len(policies), env.fleet.num_hosts, fleets.device)
    fleets.begin(paid)
    return record(fleets, [SideBySide(policies)], paid, rewards)


class _Earned(NamedTuple):
    """What one decision for all hosts led to, joined along N; fields as in `Rollout`."""

    reward: Tensor
    ended: Tensor
    sick: Tensor
    start: Tensor
    comparable: Tensor
    objective: Tensor
    score: Tensor
    growth: Tensor
    twin: Tensor
    bootstrap: Tensor
    """Critic's value after the last decision of a truncated episode; 0 where it does not count."""


def _collect(
    fleets: Collector,
    choose: Callable[[Observation, Sequence[LifeState]], Choice],
    expect: Callable[[Observation], Float[Tensor, " N"]],
    rent: float | Tensor,
    rewards: RewardConfig,
) -> Rollout:
    observations: list[Observation] = []
    choices: list[Choice] = []
    memory, rows, moments = fleets.memory, [], list[Tensor]()

    def decide(states: Sequence[LifeState]) -> Actions:
        moments.append(fleets.moments(states))
        observations.append(fleets.observe(states))
        choices.append(choose(observations[-1], states))
        return choices[-1].action.clone().split(fleets.sizes)

    decisions = lives(fleets.envs, fleets.states, decide, lambda: fleets.rents(rent))
    for transition in islice(decisions, fleets.config.horizon):
        rows.append(_earned(fleets, expect, transition, rewards))
        fleets.states = transition.after
        fleets.memory = HiddenState(*(old.where(~rows[-1].ended[:, None], 0.0) for old in fleets.memory))
    last_value = expect(fleets.observe())
    earned = _Earned(*(torch.stack(x) for x in zip(*rows, strict=True)))
    choice = Choice(*(torch.stack(x) for x in zip(*choices, strict=True)))
    next_value = torch.cat([choice.value[1:], last_value[None]])
    plain = {name: x for name, x in earned._asdict().items() if name != "bootstrap"}
    return Rollout(
        seen=in_order(observations),
        choice=choice,
        after=torch.where(earned.ended, earned.bootstrap, next_value),
        groups=fleets.groups,
        memory=memory,
        moment=torch.stack(moments) if any(env.config.budget is not None for env in fleets.envs) else None,
        **plain,
    )


def _earned(
    fleets: Collector,
    expect: Callable[[Observation], Float[Tensor, " N"]],
    transition: Transition,
    rewards: RewardConfig,
) -> _Earned:
    """Return what one decision led to. The value of hosts cut by a time limit is read where it does not end them."""
    worlds = zip(fleets.worlds, transition.before, transition.steps, strict=True)
    parts = [_earned_in(setting, state, step, rewards) for (setting, _), state, step in worlds]
    parts = [part._replace(twin=_padded(part.twin, False, (fleets.num_slots,), 1)) for part in parts]
    earned = _Earned(*(torch.cat(x) for x in zip(*parts, strict=True)))
    lives_on = earned.ended & ~earned.sick
    if not fleets.config.terminal and bool(lives_on.any()):
        return earned._replace(bootstrap=expect(_final_observation(fleets, transition)).where(lives_on, 0.0))
    return earned


def _earned_in(setting: Setting, state: LifeState, step: Step, rewards: RewardConfig) -> _Earned:
    """Return what one decision led to in one fleet, without what the critic expects."""
    ended = step.terminated | step.truncated
    total = reward(state.signals, step.final, state.rent, step.penalty, ended, rewards).total
    return _Earned(
        reward=total,
        ended=ended,
        sick=step.terminated,
        start=state.fresh,
        comparable=state.signals.sibling,
        objective=objective(step.final, state.rent),
        score=step.final.score.float(),
        growth=step.final.growth.float(),
        twin=state.signals.slots.blueprint == setting.space.twin,
        bootstrap=torch.zeros_like(total),
    )


def _final_observation(fleets: Collector, transition: Transition) -> Observation:
    """Observe the final signals of truncated episodes, before fresh hosts replaced them."""
    none_fresh = [torch.zeros_like(state.fresh) for state in transition.before]
    pairs = zip(transition.before, transition.steps, none_fresh, strict=True)
    return fleets.observe([state.followed_by(step.final, fresh, rent=0.0) for state, step, fresh in pairs])


def in_order(observations: Sequence[Observation]) -> Observation:
    """Stack the observations of consecutive decisions, of the same fleets."""
    host, slots = (torch.stack([o.features[i] for o in observations]) for i in range(2))
    legal, affordable = (torch.stack([getattr(o, name) for o in observations]) for name in ("legal", "affordable"))
    blueprints = observations[0].blueprints
    return Observation(
        Features(host, slots), legal, affordable, blueprints.expand(len(observations), *blueprints.shape)
    )
