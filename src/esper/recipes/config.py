"""What a run consists of: fleets on tasks, a controller, and how it learns. All of it fits in a JSON file."""

import math
import types
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

from esper.kasmina.gates import LifecycleConfig
from esper.leyline.errors import EsperError
from esper.leyline.specs import HostSpec
from esper.simic import LearnConfig
from esper.simic.train import Training
from esper.tamiyo import Controller, ControllerConfig
from esper.tasks import load_task
from esper.tolaria import Engine, EnvConfig, Fleet, FleetEnv, TrainConfig


@dataclass(frozen=True, kw_only=True)
class FleetConfig:
    """Hosts of one kind on one task."""

    task: str
    """One of `esper tasks`."""
    options: dict[str, str | int | float] = field(default_factory=dict)
    """What the task is told, such as the path of a file."""
    host: str
    """A kind of host, such as cnn1d."""
    widths: tuple[int, ...]
    """Channels after each of its segments; there is a slot behind each."""
    hosts: int = 32
    """How many are trained at a time."""
    train: TrainConfig = TrainConfig()
    lifecycle: LifecycleConfig = LifecycleConfig()
    env: EnvConfig = EnvConfig()

    def __post_init__(self) -> None:
        if self.hosts < 1:
            raise EsperError(f"hosts must be at least 1, not {self.hosts}")

    def build(self, engine: Engine) -> FleetEnv:
        task = load_task(self.task, **self.options)
        spec = HostSpec(self.host, task.spec.inputs, task.spec.outputs, self.widths)
        fleet = Fleet(spec, task, range(self.hosts), self.train, lifecycle=self.lifecycle, engine=engine)
        return FleetEnv(fleet, self.env)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A run from beginning to end."""

    name: str
    fleets: tuple[FleetConfig, ...]
    """One controller learns on all of them together."""
    controller: ControllerConfig = ControllerConfig()
    learn: LearnConfig = LearnConfig()
    engine: Engine = Engine()
    checkpoint_every: int = 5
    """Updates from one checkpoint to the next."""
    keep: int = 3
    """Checkpoints that are kept, the best one aside."""

    def __post_init__(self) -> None:
        if not self.fleets:
            raise EsperError("fleets must hold at least one")
        for name in ("checkpoint_every", "keep"):
            if getattr(self, name) < 1:
                raise EsperError(f"{name} must be at least 1, not {getattr(self, name)}")

    def build(self) -> Training:
        """The training, ready for its first update."""
        controller = Controller(self.controller, self.learn.rng_seed).to(self.engine.device)
        return Training([fleet.build(self.engine) for fleet in self.fleets], controller, self.learn)

    def plain(self) -> dict[str, Any]:
        """For a JSON file."""
        return _plain(asdict(self))

    @classmethod
    def revived(cls, plain: Mapping[str, Any]) -> "Recipe":
        return _revive(cls, plain, "recipe")


def _plain(x: Any) -> Any:
    if isinstance(x, dict):
        return {name: _plain(value) for name, value in x.items()}
    if isinstance(x, list | tuple):
        return [_plain(value) for value in x]
    return str(x) if isinstance(x, float) and math.isinf(x) else x


def _revive(kind: Any, plain: Any, where: str) -> Any:
    """A value of this type from what JSON made of it; errors name the place."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        kinds = [k for k in inner if k is not type(None)]
        return plain if plain is None or len(kinds) > 1 else _revive(kinds[0], plain, where)
    if isinstance(kind, type) and is_dataclass(kind):
        if not isinstance(plain, Mapping):
            raise EsperError(f"{where} must be an object, not {plain!r}")
        hints = get_type_hints(kind)
        unknown = sorted(plain.keys() - {f.name for f in fields(kind)})
        if unknown:
            raise EsperError(f"{where} has an unknown field {unknown[0]!r}")
        return kind(**{name: _revive(hints[name], value, f"{where}.{name}") for name, value in plain.items()})
    if origin is tuple:
        if not isinstance(plain, list | tuple):
            raise EsperError(f"{where} must be a list, not {plain!r}")
        kinds = inner[:1] * len(plain) if inner[-1] is Ellipsis else inner
        return tuple(_revive(k, x, f"{where}[{i}]") for i, (k, x) in enumerate(zip(kinds, plain, strict=True)))
    if origin is dict:
        return {name: _revive(inner[1], value, f"{where}.{name}") for name, value in plain.items()}
    if kind is float and not isinstance(plain, bool) and isinstance(plain, int | float | str):
        try:
            return float(plain)
        except ValueError:
            raise EsperError(f"{where} must be a number, not {plain!r}") from None
    if kind in (int, str, bool) and (not isinstance(plain, kind) or (kind is int and isinstance(plain, bool))):
        raise EsperError(f"{where} must be of type {kind.__name__}, not {plain!r}")
    return plain
