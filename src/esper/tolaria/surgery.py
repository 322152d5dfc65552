"""Keep an optimizer in step with a growing network: one parameter group for the trunk, one for each seed."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.optim import Optimizer

from esper.tolaria.config import TrainConfig

TRUNK = "trunk"


def make_optimizer(parameters: Iterable[nn.Parameter], config: TrainConfig) -> Optimizer:
    """Return an optimizer with one parameter group, the trunk."""
    trunk = [{"params": list(parameters), "name": TRUNK}]
    if config.optimizer == "sgd":
        return torch.optim.SGD(trunk, config.lr, momentum=config.momentum, weight_decay=config.weight_decay)
    return torch.optim.AdamW(trunk, config.lr, betas=config.betas, weight_decay=config.weight_decay)


def add_group(optimizer: Optimizer, name: str, parameters: Iterable[nn.Parameter]) -> None:
    """Add the parameters of a newborn seed, with the optimizer's hyperparameters and empty state."""
    optimizer.add_param_group({"params": list(parameters), "name": name})


@torch.no_grad()
def copy_module(optimizer: Optimizer, source: nn.Module, target: nn.Module) -> None:
    """Give a module the weights and the optimizer state of another one of its kind."""
    for theirs, ours in zip(source.parameters(), target.parameters(), strict=True):
        ours.copy_(theirs)
        if theirs in optimizer.state:
            optimizer.state[ours] = {name: value.clone() for name, value in optimizer.state[theirs].items()}


def remove_group(optimizer: Optimizer, name: str) -> None:
    """Remove a parameter group and the optimizer state of its parameters."""
    (group,) = (g for g in optimizer.param_groups if g["name"] == name)
    for parameter in group["params"]:
        optimizer.state.pop(parameter, None)
    optimizer.param_groups[:] = [g for g in optimizer.param_groups if g is not group]
