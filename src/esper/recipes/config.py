"""Configs of a training run: fleets on tasks, the controller, its warm start and how it learns."""

import gc
import math
from dataclasses import asdict, dataclass, field, replace
from enum import IntEnum, unique
from typing import Any, TypeVar

import torch

from esper.kasmina.gates import LifecycleConfig
from esper.leyline.errors import EsperError, unknown
from esper.leyline.json_records import from_json
from esper.leyline.specs import HostSpec
from esper.leyline.state import Split
from esper.simic import LearnConfig
from esper.simic.train import Training
from esper.simic.workers import ALONE, Workers
from esper.tamiyo import Controller, ControllerConfig
from esper.tamiyo.features import HIDEABLE
from esper.tasks import load_task, load_test
from esper.tolaria import Engine, EnvConfig, Fleet, FleetEnv, TrainConfig


@unique
class Band(IntEnum):
    """The purpose of a host: an offset that is added to a fleet's rng_seed, so that no host serves two purposes."""

    LEARN = 0
    """Train the controller."""
    DEVELOPMENT = 1_000_000
    """Score preliminary exams."""
    SEARCH = 2_000_000
    """Try the plans of a warm start; each round of the tournament adds its number."""
    SHOW = 3_000_000
    """Record the episodes that a warm start clones."""
    TUNE = 4_000_000
    """Choose the learning rates of an exam's arms."""
    PLANS = 5_000_000
    """Choose an exam's plans; each round of the tournament adds its number."""
    OTHERS = 6_000_000
    """Replay growth on other hosts; each training adds its index."""
    FINAL = 13_000_000
    """Score final exams, and nothing else. Bands of 7 to 12 million were used up while `general` was developed."""


@dataclass(frozen=True, kw_only=True)
class FleetConfig:
    """A fleet of hosts of one architecture, trained on one task.

    Example:
        ```python
        fleet = FleetConfig(task="spirals", host="mlp", widths=(4, 4), hosts=16)
        env = fleet.build(Engine())
        ```
    """

    task: str
    """Name of a task; `esper tasks` lists them."""
    options: dict[str, int | float | str] = field(default_factory=dict)
    """Options of the task, such as examples or path."""
    host: str
    """Kind of host, such as mlp, cnn1d, cnn2d or transformer."""
    widths: tuple[int, ...]
    """Width of each segment of a host; a slot follows each segment."""
    slots: int = 1
    """Slots behind each segment."""
    sizes: tuple[tuple[int, ...], ...] = ()
    """Widths of the hosts that exams on a budget train from scratch, to compare with: a grid of depths or widths."""
    hosts: int = 32
    """Number of hosts that are trained at the same time."""
    rates: tuple[float, ...] = (1.0,)
    """Learning rates of the groups of siblings, in turn, as multiples of train.lr. Exams use rates of their own."""
    train: TrainConfig = TrainConfig()
    """How hosts are trained."""
    lifecycle: LifecycleConfig = LifecycleConfig()
    """When seeds move from stage to stage."""
    env: EnvConfig = EnvConfig()
    """Length of an episode, groups of siblings, random seed."""

    def __post_init__(self) -> None:
        if self.hosts < 1:
            raise EsperError(f"hosts must be at least 1, not {self.hosts}")
        if not self.rates or not all(rate > 0 for rate in self.rates):
            raise EsperError(f"rates must hold at least one number, all positive, not {self.rates}")
        least = len(self.rates) * self.env.group
        if len(self.rates) > 1 and self.hosts < least:
            raise EsperError(f"hosts must be at least {least}, one group for each of the rates, not {self.hosts}")

    def alike(self, other: "FleetConfig") -> bool:
        """Whether both configs describe one setting; the number, groups and random seeds of hosts may differ."""
        return self._setting == other._setting

    @property
    def _setting(self) -> tuple[Any, ...]:
        env = replace(self.env, rng_seed=0, group=1, staggered=False)
        return self.task, self.options, self.host, self.widths, self.slots, self.train, self.lifecycle, env

    @property
    def variant(self) -> str:
        """The options of the task as text, without file paths."""
        public = {name: value for name, value in self.options.items() if name not in ("path", "name")}
        return ", ".join(f"{name} {value}" for name, value in public.items())

    def build(self, engine: Engine) -> FleetEnv:
        """Build the env that a controller is trained in."""
        return self.at_rates(FleetEnv(self.fleet(engine, self.hosts), self.env))

    def at_rates(self, env: FleetEnv) -> FleetEnv:
        """Set the learning rates of an env's groups to `rates`, in turn, and return it."""
        rates = torch.tensor(self.rates, dtype=torch.float64, device=env.fleet.device)
        env.fleet.learn_at(self.train.lr * rates[env.groups % len(rates)])
        return env

    def fleet(self, engine: Engine, hosts: int) -> Fleet:
        """Build a fleet of this many hosts."""
        gc.collect()  # a fleet and its recorded programs refer to each other, and hold the device's memory
        task = load_task(self.task, **self.options)
        spec = HostSpec(self.host, task.spec.inputs, task.spec.outputs, self.widths, self.slots)
        return Fleet(spec, task, range(hosts), self.train, lifecycle=self.lifecycle, engine=engine)

    def build_group(self, engine: Engine, hosts: int, group: int, band: int) -> FleetEnv:
        """Build an env with `hosts` groups of `group` identical hosts, drawn from a band of random seeds."""
        return Places(self, engine).env(hosts, group, band)

    def test_data(self) -> Split:
        """Load the test data, on which final exams are scored."""
        return load_test(self.task, **self.options)


