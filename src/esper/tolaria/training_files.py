"""Save and load training files: a grown host with its optimizer, slot states and random counters."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from esper.kasmina.hosts import build_host
from esper.kasmina.lifecycle import problems
from esper.kasmina.model_files import regrow, topology
from esper.leyline.errors import FileError
from esper.leyline.state import SlotState, Vitals
from esper.leyline.tensor_files import Tensors, fields_of, fits, match, parsing, read, write
from esper.tolaria.host_trainer import HostTrainer
from esper.tolaria.surgery import add_group, make_optimizer

TRAINING_FORMAT = "esper.training"
MOMENTS = {torch.optim.AdamW: ("step", "exp_avg", "exp_avg_sq"), torch.optim.SGD: ("momentum_buffer",)}


def save_training(path: str | Path, trainer: HostTrainer) -> None:
    """Write a trainer to a file: host, seeds, optimizer, slot states and random counters.

    The file is replaced as a whole: a crash leaves the old one or the new one. It contains no task data.

    Args:
        path: File to write, usually named `*.safetensors`.
        trainer: Trainer to save, between two decisions.

    Example:
        >>> esper.save_training("training.safetensors", trainer)
    """
    tensors = {f"host/{name}": tensor for name, tensor in trainer.host.state_dict().items()}
    tensors |= {f"state/{name}": tensor for name, tensor in trainer.state._asdict().items()}
    tensors |= {f"vitals/{name}": tensor for name, tensor in trainer.vitals._asdict().items()}
    tensors |= optimizer_tensors(trainer.optimizer)
    description = topology(trainer.host) | settings(trainer)
    description |= {"blueprints": trainer.space.blueprints, "rng_seed": trainer.rng_seed, "epoch": trainer.epoch}
    description |= {"budget": trainer.budget, "spent": trainer.spent, "over": trainer.over}
    write(path, TRAINING_FORMAT, tensors, description)


def settings(trainer: HostTrainer) -> dict[str, Any]:
    """Return the settings that a trainer must share with the one that was saved."""
    return {
        "task": trainer.task.spec.name,
        "dtype": str(trainer.dtype),
        "config": fields_of(trainer.config, "steps"),
        "lifecycle": fields_of(trainer.lifecycle, "lesson_every", "measure_every", "measure_fossilized"),
    }


def load_training(path: str | Path, trainer: HostTrainer) -> None:
    """Restore a trainer from a file, so that its next decision gives the result it would have given before saving.

    Args:
        path: File that `save_training` wrote.
        trainer: Trainer with the host spec, task, configs and dtype of the saved one. Its host is replaced.

    Raises:
        FileError: If the file is missing, damaged, or from a trainer with other settings. The trainer is unchanged
            then.

    Example:
        >>> trainer = esper.HostTrainer(host, task)
        >>> esper.load_training("training.safetensors", trainer)
    """
    tensors, description = read(path, TRAINING_FORMAT)
    with parsing(path):
        fits(path, settings(trainer), description)
        host = regrow(path, lambda: build_host(trainer.spec).to(trainer.dtype), _under("host/", tensors), description)
        optimizer = make_optimizer(host.segments.parameters(), trainer.config)
        for s, slot in enumerate(host.slot_specs):
            if host.slot(s).seed is not None:
                add_group(optimizer, slot.name, host.slot(s).parameters())
        fill_optimizer(path, optimizer, tensors)
        state, vitals = _under("state/", tensors), _under("vitals/", tensors)
        match(path, trainer.state._asdict() | trainer.vitals._asdict(), state | vitals)
        state["blueprint"] = _reindexed(state["blueprint"], description["blueprints"], trainer.space.blueprints)
        if wrong := problems(SlotState(**state), trainer.space.sizes):
            raise FileError(f"{path} is damaged: {wrong[0]}")
        rng_seed, epoch = int(description["rng_seed"]), int(description["epoch"])
        budget, spent = description.get("budget"), float(description.get("spent", 0.0))  # absent from older files
    trainer.host, trainer.optimizer = host, optimizer
    trainer.state, trainer.vitals = SlotState(**state), Vitals(**vitals)
    trainer.rng_seed, trainer.epoch = rng_seed, epoch
    trainer.budget, trainer.spent = budget, spent
    trainer.over = bool(description.get("over", False))


def optimizer_tensors(optimizer: Optimizer) -> Tensors:
    """Return the optimizer state by group, position and name."""
    return {
        f"optimizer/{group['name']}/{index}/{name}": torch.as_tensor(value)
        for group in optimizer.param_groups
        for index, parameter in enumerate(group["params"])
        for name, value in optimizer.state.get(parameter, {}).items()
    }


def fill_optimizer(path: str | Path, optimizer: Optimizer, tensors: Tensors) -> None:
    """Load saved optimizer state into a fresh optimizer; each parameter has all of its state or none."""
    saved = {name for name in tensors if name.startswith("optimizer/")}
    for group in optimizer.param_groups:
        for index, parameter in enumerate(group["params"]):
            prefix = f"optimizer/{group['name']}/{index}/"
            state = _under(prefix, tensors)
            shapes = {name: torch.Size() if name == "step" else parameter.shape for name in MOMENTS[type(optimizer)]}
            if state and {name: t.shape for name, t in state.items()} != shapes:
                raise FileError(f"{path} is damaged: the optimizer state of {prefix[10:-1]} is incomplete")
            if state:
                optimizer.state[parameter] = dict(state)
            saved -= {prefix + name for name in state}
    if saved:
        raise FileError(f"{path} is damaged: its optimizer state {min(saved)} belongs to no parameter")


def _under(prefix: str, tensors: Tensors) -> Tensors:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def _reindexed(blueprint: Tensor, old: list[str], new: tuple[str, ...]) -> Tensor:
    """Translate blueprint indices to the current order of registration; -1, for an empty slot, stays."""
    table = torch.tensor([new.index(name) if name in new else -1 for name in old] + [-1])
    return table[blueprint]
