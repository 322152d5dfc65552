"""A recipe's exam: its controllers against everything simple, each at its best learning rate, on fresh hosts."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import torch

from esper.leyline.errors import EsperError
from esper.leyline.reports import ExamReport, Life
from esper.leyline.state import SlotState, Split
from esper.recipes.config import Band, FleetConfig, Places, Recipe
from esper.simic.evaluation import evaluate
from esper.simic.exam import (
    ORACLE,
    RIGHT_SIZE,
    Arm,
    ArmRun,
    Replay,
    compare_arms,
    host_name,
    require_unique_names,
    run_arm,
)
from esper.simic.search import compare, pair_plans, random_plans, single_plans, successive_halving
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
from esper.tolaria import Engine, EnvConfig, FleetEnv
from esper.tolaria.static_env import StaticEnv

SIMPLE: tuple[type[Policy], ...] = (Never, RandomLegal, Heuristic)
SEARCHED = ("best plan", ORACLE)
DERIVED = ("longer", "static", "static, longer", "replay", RIGHT_SIZE)
AROUND = (0.5, 1.0, 2.0)
"""Learning rates at which plans are chosen, as multiples of the recipe's."""
Tell = Callable[[str], object]
"""Hears what is going on, for whoever waits."""
Once = Callable[[str, Callable[[], list[float]]], list[float]]
"""Gives what was chosen for a purpose before an exam was interrupted, or lets it be chosen."""


def afresh(purpose: str, choose: Callable[[], list[float]]) -> list[float]:
    """Nothing was chosen before."""
    return choose()


@dataclass(frozen=True, kw_only=True)
class ExamConfig:
    """How much an exam asks."""

    hosts: int = 30
    """Fresh hosts for every policy."""
    rates: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0)
    """Learning rates that every policy may choose from, as multiples of the recipe's."""
    tuned_on: int = 24
    """Lives that each learning rate of an arm is tried in: those of all of its trainings together, each on hosts of its
    own."""
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
    held = list(held_one_by_one(recipe, policies, config, guests, fleets))
    return [report for report, _ in held], [life for _, lives in held for life in lives]


def held_one_by_one(
    recipe: Recipe,
    policies: Sequence[Policy],
    config: ExamConfig,
    guests: Sequence[Policy] = (),
    fleets: Sequence[FleetConfig] = (),
    tell: Tell = lambda said: None,
    once: Once = afresh,
) -> Iterator[tuple[ExamReport, list[Life]]]:
    """Each fleet's exam when it has ended, for whoever wants to keep it at once. Whom no exam can be held with is
    refused before the first begins. Whoever answers `once` keeps choices, too: they take most of the time."""
    recipe = replace(recipe, engine=within_memory(recipe.engine))
    every = enumerate(fleets or recipe.fleets)
    rooms = [Room(recipe, fleet, config, tell, _within(str(n), once)) for n, fleet in every]
    for room in rooms:
        room.admit(policies, guests)
    for room in rooms:
        yield room.hold(policies, guests)


