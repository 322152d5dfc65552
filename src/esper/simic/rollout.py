"""Rollouts: T decisions of all hosts of several fleets under a policy, joined along N."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esper.leyline.actions import Head
from esper.leyline.errors import EsperError
from esper.leyline.rng import Purpose, key, uniform
from esper.leyline.state import Signals
from esper.simic.rewards import RewardConfig, objective, reward
from esper.tamiyo.features import Features, ScoreHistory, View, empty_history, remember
from esper.tamiyo.heads import check
from esper.tamiyo.network import Choice, Controller, HiddenState, Observation, describe, look, num_draws
from esper.tamiyo.policies import Policy, SideBySide, draws
from esper.tolaria import FleetEnv


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

    def __post_init__(self) -> None:
        if self.horizon < 1:
            raise EsperError(f"horizon must be at least 1, not {self.horizon}")
        if not self.budget > 0:
            raise EsperError(f"budget must be positive, not {self.budget}")


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


def require_finite(rollout: Rollout) -> None:
    """Raise EsperError if a recorded rollout holds rewards or features that are not finite."""
    if not bool(rollout.reward.isfinite().all() & rollout.seen.features.host.isfinite().all()):
        raise EsperError("episodes hold rewards or features that are not finite; record them again")


class FleetState(NamedTuple):
    """What one fleet's next decision depends on, besides the env and the policy's hidden state."""

    signals: Signals
    history: ScoreHistory
    rent: Float[Tensor, " N"]
    fresh: Bool[Tensor, " N"]
    """Whether the host's episode has just begun."""


class Collector:
    """Several fleets that one policy acts on, and their state between two rollouts."""

    def __init__(
        self, envs: Sequence[FleetEnv], controller: Controller, config: CollectConfig, rng_seed: int = 0
    ) -> None:
        if not envs:
            raise EsperError("envs must hold at least one fleet")
        self.envs, self.config, self.rng_seed = list(envs), config, rng_seed
        self.device = envs[0].fleet.device
        self.num_slots = max(len(env.setting.space.slots) for env in envs)
        self.num_blueprints = max(len(env.setting.space.blueprints) for env in envs)
        self.sizes = [env.fleet.num_hosts for env in envs]
        self.blueprints = torch.cat([self._described(env) for env in envs])
        offsets = torch.tensor([0, *(int(env.groups.max()) + 1 for env in envs)]).cumsum(0)
        self.groups = torch.cat([env.groups + offset for env, offset in zip(envs, offsets.tolist(), strict=False)])
        self.decisions = 0
        self.states: list[FleetState] = []
        self.memory = controller.blank(sum(self.sizes), self.device)

    def _described(self, env: FleetEnv) -> Tensor:
        setting = env.setting
        table = describe(setting.families, setting.seed_parameters)
        padded = self._padded(table, 0.0, (self.num_slots, self.num_blueprints))
        return padded.expand(env.fleet.num_hosts, *padded.shape)

    @staticmethod
    def _padded(x: Tensor, value: float | bool, sizes: tuple[int, ...], axis: int = 0) -> Tensor:
        """Pad axes, from `axis` on, to these sizes."""
        for i, size in enumerate(sizes):
            missing = size - x.shape[axis + i]
            if missing:
                shape = list(x.shape)
                shape[axis + i] = missing
                x = torch.cat([x, x.new_full(shape, value)], axis + i)
        return x

    def begin(self, rent: float) -> None:
        """Reset all fleets. Raises EsperError if a host has no legal op."""
        self.states = []
        for env in self.envs:
            signals = env.reset()
            all_hosts = torch.ones_like(signals.sibling)
            history = remember(empty_history(len(all_hosts), self.device), signals, all_hosts)
            self.states.append(
                FleetState(signals, history, torch.full_like(signals.score, rent, dtype=torch.float32), all_hosts)
            )
        check(self.observe().legal.any(-1), Head.OP.name.lower())

    def observe(self) -> Observation:
        """Return the policy's observation of all fleets, padded and joined along N."""
        parts = [self._observe(env, state) for env, state in zip(self.envs, self.states, strict=True)]
        joined = [torch.cat(tensors) for tensors in zip(*parts, strict=True)]
        return Observation(Features(joined[0], joined[1]), joined[2], joined[3], self.blueprints)

    def view(self, env: FleetEnv, state: FleetState) -> View:
        return View(
            state.signals, state.history, env.setting, state.rent, torch.full_like(state.rent, self.config.budget)
        )

    def _observe(self, env: FleetEnv, state: FleetState) -> tuple[Tensor, ...]:
        features, legal, affordable = look(self.view(env, state))
        return (
            features.host,
            self._padded(features.slots, 0.0, (self.num_slots,), 1),
            self._padded(legal, False, (self.num_slots,), 2),
            self._padded(affordable, False, (self.num_slots, self.num_blueprints), 1),
        )

    def draws(self) -> Float[Tensor, "N A"]:
        """Draw uniform numbers for every choice of every host, keyed by the host's place and the decision's number."""
        places = torch.arange(sum(self.sizes), device=self.device)
        self.decisions += 1
        keys = key(key(self.rng_seed, Purpose.ACTION, self.decisions), places)
        return uniform(keys, num_draws(self.num_slots, self.num_blueprints))


def collect(fleets: Collector, controller: Controller, rent: float, rewards: RewardConfig) -> Rollout:
    """Collect a rollout under a controller. Episodes that begin during it pay `rent` until they end."""

    def choose(seen: Observation) -> Choice:
        with torch.inference_mode():
            choice, fleets.memory = controller.act(seen, fleets.memory, fleets.draws())
        return choice

    def expect(seen: Observation) -> Tensor:
        with torch.inference_mode():
            return controller.expect(seen, fleets.memory)

    return _collect(fleets, choose, expect, rent, rewards)


