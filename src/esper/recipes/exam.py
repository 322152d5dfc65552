"""A recipe's exam: its controllers against everything simple, each at its best learning rate, on fresh hosts."""

import gc
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from esper.leyline.errors import EsperError
from esper.leyline.reports import ExamReport, Life
from esper.recipes.config import Band, FleetConfig, Recipe
from esper.simic.exam import Arm, Replay, Sitting, distinct, examine, verdicts
from esper.simic.play import Outcome, play
from esper.simic.search import compare, pair_plans, random_plans, single_plans, tournament
from esper.tamiyo.policies import (
    FixedPlan,
    GapTrigger,
    GreedyGradient,
    Heuristic,
    Never,
    Oversized,
    Plateau,
    Policy,
    RandomLegal,
    Schedule,
)
from esper.tolaria import FleetEnv
from esper.tolaria.grown import Grown

SIMPLE: tuple[type[Policy], ...] = (Never, RandomLegal, Heuristic)


@dataclass(frozen=True, kw_only=True)
class ExamConfig:
    """How much an exam asks."""

    hosts: int = 30
    """Fresh hosts for every policy."""
    rates: tuple[float, ...] = (0.5, 1.0, 2.0)
    """Learning rates that every policy may choose from, as multiples of the recipe's."""
    tuned_on: int = 6
    """Hosts that learning rates are chosen on."""
    plans: int = 50
    """Plans written by chance of which the best takes part, and pairs in the grid that an oracle chooses from; 0 for
    neither."""
    thorough: bool = True
    """All rules, and what needs the grown hosts: their topologies from scratch, replays, longer training."""
    final: bool = True
    """On hosts and data that are for this alone; otherwise on others, and scored on validation data."""
    told: int = 12
    """Hosts whose lives are told in full."""

    def __post_init__(self) -> None:
        if self.thorough and not self.final:
            raise EsperError("thorough exams are final: leave thorough or set final")
        for name, least in (("hosts", 2), ("tuned_on", 1), ("plans", 0), ("told", 0)):
            if getattr(self, name) < least:
                raise EsperError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if not self.rates or not all(rate > 0 for rate in self.rates):
            raise EsperError(f"rates must be positive, and at least one, not {self.rates}")


QUICK = ExamConfig(hosts=16, rates=(1.0,), plans=0, thorough=False, final=False)
"""A preliminary exam: never, random and the heuristic at the recipe's own learning rate."""


def hold_exam(
    recipe: Recipe,
    policies: Sequence[Policy],
    config: ExamConfig = QUICK,
    guests: Sequence[Policy] = (),
    fleets: Sequence[FleetConfig] = (),
) -> tuple[list[ExamReport], list[Life]]:
    """All trainings of one policy against its rivals and guests, under the recipe's final rent: on other fleets, or on
    those that it was trained on."""
    held = [Room(recipe, fleet, config).hold(policies, guests) for fleet in fleets or recipe.fleets]
    return [report for report, _ in held], [life for _, lives in held for life in lives]


