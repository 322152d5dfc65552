"""Tiny environments, one for every kind of host, and how to play them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import Phase, settings

from esper.envs import GrowthEnv, GrowthVectorEnv
from esper.envs.checker import Moment
from esper.kasmina import host_kinds
from esper.leyline import Op
from esper.tolaria import TrainConfig

FAST = {"budget": 3.5, "slots": 1}
OPTIONS: dict[str, dict[str, Any]] = {
    "mlp": {"task": "spirals", "widths": (4, 4), "options": {"examples": 300}},
    "cnn1d": {"task": "waves", "widths": (4, 4), "options": {"examples": 120}},
    "cnn2d": {"task": "glyphs", "widths": (4, 4), "options": {"examples": 120}},
    "transformer": {"task": "phrases", "widths": (8, 8), "options": {"examples": 120, "words": 8, "context": 8}},
    "gpt": {"task": "phrases", "widths": (8,), "slots": 2, "options": {"examples": 120, "words": 8, "context": 8}},
    "resnet": {"task": "glyphs", "widths": (4, 4), "options": {"examples": 120}},
}
assert set(OPTIONS) == set(host_kinds()), "every kind of host needs an environment"
KINDS = tuple(OPTIONS)


def examples(count: int) -> settings:
    """Try some examples, and report the first that fails: making it smaller would take minutes."""
    return settings(max_examples=count, phases=(Phase.explicit, Phase.generate))


def options_of(kind: str, **changes: Any) -> dict[str, Any]:
    """Hosts of a kind that learn a few steps at a time and live for a few decisions."""
    train = TrainConfig(lr=1e-2, batch_size=16, steps=2)
    return FAST | {"host": kind, "train": train} | OPTIONS[kind] | changes


def single_env(kind: str = "mlp", render_mode: str | None = None, **changes: Any) -> GrowthEnv:
    return GrowthEnv(render_mode, **options_of(kind, **changes))


def vector_env(num_envs: int = 3, kind: str = "mlp", render_mode: str | None = None, **changes: Any) -> GrowthVectorEnv:
    return GrowthVectorEnv(num_envs, render_mode, **options_of(kind, **changes))


def waiting(envs: GrowthVectorEnv) -> np.ndarray:
    return np.zeros(envs.action_space.shape, dtype=np.int64)


def action(envs: GrowthVectorEnv, op: Op | str, **choices: object) -> np.ndarray:
    """One action for every host."""
    return np.tile(envs.setting.space.action(op, **choices), (envs.num_envs, 1))


def random_actions(envs: GrowthVectorEnv, steps: int, rng_seed: int = 0) -> np.ndarray:
    """Actions of every host for some steps, legal and illegal."""
    rng = np.random.default_rng(rng_seed)
    return rng.integers(envs.single_action_space.nvec, size=(steps, *envs.action_space.shape))


def played(envs: GrowthVectorEnv, actions: np.ndarray, seed: Any = 0) -> Iterator[Moment]:
    """What a reset and the actions lead to."""
    observations, infos = envs.reset(seed=seed)
    nothing = np.zeros(envs.num_envs)
    yield Moment(observations, nothing, nothing.astype(bool), nothing.astype(bool), infos)
    for chosen in actions:
        yield Moment(*envs.step(chosen))
