"""Lives under a policy, recorded: T decisions of all hosts of several fleets, joined on N."""

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
    horizon: int = 25
    """Decisions of every host in one rollout."""
    terminal: bool = True
    """The end of a life is known and observed, so nothing is expected after it. If not, the time limit is external and
    what would have followed is estimated."""
    budget: float = float("inf")
    """The growth that a host may reach."""

    def __post_init__(self) -> None:
        if self.horizon < 1:
            raise EsperError(f"horizon must be at least 1, not {self.horizon}")
        if not self.budget > 0:
            raise EsperError(f"budget must be positive, not {self.budget}")


class Rollout(NamedTuple):
    """What was seen, done and earned."""

    seen: Observation
    choice: Choice
    reward: Float[Tensor, "T N"]
    after: Float[Tensor, "T N"]
    """The value of where a decision led; 0 where nothing can follow."""
    ended: Bool[Tensor, "T N"]
    sick: Bool[Tensor, "T N"]
    """The life ended before its time."""
    start: Bool[Tensor, "T N"]
    """The first decision of a life."""
    comparable: Bool[Tensor, "T N"]
    """Born with its group."""
    objective: Float[Tensor, "T N"]
    """J where the decision led."""
    score: Float[Tensor, "T N"]
    growth: Float[Tensor, "T N"]
    groups: Int[Tensor, " N"]
    memory: HiddenState
    """Before the first decision."""


def must_be_finite(rollout: Rollout) -> None:
    """What one learns from once cannot be skipped like a bad rollout of many."""
    if not bool(rollout.reward.isfinite().all() & rollout.seen.features.host.isfinite().all()):
        raise EsperError("the episodes hold rewards or features that are not finite; nothing was learned")


class Live(NamedTuple):
    """Where one fleet stands between two decisions."""

    signals: Signals
    history: ScoreHistory
    rent: Float[Tensor, " N"]
    fresh: Bool[Tensor, " N"]


class Collector:
    """Several fleets that one policy plays on, and where they stand."""

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
        self.lives: list[Live] = []
        self.memory = controller.blank(sum(self.sizes), self.device)

    def _described(self, env: FleetEnv) -> Tensor:
        setting = env.setting
        table = describe(setting.families, setting.seed_parameters)
        padded = self._padded(table, 0.0, (self.num_slots, self.num_blueprints))
        return padded.expand(env.fleet.num_hosts, *padded.shape)

    @staticmethod
    def _padded(x: Tensor, value: float | bool, sizes: tuple[int, ...], axis: int = 0) -> Tensor:
        """Make some axes as long as the longest fleet's."""
        for i, size in enumerate(sizes):
            missing = size - x.shape[axis + i]
            if missing:
                shape = list(x.shape)
                shape[axis + i] = missing
                x = torch.cat([x, x.new_full(shape, value)], axis + i)
        return x

    def begin(self, rent: float) -> None:
        """Fresh hosts everywhere. An env that leaves one of them nothing to choose is refused."""
        self.lives = []
        for env in self.envs:
            signals = env.reset()
            everyone = torch.ones_like(signals.sibling)
            history = remember(empty_history(len(everyone), self.device), signals, everyone)
            self.lives.append(
                Live(signals, history, torch.full_like(signals.score, rent, dtype=torch.float32), everyone)
            )
        check(self.observe().legal.any(-1), Head.OP.name.lower())

    def observe(self) -> Observation:
        """What the policy sees of all fleets."""
        parts = [self._observe(env, live) for env, live in zip(self.envs, self.lives, strict=True)]
        joined = [torch.cat(tensors) for tensors in zip(*parts, strict=True)]
        return Observation(Features(joined[0], joined[1]), joined[2], joined[3], self.blueprints)

    def view(self, env: FleetEnv, live: Live) -> View:
        return View(live.signals, live.history, env.setting, live.rent, torch.full_like(live.rent, self.config.budget))

    def _observe(self, env: FleetEnv, live: Live) -> tuple[Tensor, ...]:
        features, legal, paid = look(self.view(env, live))
        return (
            features.host,
            self._padded(features.slots, 0.0, (self.num_slots,), 1),
            self._padded(legal, False, (self.num_slots,), 2),
            self._padded(paid, False, (self.num_slots, self.num_blueprints), 1),
        )

    def draws(self) -> Float[Tensor, "N A"]:
        """Fresh uniform numbers for every choice, a function of place and time alone."""
        places = torch.arange(sum(self.sizes), device=self.device)
        self.decisions += 1
        keys = key(key(self.rng_seed, Purpose.ACTION, self.decisions), places)
        return uniform(keys, num_draws(self.num_slots, self.num_blueprints))


def collect(fleets: Collector, controller: Controller, rent: float, rewards: RewardConfig) -> Rollout:
    """Play for a horizon. Whoever is born during it pays `rent` for life."""

    def choose(seen: Observation) -> Choice:
        with torch.inference_mode():
            choice, fleets.memory = controller.act(seen, fleets.memory, fleets.draws())
        return choice

    def expect(seen: Observation) -> Tensor:
        with torch.inference_mode():
            return controller.expect(seen, fleets.memory)

    return _played(fleets, choose, expect, rent, rewards)