class Room:
    """One fleet's exam."""

    def __init__(self, recipe: Recipe, fleet: FleetConfig, config: ExamConfig) -> None:
        self.fleet, self.config, self.engine = fleet, config, recipe.engine
        self.rent, self.rng_seed = recipe.learn.rent.end, recipe.learn.rng_seed
        new = {
            "task": all(f.task != fleet.task for f in recipe.fleets),
            "kind of host": all(f.host != fleet.host for f in recipe.fleets),
        }
        self.episodes: dict[str, int] = {}
        """Lives that went into choosing an arm."""
        self.unseen = " and ".join(name for name, unseen in new.items() if unseen)

    def hold(self, policies: Sequence[Policy], guests: Sequence[Policy]) -> tuple[ExamReport, list[Life]]:
        rivals = [*self.rivals(), *guests]
        everyone = [*policies, *rivals]
        distinct([policies[0].name, *(rival.name for rival in rivals)])
        rates = self.tuned([policies[0], *rivals])
        lr = [rates[0]] * len(policies) + rates[1:]
        band = Band.FINAL if self.config.final else Band.DEVELOPMENT
        env = self.env(self.config.hosts, len(everyone), band, lr, test=self.config.final)
        sitting = examine(env, everyone, self.rent, self.rng_seed, min(self.config.told, self.config.hosts))
        count, episode = len(policies), self.fleet.env.episode
        ours = Arm(policies[0].name, sitting.outcomes[:count], episode, lr[0])
        others = [
            Arm(policy.name, [outcome], episode, rate, self.episodes.get(policy.name, 0))
            for policy, outcome, rate in zip(rivals, sitting.outcomes[count:], lr[count:], strict=True)
        ]
        if self.config.thorough:
            others += self.derived(sitting, ours, others[0])
        data = "test" if self.config.final else "validation"
        report = verdicts(env.fleet, self.rent, ours, others, self.rng_seed, data)
        told = [life for i, life in enumerate(sitting.lives) if not 1 <= i % len(everyone) < count]
        return replace(report, unseen=self.unseen), told

    def env(
        self, hosts: int, group: int, band: int, lr: Sequence[float], test: bool = False, episode: int | None = None
    ) -> FleetEnv:
        """Hosts of a band, where the n-th of each group has the n-th learning rate."""
        gc.collect()  # the last fleet and its recorded programs refer to each other, and hold the device's memory
        config = self.fleet if episode is None else replace(self.fleet, env=replace(self.fleet.env, episode=episode))
        env = config.build_group(self.engine, hosts, group, band, test)
        env.fleet.learn_at(torch.tensor(list(lr), dtype=torch.float64, device=env.fleet.device).repeat(hosts))
        return env

    def tuned(self, policies: Sequence[Policy], episode: int | None = None) -> list[float]:
        """The learning rate of each policy, chosen on hosts of its own by validation J."""
        grid = [rate * self.fleet.train.lr for rate in self.config.rates]
        if len(grid) == 1:
            return grid * len(policies)
        each = [policy for policy in policies for _ in grid]
        env = self.env(self.config.tuned_on, len(each), Band.TUNE, grid * len(policies), episode=episode)
        found = [outcome.objective.mean().item() for outcome in compare(env, each, self.rent, self.rng_seed)]
        rows = [found[i : i + len(grid)] for i in range(0, len(found), len(grid))]
        return [grid[row.index(max(row))] for row in rows]

    def rivals(self) -> list[Policy]:
        found: list[Policy] = [policy() for policy in SIMPLE]
        if self.config.thorough:
            found += [Schedule(), Plateau(), GapTrigger(), GreedyGradient(), GreedyGradient(against=True), Oversized()]
        if self.config.plans:
            setting = self.env(1, 1, Band.PLANS, [self.fleet.train.lr]).setting
            times = (0, self.fleet.env.episode // 4)
            pairs = pair_plans(setting, times, self.config.plans, self.rng_seed)
            found.append(self.best("best plan", random_plans(setting, self.config.plans, self.rng_seed)))
            found.append(self.best("grid oracle", [*single_plans(setting, times), *pairs]))
        return found

    def best(self, name: str, plans: Sequence[FixedPlan]) -> Policy:
        """The best of them on hosts of their own."""

        def build(hosts: int, group: int, round: int) -> FleetEnv:
            return self.env(hosts, group, Band.PLANS + round, [self.fleet.train.lr] * group)

        found = tournament(build, plans, self.rent)
        self.episodes[name] = found.episodes
        return FixedPlan(found.plan.plan, name=name)

    def derived(self, sitting: Sitting, ours: Arm, never: Arm) -> list[Arm]:
        """What is made of the grown hosts: their topologies from scratch, their growth on other hosts, and bare hosts
        that train for as many operations."""
        cost = float(ours.values("flops").mean())
        longer = self.spent("longer", never, cost)
        static, replayed = [], []
        for i in range(len(ours.outcomes)):
            static.append(self.static(sitting, i, ours.lr, ours.episode))
            env = self.env(self.config.hosts, 1, Band.OTHERS + i, [ours.lr], test=True)
            replayed.append(play(env, Replay(sitting.actions(i)), self.rent, self.rng_seed))
        scratch = Arm("static", static, ours.episode, ours.lr)
        episode = _as_long(scratch, cost)
        again = [self.static(sitting, i, ours.lr, episode) for i in range(len(ours.outcomes))]
        return [
            longer,
            scratch,
            Arm("static, longer", again, episode, ours.lr),
            Arm("replay", replayed, ours.episode, ours.lr, paired=False),
        ]

    def spent(self, name: str, never: Arm, cost: float) -> Arm:
        episode = _as_long(never, cost)
        (lr,) = self.tuned([Never()], episode)
        env = self.env(self.config.hosts, 1, Band.FINAL, [lr], test=True, episode=episode)
        return Arm(name, [play(env, Never(), self.rent, self.rng_seed)], episode, lr)

    def static(self, sitting: Sitting, policy: int, lr: float, episode: int) -> Outcome:
        env = self.env(self.config.hosts, 1, Band.FINAL, [lr], test=True, episode=episode)
        grown = Grown(env.fleet, sitting.topology(policy), env.config, env.test)
        return play(grown, Never(), self.rent, self.rng_seed)


def _as_long(arm: Arm, cost: float) -> int:
    """How many epochs an arm's hosts can be trained for so many operations."""
    return max(1, round(arm.episode * cost / float(arm.values("flops").mean())))
