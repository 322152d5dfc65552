"""What a run consists of: fleets on tasks, a controller, and how it learns. All of it fits in a JSON file."""

import gc
import math
from dataclasses import asdict, dataclass, field, replace
from enum import IntEnum, unique
from typing import Any

import torch

from esper.kasmina.gates import LifecycleConfig
from esper.leyline.errors import EsperError
from esper.leyline.json_records import from_json
from esper.leyline.specs import HostSpec
from esper.leyline.state import Split
from esper.simic import LearnConfig
from esper.simic.train import Training
from esper.tamiyo import Controller, ControllerConfig
from esper.tasks import load_task, load_test
from esper.tolaria import Engine, EnvConfig, Fleet, FleetEnv, TrainConfig


@unique
class Band(IntEnum):
    """What hosts are for: added to the rng_seed of those that are learned from, so that none serves two purposes."""

    LEARN = 0
    DEVELOPMENT = 1_000_000
    """Scores to look at while one works."""
    SEARCH = 2_000_000
    """A head start's plans are tried on these, every round of a tournament on others..."""
    SHOW = 3_000_000
    """...and imitated on these."""
    TUNE = 4_000_000
    """Learning rates of an exam's arms."""
    PLANS = 5_000_000
    """An exam's plans; every round of a tournament has hosts of its own."""
    OTHERS = 6_000_000
    """Hosts to replay growth on; every training's on its own."""
    FINAL = 13_000_000
    """Final scores, and nothing else. Those of 7 to 12 million were looked at while `general` and exams were made."""


@dataclass(frozen=True, kw_only=True)
class FleetConfig:
    """Hosts of one kind on one task."""

    task: str
    """One of `esper tasks`."""
    options: dict[str, int | float | str] = field(default_factory=dict)
    """What the task is told, such as the path of a file."""
    host: str
    """A kind of host, such as cnn1d."""
    widths: tuple[int, ...]
    """Channels after each of its segments; there is a slot behind each."""
    hosts: int = 32
    """How many are trained at a time."""
    rates: tuple[float, ...] = (1.0,)
    """Learning rates as multiples of train.lr: each group of siblings has one, in turn. Exams have their own."""
    train: TrainConfig = TrainConfig()
    lifecycle: LifecycleConfig = LifecycleConfig()
    env: EnvConfig = EnvConfig()

    def __post_init__(self) -> None:
        if self.hosts < 1:
            raise EsperError(f"hosts must be at least 1, not {self.hosts}")
        if not self.rates or not all(rate > 0 for rate in self.rates):
            raise EsperError(f"rates must be positive, and at least one, not {self.rates}")
        least = len(self.rates) * self.env.group
        if len(self.rates) > 1 and self.hosts < least:
            raise EsperError(f"hosts must be at least {least}, a group for each of the rates, not {self.hosts}")

    def alike(self, other: "FleetConfig") -> bool:
        """Whether it is the same setting, whichever hosts are meant and however they are grouped."""
        return self._setting == other._setting

    @property
    def _setting(self) -> tuple[Any, ...]:
        env = replace(self.env, rng_seed=0, group=1, staggered=False)
        return self.task, self.options, self.host, self.widths, self.train, self.lifecycle, env

    @property
    def variant(self) -> str:
        """What the task is told, for people; where a file lies is nobody's business."""
        told = {name: value for name, value in self.options.items() if name not in ("path", "name")}
        return ", ".join(f"{name} {value}" for name, value in told.items())

    def build(self, engine: Engine) -> FleetEnv:
        return self.at_rates(FleetEnv(self.fleet(engine, self.hosts), self.env))

    def at_rates(self, env: FleetEnv) -> FleetEnv:
        """An env whose groups learn at the rates of this, in turn."""
        rates = torch.tensor(self.rates, dtype=torch.float64, device=env.fleet.device)
        env.fleet.learn_at(self.train.lr * rates[env.groups % len(rates)])
        return env

    def fleet(self, engine: Engine, hosts: int) -> Fleet:
        gc.collect()  # the last fleet and its recorded programs refer to each other, and hold the device's memory
        task = load_task(self.task, **self.options)
        spec = HostSpec(self.host, task.spec.inputs, task.spec.outputs, self.widths)
        return Fleet(spec, task, range(hosts), self.train, lifecycle=self.lifecycle, engine=engine)

    def build_group(self, engine: Engine, hosts: int, group: int, band: int) -> FleetEnv:
        """Some hosts, each of them for every policy of a group; other ones in every band of rng_seeds."""
        return Places(self, engine).env(hosts, group, band)

    def test_data(self) -> Split:
        """What final exams are scored on."""
        return load_test(self.task, **self.options)


