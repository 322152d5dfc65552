"""Save and restore a fleet in the middle of its episodes: everything that its next decision depends on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from esper.leyline.tensor_files import Tensors, fields_of, fits, flatten, match, unflatten
from esper.tolaria.assignment import Kind
from esper.tolaria.bucket import Bucket
from esper.tolaria.env import FleetEnv
from esper.tolaria.fleet import Fleet

HOSTS = ("rng_seeds", "epoch", "lr", "seed_lr", "state", "vitals")


def env_tensors(env: FleetEnv) -> Tensors:
    """Return the tensors of an env that has been reset, with those of its fleet."""
    fleet = env.fleet
    tensors = flatten(env.state, "lives")
    tensors |= {path: x for name in _kept(fleet) for path, x in flatten(getattr(fleet, name), f"hosts/{name}").items()}
    tensors |= flatten(fleet.trunk.tensors, "trunk")
    for kind, bucket in fleet.buckets.items():
        name = _name(kind)
        tensors |= flatten(bucket.stack.tensors, name)
        tensors[f"{name}/hosts"] = torch.from_numpy(bucket.hosts)
        tensors[f"{name}/idle"] = torch.tensor(fleet.network.idle.get(kind, 0))
    return tensors


def _kept(fleet: Fleet) -> tuple[str, ...]:
    """Return the attributes of a fleet that are kept. Files of lives counted in epochs hold no budget."""
    return HOSTS if fleet.budget is None else (*HOSTS, "budget", "spent", "over")


def env_settings(env: FleetEnv) -> dict[str, Any]:
    """Return the settings that an env must share with the one that was saved."""
    fleet = env.fleet
    return {
        "host": fields_of(fleet.spec, "slots"),
        "blueprints": fleet.space.blueprints,
        "num_hosts": fleet.num_hosts,
        "training": fields_of(fleet.config, "steps"),
        "lifecycle": fields_of(fleet.lifecycle, "lesson_every", "measure_every", "measure_fossilized"),
        "precision": fleet.engine.precision,
        "env": fields_of(env.config, "budget"),
    }


def env_description(env: FleetEnv) -> dict[str, Any]:
    """Return the settings of an env, and the kinds of its seeds."""
    return env_settings(env) | {"kinds": list(env.fleet.buckets)}


def restore_env(path: str | Path, env: FleetEnv, tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> None:
    """Restore the saved episodes and fleet.

    Raises:
        FileError: If the file does not fit the env. Nothing is changed then.
    """
    fits(path, env_settings(env), description)
    kinds = [Kind(slot, blueprint) for slot, blueprint in description["kinds"]]
    match(path, _expected(env, tensors, kinds), tensors)
    env.state = unflatten(env.state, "lives", tensors)
    _restore_fleet(env.fleet, tensors, kinds)


def _name(kind: Kind) -> str:
    return f"bucket/{kind.slot}/{kind.blueprint}"


def _expected(env: FleetEnv, tensors: Mapping[str, Tensor], kinds: list[Kind]) -> Tensors:
    """Return tensors of the shapes that this env needs: its own, and buckets with the row counts of the file."""
    needed = {name: x for name, x in env_tensors(env).items() if not name.startswith("bucket/")}
    for kind in kinds:
        rows = len(tensors[f"{_name(kind)}/hosts"])
        bucket = _bucket(env.fleet, kind)
        needed |= {f"{_name(kind)}/{part}": x.new_empty(rows, *x.shape[1:]) for part, x in bucket.stack.tensors.items()}
        needed |= {f"{_name(kind)}/hosts": torch.empty(rows), f"{_name(kind)}/idle": torch.empty(())}
    return needed


def _bucket(fleet: Fleet, kind: Kind) -> Bucket:
    network = fleet.network
    if kind not in network.known:
        network.known[kind] = Bucket(kind, fleet.slots[kind.slot], fleet.device, network.dtype, network.room)
    return network.known[kind]


def _restore_fleet(fleet: Fleet, tensors: Mapping[str, Tensor], kinds: list[Kind]) -> None:
    for name in _kept(fleet):
        setattr(fleet, name, unflatten(getattr(fleet, name), f"hosts/{name}", tensors))
    for name, tensor in fleet.trunk.tensors.items():
        tensor.copy_(tensors[f"trunk/{name}"])
    fleet.network.buckets, fleet.network.idle = {}, {}
    no_rows = torch.zeros(0, dtype=torch.long, device=fleet.device)
    for kind in kinds:
        bucket = fleet.network.buckets[kind] = _bucket(fleet, kind)
        bucket.hosts = tensors[f"{_name(kind)}/hosts"].cpu().numpy()
        bucket.stack.resize(no_rows, len(bucket.hosts))
        for part, tensor in bucket.stack.tensors.items():
            tensor.copy_(tensors[f"{_name(kind)}/{part}"])
        fleet.network.idle[kind] = int(tensors[f"{_name(kind)}/idle"])