class Places:
    """A fleet that is reused for one env after the other, and built anew only when the number of hosts changes.

    The episodes of the env before must have ended; they leave no trace.
    """

    def __init__(self, config: FleetConfig, engine: Engine) -> None:
        self.config, self.engine = config, engine
        self.fleet: Fleet | None = None

    def env(self, hosts: int, group: int, band: int, test: Split | None = None, episode: int | None = None) -> FleetEnv:
        """Build an env with `hosts` groups of `group` identical hosts, drawn from a band of random seeds."""
        if self.fleet is None or self.fleet.num_hosts != hosts * group:
            self.fleet = None  # its memory may be needed
            self.fleet = self.config.fleet(self.engine, hosts * group)
        env = self.config.env
        rng_seed, episode = env.rng_seed + band, episode or env.episode
        config = replace(env, group=group, staggered=False, rng_seed=rng_seed, episode=episode)
        return self.config.at_rates(FleetEnv(self.fleet, config, test))


@dataclass(frozen=True, kw_only=True)
class WarmStartConfig:
    """What happens to the controller before its first update: take over weights, search for good plans, clone them.

    On every fleet, never growing, the heuristic and random plans meet in a tournament; the winners are cloned. Where
    episodes draw their price of growth, there are winners at every price.
    """

    run: str = ""
    """Folder of the run to continue from, or `shipped` for Esper's own controller; empty: random weights. Its
    controller clones itself where it was trained, and takes part in the tournament elsewhere."""
    plans: int = 0
    """Number of random plans to try on every fleet; 0: no search and no cloning."""
    hosts: int = 2
    """Hosts for each policy in the first round; every later round has four times as many."""
    best: int = 2
    """Number of winners to clone, at each price of growth."""
    lives: int = 12
    """Episodes to record of each winner."""
    epochs: int = 40
    """Passes over the recorded episodes."""

    def __post_init__(self) -> None:
        if self.plans < 0:
            raise EsperError(f"plans must not be negative, not {self.plans}")
        for name in ("hosts", "best", "lives", "epochs"):
            if getattr(self, name) < 1:
                raise EsperError(f"{name} must be at least 1, not {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """A stage of training that comes before the recipe's own fleets."""

    fleets: tuple[FleetConfig, ...]
    """Fleets to train on in this stage."""
    warm_start: WarmStartConfig = WarmStartConfig()
    """Search and cloning at the beginning of this stage; the controller of the stage before takes part."""
    learn: LearnConfig = LearnConfig()
    """How the controller learns in this stage."""
    reveal: tuple[str, ...] = ()
    """Groups of features (telemetry, size) that this stage shows although the recipe's controller hides them."""

    def __post_init__(self) -> None:
        if not self.fleets:
            raise EsperError("pretrain.fleets must hold at least one fleet")
        if self.warm_start.run:
            raise EsperError("pretrain.warm_start.run must be empty: set warm_start.run of the recipe")
        for group in self.reveal:
            if group not in HIDEABLE:
                raise unknown("group of features", group, HIDEABLE)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A complete training run as data: what a controller is trained on, how, and how it is examined.

    A recipe survives JSON (`plain`, `revived`), and every field is a flag of `esper train`, such as
    `--learn.updates 10` or `--fleets.0.hosts 8`. Use `dataclasses.replace` to change one in Python.

    Example:
        ```python
        training = recipe("smoke").build()
        report = training.step()
        ```
    """

    name: str
    """Name of the recipe."""
    pretrain: tuple[PretrainConfig, ...] = ()
    """Stages of training that come first, each with fleets of its own; none in most recipes."""
    fleets: tuple[FleetConfig, ...]
    """Fleets that one controller is trained on together, and examined on."""
    known: tuple[FleetConfig, ...] = ()
    """Fleets of the run that this one continues from; set by `--warm-start.run`."""
    controller: ControllerConfig = ControllerConfig()
    """Size of the controller, and what it sees."""
    warm_start: WarmStartConfig = WarmStartConfig()
    """Where the controller's first weights come from."""
    learn: LearnConfig = LearnConfig()
    """How the controller learns."""
    engine: Engine = Engine()
    """Device, precision and memory."""
    checkpoint_every: int = 5
    """Updates between checkpoints."""
    keep: int = 3
    """Number of newest checkpoints to keep, besides the best controller."""
    exam: int = 16
    """Fresh hosts of each fleet for the preliminary exam at the end; 0: no exam."""

    def __post_init__(self) -> None:
        if not self.fleets:
            raise EsperError("fleets must hold at least one fleet")
        for name, least in (("checkpoint_every", 1), ("keep", 1)):
            if getattr(self, name) < least:
                raise EsperError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if self.exam < 0 or self.exam == 1:
            raise EsperError(f"exam must be at least 2 hosts, or 0 for none, not {self.exam}")

    @property
    def stages(self) -> tuple["Recipe", ...]:
        """The stages of training in order, each as a recipe without stages of its own; the last has `fleets`."""
        found: list[Recipe] = []
        configs = [
            *self.pretrain,
            PretrainConfig(fleets=self.fleets, warm_start=replace(self.warm_start, run=""), learn=self.learn),
        ]
        for n, config in enumerate(configs):
            found.append(
                replace(
                    self,
                    pretrain=(),
                    fleets=config.fleets,
                    known=found[-1].learned_from if found else self.known,
                    controller=replace(self.controller, **dict.fromkeys(config.reveal, True)),
                    warm_start=replace(config.warm_start, run="" if n else self.warm_start.run),
                    learn=config.learn,
                )
            )
        return tuple(found)

    @property
    def updates(self) -> int:
        """Number of updates in all stages together."""
        return sum(stage.learn.updates for stage in self.stages)

    @property
    def learned_from(self) -> tuple[FleetConfig, ...]:
        """All settings that the controller has been trained on by the end, the fleets of earlier stages included."""
        known = self.stages[-1].known if self.pretrain else self.known
        return (*self.fleets, *(old for old in known if not any(old.alike(fleet) for fleet in self.fleets)))

    def seeded(self, rng_seed: int) -> "Recipe":
        """Return this recipe with other random seeds; each stage has its own."""
        first = tuple(_seeded(stage, rng_seed + STAGE_SEEDS * n) for n, stage in enumerate(self.pretrain))
        return replace(_seeded(self, rng_seed + STAGE_SEEDS * len(first)), pretrain=first)

    def build(self, workers: Workers = ALONE) -> Training:
        """Build the training of the recipe's own fleets, ready for its first update; each worker gets its share."""
        controller = Controller(self.controller, self.learn.rng_seed).to(self.engine.place())
        own = workers.share(self.fleets)
        return Training([fleet.build(self.engine) for fleet in own], controller, self.learn, workers)

    def plain(self) -> dict[str, Any]:
        """Return this recipe as nested dicts and lists for a JSON file."""
        return _plain(asdict(self))

    @classmethod
    def revived(cls, plain: Any) -> "Recipe":
        """Return the recipe that `plain` wrote, or that an older Esper wrote into a run folder.

        Raises:
            EsperError: A field is unknown, missing or of the wrong type; the message names its place.
        """
        for old, new in OLDER_FIELDS.items():
            plain = _renamed(plain, old.split("."), new)
        return from_json(cls, plain, "recipe")


STAGE_SEEDS = 10
"""Difference between the random seeds of consecutive stages."""
OLDER_FIELDS: dict[str, str | None] = {"start": "warm_start", "learn.ppo.anchor_coef": None}
"""Fields of configs written by older versions: their name today, or None if they are ignored."""
T = TypeVar("T", Recipe, PretrainConfig)


def _seeded(stage: T, rng_seed: int) -> T:
    fleets = tuple(replace(fleet, env=replace(fleet.env, rng_seed=rng_seed)) for fleet in stage.fleets)
    return replace(stage, fleets=fleets, learn=replace(stage.learn, rng_seed=rng_seed))


def _renamed(plain: Any, path: list[str], new: str | None) -> Any:
    """A copy of nested dicts in which the field at `path` has a new name, or is left out."""
    name, *rest = path
    if not isinstance(plain, dict) or name not in plain:
        return plain
    if rest:
        return plain | {name: _renamed(plain[name], rest, new)}
    others = {key: value for key, value in plain.items() if key != name}
    return others if new is None else {new: plain[name]} | others


def _plain(x: Any) -> Any:
    if isinstance(x, dict):
        return {name: _plain(value) for name, value in x.items()}
    if isinstance(x, list | tuple):
        return [_plain(value) for value in x]
    return str(x) if isinstance(x, float) and math.isinf(x) else x