class Places:
    """A fleet for one group of hosts after the other: it is built anew only where their number changes. Whoever was
    there before must have ended, and leaves no trace."""

    def __init__(self, config: FleetConfig, engine: Engine) -> None:
        self.config, self.engine = config, engine
        self.fleet: Fleet | None = None

    def env(self, hosts: int, group: int, band: int, test: Split | None = None, episode: int | None = None) -> FleetEnv:
        """Some hosts of a band, each of them for every policy of a group."""
        if self.fleet is None or self.fleet.num_hosts != hosts * group:
            self.fleet = None  # its memory may be needed
            self.fleet = self.config.fleet(self.engine, hosts * group)
        env = self.config.env
        rng_seed, episode = env.rng_seed + band, episode or env.episode
        config = replace(env, group=group, staggered=False, rng_seed=rng_seed, episode=episode)
        return self.config.at_rates(FleetEnv(self.fleet, config, test))


@dataclass(frozen=True, kw_only=True)
class WarmStartConfig:
    """A head start: never, the heuristic and plans written by chance meet in a tournament; the best are imitated."""

    run: str = ""
    """The folder of a run to go on from, or `shipped` for the controller that comes along. What it does in settings
    that it knows is imitated, too; in others it takes part in the tournament."""
    plans: int = 0
    """How many to try; 0 to imitate nobody."""
    hosts: int = 2
    """Hosts that each is tried on at first; four times as many in every round."""
    best: int = 2
    """Policies that are imitated."""
    lives: int = 12
    """Lives of each of them to learn from."""
    epochs: int = 40
    """Passes over those lives."""

    def __post_init__(self) -> None:
        if self.plans < 0:
            raise EsperError(f"plans must not be negative, not {self.plans}")
        for name in ("hosts", "best", "lives", "epochs"):
            if getattr(self, name) < 1:
                raise EsperError(f"{name} must be at least 1, not {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A run from beginning to end."""

    name: str
    fleets: tuple[FleetConfig, ...]
    """One controller learns on all of them together."""
    known: tuple[FleetConfig, ...] = ()
    """What the run that it goes on from has learned from."""
    controller: ControllerConfig = ControllerConfig()
    warm_start: WarmStartConfig = WarmStartConfig()
    learn: LearnConfig = LearnConfig()
    engine: Engine = Engine()
    checkpoint_every: int = 5
    """Updates from one checkpoint to the next."""
    keep: int = 3
    """Checkpoints that are kept, the best one aside."""
    exam: int = 16
    """Fresh hosts of each fleet on which the controller is compared with simple policies at the end; 0 to leave that
    for later."""

    def __post_init__(self) -> None:
        if not self.fleets:
            raise EsperError("fleets must hold at least one")
        for name, least in (("checkpoint_every", 1), ("keep", 1)):
            if getattr(self, name) < least:
                raise EsperError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if self.exam < 0 or self.exam == 1:
            raise EsperError(f"exam must be at least 2 hosts, or 0 for none, not {self.exam}")

    @property
    def learned_from(self) -> tuple[FleetConfig, ...]:
        """All settings that the controller has met in the end."""
        return (*self.fleets, *(old for old in self.known if not any(old.alike(fleet) for fleet in self.fleets)))

    def build(self) -> Training:
        """The training, ready for its first update."""
        controller = Controller(self.controller, self.learn.rng_seed).to(self.engine.place())
        return Training([fleet.build(self.engine) for fleet in self.fleets], controller, self.learn)

    def plain(self) -> dict[str, Any]:
        """For a JSON file."""
        return _plain(asdict(self))

    @classmethod
    def revived(cls, plain: Any) -> "Recipe":
        return from_json(cls, _without_anchor(plain), "recipe")


def _without_anchor(plain: Any) -> Any:
    """A recipe as JSON, without the field `learn.ppo.anchor_coef` of earlier runs, which was 0 in all of them."""
    try:
        ppo = plain["learn"]["ppo"]
        rest = {name: value for name, value in ppo.items() if (name, value) != ("anchor_coef", 0.0)}
        return plain | {"learn": plain["learn"] | {"ppo": rest}}
    except (AttributeError, KeyError, TypeError):
        return plain  # not a recipe: `from_json` says what is wrong with it


def _plain(x: Any) -> Any:
    if isinstance(x, dict):
        return {name: _plain(value) for name, value in x.items()}
    if isinstance(x, list | tuple):
        return [_plain(value) for value in x]
    return str(x) if isinstance(x, float) and math.isinf(x) else x
