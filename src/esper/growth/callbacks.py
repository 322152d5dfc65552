"""Parts that the callbacks for training frameworks share.

A framework loads weights by name into a model, and optimizer state by position into an optimizer. Before the first, a
saved structure is regrown; before the second, the parameters are put into the order of the saved run.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from esper.growth.attaching import grow
from esper.growth.captures import rebuild, structure
from esper.growth.growth import Growth
from esper.growth.log import resumed_log
from esper.growth.optimizers import check_optimizer, rename_groups
from esper.growth.policies import GrowthPolicy, restored_policy
from esper.growth.records import GrowthConfig
from esper.growth.saving import VERSION, describe, misfit
from esper.growth.schedules import WarmupStableDecay
from esper.growth.wrappers import base_of, unwrapped
from esper.leyline.errors import EsperError, FileError, unknown
from esper.leyline.tensor_files import parsing

BUDGETS = ("total", "flops", "epochs")
"""Options of `grow` that set the budget; without any, it is the number of steps that the framework would make."""


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse options that `grow` does not have."""
    own = [name for name in inspect.signature(grow).parameters if name not in ("model", "optimizer", "options")]
    known = [*own, *(field.name for field in fields(GrowthConfig) if field.name not in own)]
    for name in options:
        if name not in known:
            raise unknown("option", name, known)


def check_owner(optimizer: Optimizer, owner: nn.Module) -> None:
    """Refuse an optimizer with parameters from outside its module: a checkpoint could not name them."""
    own = {id(p) for p in owner.parameters()}
    foreign = sum(id(p) not in own for group in optimizer.param_groups for p in group["params"])
    if foreign:
        raise EsperError(f"optimizer holds {foreign} parameters that are not of the {type(owner).__name__} it trains")


def describe_run(growth: Growth, owner: nn.Module, schedule: WarmupStableDecay | None, steps: int) -> dict[str, Any]:
    """Return everything that a checkpoint of the framework lacks, as plain data.

    Args:
        growth: The growth.
        owner: The module whose parameters the optimizer holds; it contains the grown model.
        schedule: The learning rates that follow the growth.
        steps: Optimizer steps that the framework has counted.
    """
    names = {id(p): name for name, p in owner.named_parameters()}
    groups = [[names[id(p)] for p in group["params"]] for group in growth.optimizer.param_groups]
    rates = None if schedule is None else schedule.state_dict()
    return describe(growth) | {"structure": structure(growth), "groups": groups, "schedule": rates, "counted": steps}


def regrow(
    model: nn.Module,
    saved: Mapping[str, Any],
    policy: str | GrowthPolicy | None,
    source: str,
    optimizer: Optimizer | None = None,
    evaluate: Callable[[], float] | None = None,
) -> Growth:
    """Regrow a saved structure in a fresh model. Weights and optimizer state follow: `reconnect` completes the growth.

    Args:
        model: A model as its constructor makes it.
        saved: What `describe_run` returned.
        policy: The policy, if it is a function of the user's own; a name is not needed.
        source: The file, for messages.
        optimizer: The model's optimizer if it exists already.
        evaluate: The validation function, if the growth has one.

    Raises:
        FileError: If the file does not fit the model, which is unchanged then.
    """
    with parsing(source):
        if saved["version"] > VERSION:
            raise FileError(f"{source} was written by a newer Esper (version {saved['version']}): upgrade Esper")
        _ = saved["groups"], saved["schedule"], saved["counted"]
        inner = unwrapped(model)
        if base_of(inner) != saved["base"]:
            raise FileError(misfit(Path(source), base_of(inner), saved["base"]))
        growth = Growth(
            inner,
            torch.optim.SGD(inner.parameters(), lr=0.0) if optimizer is None else optimizer,
            restored_policy(None if isinstance(policy, str) else policy, saved["policy"]),
            GrowthConfig.of(saved["config"]),
            evaluate,
        )
        try:
            growth.take_over(dict(saved), {})
            rebuild(growth, saved["structure"])
        except Exception:
            growth.uproot()
            raise
    return growth


def reconnect(
    growth: Growth,
    owner: nn.Module,
    optimizer: Optimizer,
    saved: Mapping[str, Any],
    source: str,
    log: str | Path | None = None,
) -> None:
    """Give a regrown model its optimizer, with the parameters in the order of the saved run, and attach the growth.

    Args:
        growth: What `regrow` returned.
        owner: The module whose parameters the optimizer holds.
        optimizer: The optimizer.
        saved: What `describe_run` returned.
        source: The file, for messages.
        log: The folder in which losses and events are written down.

    Raises:
        FileError: If the groups of the optimizer hold other parameters than those of the saved run, or the log is one
            of another growth.
    """
    check_optimizer(optimizer, growth.model)
    recorder = resumed_log(log, saved)
    names = dict(owner.named_parameters())
    groups: list[list[str]] = saved["groups"]
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    then = {id(names.get(name)) for group in groups for name in group}
    if len(groups) != len(optimizer.param_groups) or held != then:
        raise FileError(
            f"{source} does not fit the optimizer: it was saved with {len(groups)} parameter groups of"
            f" {len(then)} tensors, here are {len(optimizer.param_groups)} of {len(held)}"
        )
    for group, members in zip(optimizer.param_groups, groups, strict=True):
        group["params"][:] = [names[name] for name in members]
    rename_groups(optimizer, growth.model)
    growth.optimizer = optimizer
    recorder.open(growth)
    growth.attach(quiet=True)


def made_schedule(
    schedule: bool | Mapping[str, float], growth: Growth, saved: Mapping[str, Any] | None
) -> WarmupStableDecay | None:
    """Make the learning rates that follow a growth, if they are asked for, as they were when saved."""
    if schedule is False:
        return None
    made = WarmupStableDecay(growth.optimizer, growth, **({} if schedule is True else schedule))
    if saved is not None and saved["schedule"] is not None:
        made.load_state_dict(saved["schedule"])
    return made
