"""Checkpoints restore everything that the next decision depends on, or nothing."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from esper.kasmina import LifecycleConfig, register_blueprint, unregister_blueprint
from esper.kasmina.blueprints.vector import low_rank
from esper.leyline.errors import FileError
from esper.tolaria import Engine, EnvConfig, FleetEnv, TrainConfig
from esper.tolaria.checkpoint import env_description, env_tensors, restore_env
from planted_fleets import small_fleet
from toys import random_legal

ACCUMULATORS = ("losses", "pulls")
"""Of a fleet: zeroed before every epoch."""


def parts(thing: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors of records within records."""
    if isinstance(thing, Tensor):
        yield name, thing
    elif isinstance(thing, dict):
        for key, value in thing.items():
            yield from parts(value, f"{name}/{key}")
    elif hasattr(thing, "_asdict"):
        yield from parts(thing._asdict(), name)


def everything(env: FleetEnv) -> dict[str, Tensor]:
    """Copy all tensors of an env and its fleet, found by reflection."""
    fleet, network = env.fleet, env.fleet.network
    owned = {name: x for name, x in vars(fleet).items() if name not in ACCUMULATORS}
    found = dict(parts(vars(env), "env")) | dict(parts(owned, "fleet"))
    for kind, stack in network.stacks.items():
        found |= dict(parts(stack.tensors, f"stack {kind}"))
    for kind, bucket in network.buckets.items():
        found |= {f"hosts {kind}": torch.tensor(bucket.hosts), f"idle {kind}": torch.tensor(network.idle[kind])}
    return {name: x.clone() for name, x in found.items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.allclose(a[name], b[name], rtol=0, atol=0, equal_nan=True) for name in a)


def lived(actions_seed: int, decisions: int, **options) -> FleetEnv:
    """Four hosts in the middle of their episodes, after random legal actions."""
    env = EnvConfig(episode=7, group=2, staggered=True, **options.pop("env", {}))
    hasty = LifecycleConfig(training=1, min_prune_age=0)
    world = FleetEnv(small_fleet(4, lifecycle=hasty, **options), env)
    world.fleet.network.patience = 3  # kinds that nobody holds stay for a while, as on a GPU
    signals = world.reset()
    generator = torch.Generator().manual_seed(actions_seed)
    for _ in range(decisions):
        signals = world.step(random_legal(signals.legal, world.fleet.space.sizes, generator)).signals
    return world


@pytest.fixture(scope="module")
def saved() -> tuple[FleetEnv, dict[str, Tensor], dict[str, Any]]:
    world = lived(1, 9)
    world.fleet.learn_at(torch.tensor([0.01, 0.02, 0.03, 0.04], dtype=torch.float64))
    world.fleet.seed_lr *= 2
    tensors = {name: x.clone() for name, x in env_tensors(world).items()}
    return world, tensors, json.loads(json.dumps(env_description(world)))


def test_every_tensor_of_an_environment_is_restored(saved):
    world, tensors, description = saved
    assert any(world.fleet.network.idle[kind] for kind in world.fleet.buckets)
    assert len(world.fleet.buckets) > 2
    other = lived(2, 3)
    mine, its = everything(world), everything(other)
    told_apart = [name for name in mine if name.startswith("env/") and not torch.equal(mine[name], its[name])]
    for name in ("age", "births", "generation", "history/best_loss", "good/measured/loss", "good/state/stage"):
        assert f"env/state/{name}" in told_apart
    restore_env("here", other, tensors, description)
    assert same(mine, everything(other))
    actions = random_legal(world.fleet.legal(), world.fleet.space.sizes, torch.Generator().manual_seed(3))
    for env in (world, other):
        env.step(actions)
    assert same(everything(world), everything(other))


OTHERS = {
    "training": {"config": TrainConfig(batch_size=32, lr=0.1)},
    "env": {"env": {"penalty": 0.3}},
    "precision": {"engine": Engine(precision="fp64")},
}


@pytest.mark.parametrize("name", [*OTHERS, "blueprints", "a tensor is missing", "a tensor has another shape"])
def test_what_does_not_fit_is_refused_before_anything_changes(saved, name):
    _, tensors, description = saved
    tensors = dict(tensors)
    message = f"here holds another {name}"
    if name == "a tensor is missing":
        del tensors["trunk/steps"]
        message = "first 'trunk/steps'"
    if name == "a tensor has another shape":
        tensors["lives/age"] = tensors["lives/age"][:3]
        message = "first 'lives/age'"
    if name == "blueprints":
        register_blueprint("extra", low_rank, "vector")
    try:
        world = lived(2, 1, **OTHERS.get(name, {}))
    finally:
        if name == "blueprints":
            unregister_blueprint("extra", "vector")
    before = everything(world)
    with pytest.raises(FileError, match=message):
        restore_env("here", world, tensors, description)
    assert same(before, everything(world))
