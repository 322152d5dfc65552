"""Exams: trained controllers against baselines on fresh hosts, each arm at its best learning rate."""

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
"""Learning rates that plans are chosen at, as multiples of the recipe's."""
Tell = Callable[[str], object]
"""Called with each step of an exam, for progress displays."""
Once = Callable[[str, Callable[[], list[float]]], list[float]]
"""Called with a purpose and a function that chooses: returns the choice, from a cache if the exam was interrupted."""


def afresh(purpose: str, choose: Callable[[], list[float]]) -> list[float]:
    """Choose without a cache."""
    return choose()


@dataclass(frozen=True, kw_only=True)
class ExamConfig:
    """How thorough an exam is.

    Example:
        ```python
        config = ExamConfig(hosts=30, plans=0, thorough=False)
        ```
    """

    hosts: int = 30
    """Fresh hosts for each arm."""
    rates: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0)
    """Learning rates that each arm chooses from, as multiples of the recipe's."""
    tuned_on: int = 24
    """Episodes to try each learning rate of an arm in; the trainings of an arm share them."""
    plans: int = 50
    """Random plans, of which the best is an arm, and pairs of seeds in the grid of the oracle; 0: neither arm."""
    thorough: bool = True
    """Include all rules, grown topologies trained from scratch, replays, and longer training."""
    final: bool = True
    """Score on test data and on hosts reserved for that; otherwise on validation data and development hosts."""
    recorded: int = 12
    """Hosts whose episodes are reported epoch by epoch."""

    def __post_init__(self) -> None:
        if self.thorough and not self.final:
            raise EsperError("thorough exams must be final: unset thorough or set final")
        for name, least in (("hosts", 2), ("tuned_on", 1), ("plans", 0), ("recorded", 0)):
            if getattr(self, name) < least:
                raise EsperError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if not self.rates or not all(rate > 0 for rate in self.rates):
            raise EsperError(f"rates must hold at least one number, all positive, not {self.rates}")


QUICK = ExamConfig(hosts=16, rates=(1.0,), plans=0, thorough=False, final=False)
"""A preliminary exam: never, random and the heuristic, at the recipe's learning rate, on validation data."""


def hold_exam(
    recipe: Recipe,
    policies: Sequence[Policy],
    config: ExamConfig = QUICK,
    guests: Sequence[Policy] = (),
    fleets: Sequence[FleetConfig] = (),
) -> tuple[list[ExamReport], list[Life]]:
    """Compare trained policies with baselines on fresh hosts, and return the verdicts.

    Args:
        recipe: The recipe that the policies were trained with; its final rent and its random seed apply.
        policies: All trainings of one policy, such as `LearnedPolicy(load_controller(run))` for each run.
        config: How thorough the exam is.
        guests: Further policies that take part as arms.
        fleets: Settings to examine in; default: those of the recipe.

    Returns:
        One report for each setting, and the episodes of the first `config.recorded` hosts.

    Raises:
        EsperError: Two arms have the same name, or a guest cannot play in one of the settings.

    Example:
        ```python
        reports, lives = hold_exam(recipe("spirals"), [LearnedPolicy(load_controller())], ExamConfig(hosts=30))
        ```
    """
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
    """Yield the exam of each fleet as soon as it has ended.

    Validates all arms first. `tell` hears of every step; `once` caches tuned choices, which take most of the time, so
    that an interrupted exam resumes.
    """
    recipe = replace(recipe, engine=within_memory(recipe.engine))
    every = enumerate(fleets or recipe.fleets)
    rooms = [Room(recipe, fleet, config, tell, _within(str(n), once)) for n, fleet in every]
    for room in rooms:
        room.admit(policies, guests)
    for room in rooms:
        yield room.hold(policies, guests)