def within_memory(engine: Engine) -> Engine:
    """An engine whose fleets leave room on a GPU for the last one's, and for programs that are recorded."""
    device = engine.place()
    if device.type != "cuda" or engine.memory_budget is not None:
        return engine
    return replace(engine, memory_budget=torch.cuda.get_device_properties(device).total_memory // 3)


class Room:
    """One fleet's exam."""

    def __init__(
        self,
        recipe: Recipe,
        fleet: FleetConfig,
        config: ExamConfig,
        tell: Tell = lambda said: None,
        once: Once = afresh,
    ) -> None:
        self.recipe, self.fleet, self.config = recipe, fleet, config
        self.rent, self.rng_seed = recipe.learn.rent.end, recipe.learn.rng_seed
        new = {
            "task": all(f.task != fleet.task for f in recipe.learned_from),
            "kind of host": all(f.host != fleet.host for f in recipe.learned_from),
        }
        self.unseen = " and ".join(name for name, unseen in new.items() if unseen)
        self.grid = [rate * fleet.train.lr for rate in sorted(config.rates)]
        """Of learning rates."""
        self.searched: dict[str, int] = {}
        """Lives that went into choosing an arm."""
        self.places = Places(fleet, recipe.engine)
        self.example = self.env(1, 1, Band.PLANS, [fleet.train.lr])
        where = f"{self.example.fleet.task.name}, {host_name(self.example.fleet)}"
        self.tell: Tell = lambda said: tell(f"{where}: {said}")
        self.once = _within(where, once)
        self.room = 2048 if self.example.fleet.device.type == "cuda" else 512
        """Hosts at once, where many policies are tried."""

    def admit(self, policies: Sequence[Policy], guests: Sequence[Policy]) -> None:
        """Refuse arms that could not be told apart, and guests that cannot begin here."""
        taken = [*(SEARCHED if self.config.plans else ()), *(DERIVED if self.config.thorough else ())]
        require_unique_names([policies[0].name, *(rule.name for rule in (*self.rules(), *guests)), *taken])
        for guest in guests:
            guest.begin(self.example.setting, 1, self.example.fleet.device)

    def hold(self, policies: Sequence[Policy], guests: Sequence[Policy]) -> tuple[ExamReport, list[Life]]:
        config = self.config
        rivals = [*self.rules(), *self.plans(), *guests]
        rates = self.tuned([[rival] for rival in rivals])
        others = [self.arm([rival], rate) for rival, rate in zip(rivals, rates, strict=True)]
        (lr,) = self.tuned([policies])
        ours = self.arm(policies, lr)  # last: whoever needs a kernel first has to wait for it
        lives = [life for arm in (ours, *others) for life in arm.runs[0].lives]
        if config.thorough:
            others += self.derived(policies, ours, others[0])
        self.places.fleet = None  # other rooms need the memory
        data = "test" if self.config.final else "validation"
        report = compare_arms(self.example.fleet, self.rent, ours, others, self.rng_seed, data)
        edge = at_the_edge((ours, *others), self.grid)
        return replace(report, variant=self.fleet.variant, unseen=self.unseen, at_the_edge=edge), lives

    def env(
        self, hosts: int, group: int, band: int, lr: Sequence[float], test: bool = False, episode: int | None = None
    ) -> FleetEnv:
        """Hosts of a band, where the n-th of each group has the n-th learning rate."""
        env = self.places.env(hosts, group, band, self.test_data if test else None, episode)
        env.fleet.learn_at(torch.tensor(list(lr), dtype=torch.float64, device=env.fleet.device).repeat(hosts))
        return env

    @cached_property
    def test_data(self) -> Split:
        return self.fleet.test_data()

    def paper(self, lr: float, episode: int | None = None) -> FleetEnv:
        """The hosts that count, the same ones each time."""
        band = Band.FINAL if self.config.final else Band.DEVELOPMENT
        return self.env(self.config.hosts, 1, band, [lr], self.config.final, episode)

    def arm(self, policies: Sequence[Policy], lr: float, episode: int | None = None) -> Arm:
        """All trainings of one policy, one after the other in the places of one fleet."""
        name, env = policies[0].name, self.paper(lr, episode)
        self.tell(f"{name} on the hosts that count")
        sittings = [self.sat(FleetEnv(env.fleet, env.config, env.test), policy) for policy in policies]
        plan = str(policies[0]) if isinstance(policies[0], FixedPlan) else ""
        return Arm(name, sittings, episode or self.fleet.env.episode, lr, self.searched.get(name, 0), plan=plan)

    def sat(self, env: FleetEnv, policy: Policy) -> ArmRun:
        return run_arm(env, policy, self.rent, self.rng_seed, min(self.config.told, self.config.hosts))

    def tuned(self, arms: Sequence[Sequence[Policy]], episode: int | None = None) -> list[float]:
        """The learning rate of each of some arms with as many trainings, chosen on hosts of its own by their mean
        validation J."""
        if len(self.grid) == 1:
            return self.grid * len(arms)

        def choose() -> list[float]:
            hosts = self.shared_by(len(arms[0]))
            found = [self.tried(nth, hosts, episode, n) for n, nth in enumerate(zip(*arms, strict=True))]
            return [self.best_rate(by_training) for by_training in zip(*found, strict=True)]

        epochs = episode or self.fleet.env.episode
        return self.chosen(f"learning rates of {', '.join(arm[0].name for arm in arms)}, {epochs} epochs", choose)

    def chosen(self, purpose: str, choose: Callable[[], list[float]]) -> list[float]:
        """Told before, as it takes its time."""
        self.tell(purpose)
        return self.once(purpose, choose)

    def best_rate(self, tried: Sequence[Sequence[float]]) -> float:
        """Of the grid, by the mean J at each of its rates, over trainings."""
        return self.grid[int(torch.tensor(tried).mean(0).argmax())]

    def tried(
        self, policies: Sequence[Policy], hosts: int, episode: int | None = None, training: int = 0
    ) -> list[list[float]]:
        """The mean validation J of each policy at each learning rate of the grid, on hosts for the n-th trainings."""
        at_once, found = max(self.room // (hosts * len(self.grid)), 1), []
        for start in range(0, len(policies), at_once):
            each = [policy for policy in policies[start : start + at_once] for _ in self.grid]
            rates = self.grid * (len(each) // len(self.grid))
            env = self.env(hosts, len(each), Band.TUNE + training, rates, episode=episode)
            found += [outcome.objective.mean().item() for outcome in compare(env, each, self.rent, self.rng_seed)]
        return [found[i : i + len(self.grid)] for i in range(0, len(found), len(self.grid))]

    def shared_by(self, trainings: int) -> int:
        """Hosts that each of an arm's trainings tries a learning rate on: all of them together have as many."""
        return -(-self.config.tuned_on // trainings)

    def rules(self) -> list[Policy]:
        found: list[Policy] = [policy() for policy in SIMPLE]
        if self.config.thorough:
            found += [Schedule(), Plateau(), GapTrigger(), GreedyGradient(), GreedyGradient(against=True), Oversized()]
        return found

    def plans(self) -> list[Policy]:
        if not self.config.plans:
            return []
        return [self.best(name, plans) for name, plans in zip(SEARCHED, self.candidates(), strict=True)]

    def candidates(self) -> tuple[list[FixedPlan], list[FixedPlan]]:
        """Plans written by chance, and a grid of single ones and pairs."""
        setting, times = self.example.setting, (0, self.fleet.env.episode // 4)
        rng_seed = Band.PLANS + self.rng_seed  # others than those that the policy may have begun with
        pairs = pair_plans(setting, times, self.config.plans, rng_seed)
        return random_plans(setting, self.config.plans, rng_seed), [*single_plans(setting, times), *pairs]

    def best(self, name: str, plans: Sequence[FixedPlan]) -> Policy:
        """The best of them on hosts of their own, which learn at different rates."""

        def choose() -> list[float]:
            (best,), lives = successive_halving(self.ground, plans, self.rent, hosts=len(AROUND), room=self.room)
            return [plans.index(best), lives]

        best, lives = map(int, self.chosen(f"{name}, chosen among {len(plans)}", choose))
        self.searched[name], self.grounds.fleet = lives, None  # its memory may be needed
        return FixedPlan(plans[best].plan, name=name)

    def ground(self, hosts: int, group: int, round: int) -> FleetEnv:
        """Hosts that plans are tried on."""
        return self.grounds.env(hosts, group, Band.PLANS + round)

    @cached_property
    def grounds(self) -> Places:
        around = replace(self.fleet, rates=AROUND, hosts=len(AROUND) * self.fleet.env.group)
        return Places(around, self.recipe.engine)

    def derived(self, policies: Sequence[Policy], ours: Arm, never: Arm) -> list[Arm]:
        """What follows from the grown hosts: bare hosts that train for as many operations, their topologies from
        scratch, and their growth on other hosts. And, where a task has a teacher, hosts of its shape."""
        cost = float(ours.values("flops").mean())
        epochs = _as_long(never, cost)
        (lr,) = self.tuned([[Never()]], epochs)
        longer = self.arm([Never()], lr, epochs)._replace(name="longer")
        grown = cache(lambda: self.grown(policies, ours.lr))
        static = self.static("static", ours, grown, ours.episode)
        again = self.static("static, longer", ours, grown, _as_long(static, cost))
        replay = Arm("replay", list(self.replayed(ours)), ours.episode, ours.lr, paired=False)
        taught = "teacher_width" in self.example.fleet.task.facts
        return [longer, static, again, replay, *([self.right_size()] if taught else [])]

    def grown(self, policies: Sequence[Policy], lr: float) -> list[SlotState]:
        """What policies grow on the hosts that learning rates are chosen on."""
        env = self.env(self.shared_by(len(policies)), 1, Band.TUNE, [lr])
        homes = (FleetEnv(env.fleet, _of_training(env, n)) for n in range(len(policies)))
        return [
            run_arm(home, policy, self.rent, self.rng_seed).topology
            for home, policy in zip(homes, policies, strict=True)
        ]

    def static(self, name: str, ours: Arm, grown: Callable[[], Sequence[SlotState]], episode: int) -> Arm:
        """The topologies of the policy from scratch, at the learning rate that suits what it has `grown` elsewhere."""
        lr = self.grid[0]
        if len(self.grid) > 1:
            purpose = f"learning rate of {name}, {episode} epochs"
            (lr,) = self.chosen(purpose, lambda: [self.best_rate(self.static_tried(grown(), episode))])
        self.tell(f"{name} on the hosts that count")
        env = self.paper(lr, episode)
        sittings = [
            self.sat(StaticEnv(env.fleet, sitting.topology, env.config, env.test), Never()) for sitting in ours.runs
        ]
        return Arm(name, sittings, episode, lr)

    def static_tried(self, grown: Sequence[SlotState], episode: int) -> list[list[float]]:
        """As `tried`, of topologies from scratch."""
        found = []
        for rate in self.grid:
            env = self.env(self.shared_by(len(grown)), 1, Band.TUNE, [rate], episode=episode)
            homes = (StaticEnv(env.fleet, slots, _of_training(env, n)) for n, slots in enumerate(grown))
            again = (evaluate(home, Never(), self.rent) for home in homes)
            found.append([outcome.objective.mean().item() for outcome in again])
        return [list(by_rate) for by_rate in zip(*found, strict=True)]

    def replayed(self, ours: Arm) -> Iterator[ArmRun]:
        """What was done, on other hosts for every training."""
        self.tell("replay")
        env = self.env(self.config.hosts, 1, Band.OTHERS, [ours.lr], test=True)
        for n, sitting in enumerate(ours.runs):
            yield self.sat(FleetEnv(env.fleet, _of_training(env, n), env.test), Replay(sitting.actions))

    def right_size(self) -> Arm:
        """Hosts of the teacher's shape, which pay rent for what they have beyond the bare host."""
        fleet = self.example.fleet
        shape = replace(self.fleet, host="mlp", widths=(int(fleet.task.facts["teacher_width"]),))
        room = Room(self.recipe, shape, self.config, once=self.once)
        (lr,) = room.tuned([[Never()]])
        arm = room.arm([Never()], lr)
        size, bare = (f.trunk.layout.num_parameters for f in (room.example.fleet, fleet))
        (sitting,), growth = arm.runs, size / bare - 1
        was = sitting.outcome
        now = was._replace(
            objective=was.objective - self.rent * math.log1p(growth), growth=torch.full_like(was.growth, growth)
        )
        return arm._replace(name=RIGHT_SIZE, runs=[sitting._replace(outcome=now)], paired=False)


def at_the_edge(arms: Sequence[Arm], grid: Sequence[float]) -> tuple[str, ...]:
    """Arms that might do better outside of a grid. A single rate is nobody's choice."""
    ends = (grid[0], grid[-1]) if len(grid) > 1 else ()
    return tuple(arm.name for arm in arms if arm.lr in ends)


def _within(where: str, once: Once) -> Once:
    return lambda purpose, choose: once(f"{where}: {purpose}", choose)


def _of_training(env: FleetEnv, n: int) -> EnvConfig:
    """The same, with hosts that only the n-th training meets."""
    return replace(env.config, rng_seed=env.config.rng_seed + n)


def _as_long(arm: Arm, cost: float) -> int:
    """How many epochs an arm's hosts can be trained for so many operations."""
    return max(1, round(arm.episode * cost / float(arm.values("flops").mean())))
