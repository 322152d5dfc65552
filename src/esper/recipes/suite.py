"""The settings that exams are held in. Those of HELD_OUT are never learned from."""

from collections.abc import Callable

from esper.leyline.errors import unknown
from esper.recipes.config import FleetConfig
from esper.tolaria import EnvConfig, TrainConfig


def _mnist1d(width: int) -> FleetConfig:
    env, train = EnvConfig(episode=20, group=16), TrainConfig(lr=5e-3, batch_size=128)
    return FleetConfig(task="mnist1d", host="cnn1d", widths=(width,) * 3, hosts=96, train=train, env=env)


def _units(task: str, width: int, lr: float, **options: int) -> FleetConfig:
    env, train = EnvConfig(episode=20, group=16), TrainConfig(lr=lr)
    found: dict[str, int | float | str] = {**options}
    return FleetConfig(task=task, options=found, host="mlp", widths=(width,) * 2, hosts=96, train=train, env=env)


def _digits(width: int) -> FleetConfig:
    env, train = EnvConfig(episode=16, group=16), TrainConfig(lr=5e-3)
    return FleetConfig(task="digits", host="cnn2d", widths=(width,) * 2, hosts=96, train=train, env=env)


SUITE: dict[str, Callable[[], FleetConfig]] = {
    "mnist1d-4": lambda: _mnist1d(4),
    "mnist1d-8": lambda: _mnist1d(8),
    "mnist1d-16": lambda: _mnist1d(16),
    "spirals": lambda: _units("spirals", 6, 1e-2),
    "planted": lambda: _units("planted", 4, 1e-2),
    "digits": lambda: _digits(6),
}
HELD_OUT = ("digits",)
"""A task and a kind of host that no shipped controller was trained on."""


def setting(name: str) -> FleetConfig:
    if name not in SUITE:
        raise unknown("setting", name, SUITE)
    return SUITE[name]()
