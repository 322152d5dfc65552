"""The settings that exams are held in. Those of HELD_OUT are never learned from."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from esper.leyline.errors import unknown
from esper.recipes.config import FleetConfig
from esper.tolaria import EnvConfig, TrainConfig


def _signals(
    width: int, slots: int = 3, lr: float = 5e-3, epochs: int = 20, task: str = "mnist1d", **options: float
) -> FleetConfig:
    env, train = EnvConfig(episode=epochs, group=16), TrainConfig(lr=lr, batch_size=128)
    found: dict[str, int | float | str] = {**options}
    return FleetConfig(task=task, options=found, host="cnn1d", widths=(width,) * slots, hosts=48, train=train, env=env)


def _vectors(task: str, width: int, **options: int) -> FleetConfig:
    env, train = EnvConfig(episode=20, group=16), TrainConfig(lr=1e-2, batch_size=128)
    found: dict[str, int | float | str] = {**options}
    return FleetConfig(task=task, options=found, host="mlp", widths=(width,) * 2, hosts=48, train=train, env=env)


def _images(width: int) -> FleetConfig:
    env, train = EnvConfig(episode=16, group=16), TrainConfig(lr=5e-3)
    return FleetConfig(task="digits", host="cnn2d", widths=(width,) * 2, hosts=48, train=train, env=env)


SUITE: dict[str, Callable[[], FleetConfig]] = {
    "mnist1d-4": lambda: _signals(4),
    "mnist1d-8": lambda: _signals(8),
    "mnist1d-16": lambda: _signals(16),
    "spirals": lambda: _vectors("spirals", 6),
    "planted": lambda: _vectors("planted", 4, inputs=4, classes=8),
    "digits": lambda: _images(6),
}
HELD_OUT = ("digits",)
"""A task and a kind of host that no shipped controller was trained on."""


def varied() -> tuple[FleetConfig, ...]:
    """What the controller that comes with Esper learns from: for two kinds of hosts some that growth helps and some
    that it only makes dearer; few slots and more, short lives and longer ones, little data and much, slow and fast."""
    fleets = (
        replace(_signals(8), hosts=96),
        _signals(16, examples=1700),
        _signals(12, lr=1e-2, examples=500),
        _signals(6, slots=2, lr=1e-2, examples=1200),
        _signals(6, slots=2, lr=1e-2, epochs=10, examples=1700),
        _signals(4, slots=2, lr=2e-2, task="waves", noise=0.1),
        _signals(12, slots=2, lr=1e-2, task="waves", examples=2000),
        _vectors("spirals", 6, examples=2000),
        _vectors("spirals", 6, arms=5, examples=2000),
        _vectors("spirals", 16, arms=5, examples=2000),
        _vectors("planted", 4, examples=2000),
    )
    return tuple(replace(fleet, rates=(0.5, 1.0, 2.0)) for fleet in fleets)


def images(path: str | Path) -> FleetConfig:
    """Images of your own, such as CIFAR-10."""
    env, train = EnvConfig(episode=20, group=16), TrainConfig(lr=5e-3, batch_size=256)
    found: dict[str, int | float | str] = {"path": str(path), "name": Path(path).stem}
    return FleetConfig(task="images", options=found, host="cnn2d", widths=(8, 16, 32), hosts=48, train=train, env=env)


def text(path: str | Path) -> FleetConfig:
    """A text of your own, character by character."""
    env, train = EnvConfig(episode=12, group=16), TrainConfig(lr=3e-3, batch_size=128)
    found: dict[str, int | float | str] = {"path": str(path), "name": Path(path).stem}
    return FleetConfig(task="text", options=found, host="transformer", widths=(32, 32), hosts=48, train=train, env=env)


def setting(name: str) -> FleetConfig:
    if name not in SUITE:
        raise unknown("setting", name, SUITE)
    return SUITE[name]()