def record(fleets: Collector, policies: Sequence[Policy], rent: float, rewards: RewardConfig) -> Rollout:
    """Collect a rollout under one policy per fleet; values and log-probabilities in it are 0."""
    for policy, env in zip(policies, fleets.envs, strict=True):
        policy.begin(env.setting, env.fleet.num_hosts, fleets.device)
    no_value = torch.zeros(sum(fleets.sizes), device=fleets.device)

    def choose(seen: Observation) -> Choice:
        actions = []
        uniforms = fleets.draws().split(fleets.sizes)
        for policy, env, state, random in zip(policies, fleets.envs, fleets.states, uniforms, strict=True):
            actions.append(policy.decide(fleets.view(env, state), state.fresh, random[:, : draws(env.setting)]))
        action = torch.cat(actions)
        log_probs = torch.zeros_like(action, dtype=torch.float32)
        return Choice(action, log_probs, no_value)

    return _collect(fleets, choose, lambda seen: no_value, rent, rewards)


def record_episodes(
    env: FleetEnv, policies: Sequence[Policy], controller: Controller, rent: float, rewards: RewardConfig, rng_seed: int
) -> Rollout:
    """Record one episode of every host under the given policies, for a controller to learn from.

    Args:
        env: Fleet to run; all episodes must begin together.
        policies: Host n follows policy n modulo their number.
        controller: Controller that will learn from the recording; it fixes the size of the hidden state.
        rent: Price of growth in J.
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
    fleets = Collector([env], controller, CollectConfig(horizon=env.setting.episode), rng_seed)
    fleets.begin(rent)
    return record(fleets, [SideBySide(policies)], rent, rewards)


def _collect(
    fleets: Collector,
    choose: Callable[[Observation], Choice],
    expect: Callable[[Observation], Float[Tensor, " N"]],
    rent: float,
    rewards: RewardConfig,
) -> Rollout:
    rows: list[tuple[Tensor, ...]] = []
    observations, choices = [], []
    initial_memory = fleets.memory
    for _ in range(fleets.config.horizon):
        seen = fleets.observe()
        start = torch.cat([state.fresh for state in fleets.states])
        choice = choose(seen)
        observations.append(seen)
        choices.append(choice)
        rows.append((start, *_step(fleets, expect, choice.action, rent, rewards)))
    last_value = expect(fleets.observe())
    start, reward, ended, sick, bootstrap, comparable, j, score, growth = (
        torch.stack(x) for x in zip(*rows, strict=True)
    )
    choice = Choice(*(torch.stack(x) for x in zip(*choices, strict=True)))
    next_value = torch.cat([choice.value[1:], last_value[None]])
    return Rollout(
        seen=_stacked(observations),
        choice=choice,
        reward=reward,
        after=torch.where(ended, bootstrap, next_value),
        ended=ended,
        sick=sick,
        start=start,
        comparable=comparable,
        objective=j,
        score=score,
        growth=growth,
        groups=fleets.groups,
        memory=initial_memory,
    )


def _step(
    fleets: Collector,
    expect: Callable[[Observation], Float[Tensor, " N"]],
    action: Int[Tensor, "N H"],
    rent: float,
    rewards: RewardConfig,
) -> tuple[Tensor, ...]:
    """Apply one decision of every fleet; returns what `_collect` stacks over time."""
    results = []
    states = []
    for env, state, chosen in zip(fleets.envs, fleets.states, action.clone().split(fleets.sizes), strict=True):
        step = env.step(chosen)
        ended = step.terminated | step.truncated
        total = reward(state.signals, step.final, state.rent, step.penalty, ended, rewards).total
        terminal = step.terminated | fleets.config.terminal
        j = objective(step.final, state.rent)
        results.append((total, ended, step.terminated, terminal, state.signals.sibling, j, step.final))
        history = remember(state.history, step.signals, ended)
        states.append(FleetState(step.signals, history, torch.where(ended, rent, state.rent), ended))
    total, ended, sick, terminal, comparable, j = (torch.cat([r[i] for r in results]) for i in range(6))
    bootstrap = torch.zeros_like(total)
    if not fleets.config.terminal and bool((ended & ~terminal).any()):
        bootstrap = expect(_final_observation(fleets, [r[6] for r in results])).where(~terminal, 0.0)
    fleets.states = states
    fleets.memory = HiddenState(*(old.where(~ended[:, None], 0.0) for old in fleets.memory))
    score, growth = (torch.cat([getattr(r[6], name).float() for r in results]) for name in ("score", "growth"))
    return total, ended, sick, bootstrap, comparable, j, score, growth


def _final_observation(fleets: Collector, finals: list[Signals]) -> Observation:
    """Observe the final signals of truncated episodes, before fresh hosts replaced them."""
    states = fleets.states
    none_fresh = [torch.zeros_like(state.fresh) for state in states]
    fleets.states = [
        FleetState(final, remember(state.history, final, fresh), state.rent, fresh)
        for state, final, fresh in zip(states, finals, none_fresh, strict=True)
    ]
    seen = fleets.observe()
    fleets.states = states
    return seen


def _stacked(observations: list[Observation]) -> Observation:
    host, slots = (torch.stack([o.features[i] for o in observations]) for i in range(2))
    legal, affordable = (torch.stack([getattr(o, name) for o in observations]) for name in ("legal", "affordable"))
    blueprints = observations[0].blueprints
    return Observation(
        Features(host, slots), legal, affordable, blueprints.expand(len(observations), *blueprints.shape)
    )
