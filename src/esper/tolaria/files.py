"""Training files: a model file and what the next step also needs: optimiser, slots' lives, random counters."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from esper.kasmina.files import Tensors, match, read, regrow, topology, write
from esper.kasmina.hosts import build_host
from esper.kasmina.lifecycle import problems
from esper.leyline.errors import FileError
from esper.leyline.state import SlotState, Vitals
from esper.tolaria.reference import Reference
from esper.tolaria.surgery import TRUNK, add_group, make_optimizer

TRAINING_FORMAT = "esper.training"


def save_training(path: str | Path, trainer: Reference) -> None:
    """Write everything that the next decision depends on."""
    tensors = {f"host/{name}": tensor for name, tensor in trainer.host.state_dict().items()}
    tensors |= {f"state/{name}": tensor for name, tensor in trainer.state._asdict().items()}
    tensors |= {f"vitals/{name}": tensor for name, tensor in trainer.vitals._asdict().items()}
    tensors |= optimizer_tensors(trainer.optimizer)
    description = topology(trainer.host) | {
        "space": {"slots": trainer.space.slots, "blueprints": trainer.space.blueprints},
        "optimizer": [
            {name: value for name, value in group.items() if name != "params"}
            for group in trainer.optimizer.param_groups
        ],
        "rng_seed": trainer.rng_seed,
        "epoch": trainer.epoch,
    }
    write(path, TRAINING_FORMAT, tensors, description)


def load_training(path: str | Path, trainer: Reference) -> None:
    """Make a trainer what the saved one was. A file that does not fit raises and changes nothing."""
    tensors, description = read(path, TRAINING_FORMAT)
    host = regrow(path, lambda: build_host(trainer.spec), _under("host/", tensors), description)
    optimizer = make_optimizer(host.segments.parameters(), trainer.config)
    for index, slot in enumerate(host.slot_specs):
        if host.slot(index).seed is not None:
            add_group(optimizer, slot.name, host.slot(index).parameters())
    fill_optimizer(path, optimizer, tensors, description["optimizer"])
    state, vitals = _under("state/", tensors), _under("vitals/", tensors)
    match(path, trainer.state._asdict() | trainer.vitals._asdict(), state | vitals)
    blueprints = description["space"]["blueprints"]
    state["blueprint"] = _reindexed(state["blueprint"], blueprints, trainer.space.blueprints)
    if wrong := problems(SlotState(**state), trainer.space.sizes):
        raise FileError(f"{path} is damaged: {wrong[0]}")
    trainer.host, trainer.optimizer = host, optimizer
    trainer.state, trainer.vitals = SlotState(**state), Vitals(**vitals)
    trainer.rng_seed, trainer.epoch = description["rng_seed"], description["epoch"]


def optimizer_tensors(optimizer: Optimizer) -> Tensors:
    """Moments and step counts by group, position and name."""
    return {
        f"optimizer/{group['name']}/{index}/{name}": torch.as_tensor(value)
        for group in optimizer.param_groups
        for index, parameter in enumerate(group["params"])
        for name, value in optimizer.state.get(parameter, {}).items()
    }


def fill_optimizer(path: str | Path, optimizer: Optimizer, tensors: Tensors, groups: list[dict[str, Any]]) -> None:
    """Give a fresh optimiser the hyperparameters, moments and step counts of a saved one."""
    saved = {group["name"]: group for group in groups}
    names = [group["name"] for group in optimizer.param_groups]
    if saved.keys() != set(names) or names[0] != TRUNK:
        raise FileError(f"{path} is damaged: it has optimiser groups {list(saved)} for {names}")
    for group in optimizer.param_groups:
        group.update(saved[group["name"]])
        for index, parameter in enumerate(group["params"]):
            state = _under(f"optimizer/{group['name']}/{index}/", tensors)
            if any(t.ndim and t.shape != parameter.shape for t in state.values()):
                raise FileError(f"{path} is damaged: the moments of {group['name']} have another shape")
            if state:
                optimizer.state[parameter] = dict(state)


def _under(prefix: str, tensors: Tensors) -> Tensors:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def _reindexed(blueprint: Tensor, old: list[str], new: tuple[str, ...]) -> Tensor:
    """Blueprint indices under another order of registration; -1, for none, stays."""
    table = torch.tensor([new.index(name) if name in new else -1 for name in old] + [-1])
    return table[blueprint]