def record(fleets: Collector, policies: Sequence[Policy], rent: float, rewards: RewardConfig) -> Rollout:
    """The same under a rule for each fleet, to learn from: nothing is expected, and every choice counts as certain."""
    for policy, env in zip(policies, fleets.envs, strict=True):
        policy.begin(env.setting, env.fleet.num_hosts, fleets.device)
    nothing = torch.zeros(sum(fleets.sizes), device=fleets.device)

    def choose(seen: Observation) -> Choice:
        actions = []
        numbers = fleets.draws().split(fleets.sizes)
        for policy, env, live, random in zip(policies, fleets.envs, fleets.lives, numbers, strict=True):
            actions.append(policy.decide(fleets.view(env, live), live.fresh, random[:, : draws(env.setting)]))
        action = torch.cat(actions)
        certain = torch.zeros_like(action, dtype=torch.float32)
        return Choice(action, certain, nothing)

    return _played(fleets, choose, lambda seen: nothing, rent, rewards)


def record_episodes(
    env: FleetEnv, policies: Sequence[Policy], controller: Controller, rent: float, rewards: RewardConfig, rng_seed: int
) -> Rollout:
    """One life of every host under policies side by side, for this controller to learn from."""
    fleets = Collector([env], controller, CollectConfig(horizon=env.setting.episode), rng_seed)
    fleets.begin(rent)
    return record(fleets, [SideBySide(policies)], rent, rewards)


def _played(
    fleets: Collector,
    choose: Callable[[Observation], Choice],
    expect: Callable[[Observation], Float[Tensor, " N"]],
    rent: float,
    rewards: RewardConfig,
) -> Rollout:
    rows: list[tuple[Tensor, ...]] = []
    observations, choices = [], []
    before = fleets.memory
    for _ in range(fleets.config.horizon):
        seen = fleets.observe()
        start = torch.cat([live.fresh for live in fleets.lives])
        choice = choose(seen)
        observations.append(seen)
        choices.append(choice)
        rows.append((start, *_step(fleets, expect, choice.action, rent, rewards)))
    last = expect(fleets.observe())
    start, gained, ended, sick, beyond, comparable, j, score, growth = (torch.stack(x) for x in zip(*rows, strict=True))
    choice = Choice(*(torch.stack(x) for x in zip(*choices, strict=True)))
    following = torch.cat([choice.value[1:], last[None]])
    return Rollout(
        seen=_stacked(observations),
        choice=choice,
        reward=gained,
        after=torch.where(ended, beyond, following),
        ended=ended,
        sick=sick,
        start=start,
        comparable=comparable,
        objective=j,
        score=score,
        growth=growth,
        groups=fleets.groups,
        memory=before,
    )


def _step(
    fleets: Collector,
    expect: Callable[[Observation], Float[Tensor, " N"]],
    action: Int[Tensor, "N H"],
    rent: float,
    rewards: RewardConfig,
) -> tuple[Tensor, ...]:
    """One decision of every fleet."""
    results = []
    lives = []
    for env, live, chosen in zip(fleets.envs, fleets.lives, action.clone().split(fleets.sizes), strict=True):
        step = env.step(chosen)
        ended = step.terminated | step.truncated
        gained = reward(live.signals, step.final, live.rent, step.penalty, ended, rewards).total
        over_for_good = step.terminated | fleets.config.terminal
        j = objective(step.final, live.rent)
        results.append((gained, ended, step.terminated, over_for_good, live.signals.sibling, j, step.final))
        history = remember(live.history, step.signals, ended)
        lives.append(Live(step.signals, history, torch.where(ended, rent, live.rent), ended))
    gained, ended, sick, final_end, comparable, j = (torch.cat([r[i] for r in results]) for i in range(6))
    beyond = torch.zeros_like(gained)
    if not fleets.config.terminal and bool((ended & ~final_end).any()):
        beyond = expect(_finally(fleets, [r[6] for r in results])).where(~final_end, 0.0)
    fleets.lives = lives
    fleets.memory = HiddenState(*(old.where(~ended[:, None], 0.0) for old in fleets.memory))
    score, growth = (torch.cat([getattr(r[6], name).float() for r in results]) for name in ("score", "growth"))
    return gained, ended, sick, beyond, comparable, j, score, growth


def _finally(fleets: Collector, finals: list[Signals]) -> Observation:
    """What there was to see where lives were cut off, before others took their places."""
    kept = fleets.lives
    no_one = [torch.zeros_like(live.fresh) for live in kept]
    fleets.lives = [
        Live(final, remember(live.history, final, none), live.rent, none)
        for live, final, none in zip(kept, finals, no_one, strict=True)
    ]
    seen = fleets.observe()
    fleets.lives = kept
    return seen


def _stacked(observations: list[Observation]) -> Observation:
    host, slots = (torch.stack([o.features[i] for o in observations]) for i in range(2))
    legal, paid = (torch.stack([getattr(o, name) for o in observations]) for name in ("legal", "affordable"))
    blueprints = observations[0].blueprints
    return Observation(Features(host, slots), legal, paid, blueprints.expand(len(observations), *blueprints.shape))