def within_memory(engine: Engine) -> Engine:
    """Return the engine with a memory budget that leaves room on a GPU for a second fleet and for recorded programs."""
    device = engine.place()
    if device.type != "cuda" or engine.memory_budget is not None:
        return engine
    return replace(engine, memory_budget=torch.cuda.get_device_properties(device).total_memory // 3)


class Room:
    """The exam of one fleet."""

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
        """Learning rates to choose from."""
        self.searched: dict[str, int] = {}
        """Episodes that were used to choose each arm."""
        self.places = Places(fleet, recipe.engine)
        self.example = self.env(1, 1, Band.PLANS, [fleet.train.lr])
        where = f"{self.example.fleet.task.name}, {host_name(self.example.fleet)}"
        self.tell: Tell = lambda said: tell(f"{where}: {said}")
        self.once = _within(where, once)
        self.room = 2048 if self.example.fleet.device.type == "cuda" else 512
        """Most hosts to train at once when many policies are tried."""

    def admit(self, policies: Sequence[Policy], guests: Sequence[Policy]) -> None:
        """Refuse arms of the same name, and guests that cannot play in this setting."""
        taken = [*(SEARCHED if self.config.plans else ()), *(DERIVED if self.config.thorough else ())]
        require_unique_names([policies[0].name, *(rule.name for rule in (*self.rules(), *guests)), *taken])
        for guest in guests:
            guest.begin(self.example.setting, 1, self.example.fleet.device)

    def hold(self, policies: Sequence[Policy], guests: Sequence[Policy]) -> tuple[ExamReport, list[Life]]:
        """Choose learning rates and plans, play all arms, and return the verdicts and some episodes."""
        config = self.config
        rivals = [*self.rules(), *self.plans(), *guests]
        rates = self.tuned([[rival] for rival in rivals])
        others = [self.arm([rival], rate) for rival, rate in zip(rivals, rates, strict=True)]
        (lr,) = self.tuned([policies])
        ours = self.arm(policies, lr)  # last: the first arm to need a kernel waits for its compilation
        lives = [life for arm in (ours, *others) for life in arm.runs[0].lives]
        if config.thorough:
            others += self.derived(policies, ours, others[0])
        self.places.fleet = None  # the next fleet needs the memory
        data = "test" if self.config.final else "validation"
        report = compare_arms(self.example.fleet, self.rent, ours, others, self.rng_seed, data)
        edge = at_the_edge((ours, *others), self.grid)
        return replace(report, variant=self.fleet.variant, unseen=self.unseen, at_the_edge=edge), lives

    def env(
        self, hosts: int, group: int, band: int, lr: Sequence[float], test: bool = False, episode: int | None = None
    ) -> FleetEnv:
        """Build an env with hosts of a band, where the n-th host of each group has the n-th learning rate."""
        env = self.places.env(hosts, group, band, self.test_data if test else None, episode)
        env.fleet.learn_at(torch.tensor(list(lr), dtype=torch.float64, device=env.fleet.device).repeat(hosts))
        return env

    @cached_property
    def test_data(self) -> Split:
        return self.fleet.test_data()

    def paper(self, lr: float, episode: int | None = None) -> FleetEnv:
        """Build the env that arms are scored in; its hosts are the same every time."""
        band = Band.FINAL if self.config.final else Band.DEVELOPMENT
        return self.env(self.config.hosts, 1, band, [lr], self.config.final, episode)

    def arm(self, policies: Sequence[Policy], lr: float, episode: int | None = None) -> Arm:
        """Play all trainings of one policy, one after the other, in one fleet."""
        name, env = policies[0].name, self.paper(lr, episode)
        self.tell(f"{name} on the hosts that count")
        sittings = [self.sat(FleetEnv(env.fleet, env.config, env.test), policy) for policy in policies]
        plan = str(policies[0]) if isinstance(policies[0], FixedPlan) else ""
        return Arm(name, sittings, episode or self.fleet.env.episode, lr, self.searched.get(name, 0), plan=plan)

    def sat(self, env: FleetEnv, policy: Policy) -> ArmRun:
        return run_arm(env, policy, self.rent, self.rng_seed, min(self.config.recorded, self.config.hosts))

    def tuned(self, arms: Sequence[Sequence[Policy]], episode: int | None = None) -> list[float]:
        """Return the learning rate of each arm that has the best mean validation J on hosts reserved for tuning."""
        if len(self.grid) == 1:
            return self.grid * len(arms)

        def choose() -> list[float]:
            hosts = self.shared_by(len(arms[0]))
            found = [self.tried(nth, hosts, episode, n) for n, nth in enumerate(zip(*arms, strict=True))]
            return [self.best_rate(by_training) for by_training in zip(*found, strict=True)]

        epochs = episode or self.fleet.env.episode
        return self.chosen(f"learning rates of {', '.join(arm[0].name for arm in arms)}, {epochs} epochs", choose)

    def chosen(self, purpose: str, choose: Callable[[], list[float]]) -> list[float]:
        """Announce a choice, then make it or take it from the cache."""
        self.tell(purpose)
        return self.once(purpose, choose)

    def best_rate(self, tried: Sequence[Sequence[float]]) -> float:
        """Return the rate of the grid with the best J, averaged over trainings."""
        return self.grid[int(torch.tensor(tried).mean(0).argmax())]

    def tried(
        self, policies: Sequence[Policy], hosts: int, episode: int | None = None, training: int = 0
    ) -> list[list[float]]:
        """Return the mean validation J of each policy at each learning rate, on the n-th training's tuning hosts."""
        at_once, found = max(self.room // (hosts * len(self.grid)), 1), []
        for start in range(0, len(policies), at_once):
            each = [policy for policy in policies[start : start + at_once] for _ in self.grid]
            rates = self.grid * (len(each) // len(self.grid))
            env = self.env(hosts, len(each), Band.TUNE + training, rates, episode=episode)
            found += [outcome.objective.mean().item() for outcome in compare(env, each, self.rent, self.rng_seed)]
        return [found[i : i + len(self.grid)] for i in range(0, len(found), len(self.grid))]

    def shared_by(self, trainings: int) -> int:
        """Return the tuning hosts of each training, so that all trainings together have `tuned_on`."""
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
        """Return random plans, and a grid of single seeds and pairs."""
        setting, times = self.example.setting, (0, self.fleet.env.episode // 4)
        rng_seed = Band.PLANS + self.rng_seed  # others than those that the policy may have begun with
        pairs = pair_plans(setting, times, self.config.plans, rng_seed)
        return random_plans(setting, self.config.plans, rng_seed), [*single_plans(setting, times), *pairs]

    def best(self, name: str, plans: Sequence[FixedPlan]) -> Policy:
        """Return the winner of a tournament of plans, on hosts of different learning rates."""

        def choose() -> list[float]:
            (best,), lives = successive_halving(self.ground, plans, self.rent, hosts=len(AROUND), room=self.room)
            return [plans.index(best), lives]

        best, lives = map(int, self.chosen(f"{name}, chosen among {len(plans)}", choose))
        self.searched[name], self.grounds.fleet = lives, None  # its memory may be needed
        return FixedPlan(plans[best].plan, name=name)

    def ground(self, hosts: int, group: int, round: int) -> FleetEnv:
        """Build the env of a round of the tournament."""
        return self.grounds.env(hosts, group, Band.PLANS + round)

    @cached_property
    def grounds(self) -> Places:
        around = replace(self.fleet, rates=AROUND, hosts=len(AROUND) * self.fleet.env.group)
        return Places(around, self.recipe.engine)

    def derived(self, policies: Sequence[Policy], ours: Arm, never: Arm) -> list[Arm]:
        """Play the arms that depend on the grown hosts: bare hosts with as many FLOPs, grown topologies from scratch,
        the same growth on other hosts, and hosts of the teacher's shape if the task has a teacher."""
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
        """Return the topologies that policies grow on the tuning hosts."""
        env = self.env(self.shared_by(len(policies)), 1, Band.TUNE, [lr])
        homes = (FleetEnv(env.fleet, _of_training(env, n)) for n in range(len(policies)))
        return [
            run_arm(home, policy, self.rent, self.rng_seed).topology
            for home, policy in zip(homes, policies, strict=True)
        ]

    def static(self, name: str, ours: Arm, grown: Callable[[], Sequence[SlotState]], episode: int) -> Arm:
        """Train the policy's topologies from scratch, at the best learning rate for those `grown` on tuning hosts."""
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
        """Return the mean validation J of topologies from scratch, for each training and learning rate."""
        found = []
        for rate in self.grid:
            env = self.env(self.shared_by(len(grown)), 1, Band.TUNE, [rate], episode=episode)
            homes = (StaticEnv(env.fleet, slots, _of_training(env, n)) for n, slots in enumerate(grown))
            again = (evaluate(home, Never(), self.rent) for home in homes)
            found.append([outcome.objective.mean().item() for outcome in again])
        return [list(by_rate) for by_rate in zip(*found, strict=True)]

    def replayed(self, ours: Arm) -> Iterator[ArmRun]:
        """Replay the actions of each training on other hosts."""
        self.tell("replay")
        env = self.env(self.config.hosts, 1, Band.OTHERS, [ours.lr], test=True)
        for n, sitting in enumerate(ours.runs):
            yield self.sat(FleetEnv(env.fleet, _of_training(env, n), env.test), Replay(sitting.actions))

    def right_size(self) -> Arm:
        """Train hosts of the teacher's shape, which pay rent for their size beyond the bare host's."""
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
    """Return the names of arms whose best learning rate is at an end of the grid; none if the grid has one rate."""
    ends = (grid[0], grid[-1]) if len(grid) > 1 else ()
    return tuple(arm.name for arm in arms if arm.lr in ends)


def _within(where: str, once: Once) -> Once:
    return lambda purpose, choose: once(f"{where}: {purpose}", choose)


def _of_training(env: FleetEnv, n: int) -> EnvConfig:
    """Return the env's config with hosts that only the n-th training meets."""
    return replace(env.config, rng_seed=env.config.rng_seed + n)


def _as_long(arm: Arm, cost: float) -> int:
    """Return the number of epochs that `cost` FLOPs buy an arm."""
    return max(1, round(arm.episode * cost / float(arm.values("flops").mean())))
