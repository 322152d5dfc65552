"""Keeping an optimiser true to a network that changes: one group for the trunk, one for each seed."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.optim import Optimizer

from esper.tolaria.config import TrainConfig

TRUNK = "trunk"


def make_optimizer(parameters: Iterable[nn.Parameter], config: TrainConfig) -> Optimizer:
    """An optimiser whose only group, so far, is the trunk."""
    trunk = [{"params": list(parameters), "name": TRUNK}]
    if config.optimizer == "sgd":
        return torch.optim.SGD(trunk, config.lr, momentum=config.momentum, weight_decay=config.weight_decay)
    return torch.optim.AdamW(trunk, config.lr, betas=config.betas, weight_decay=config.weight_decay)


def add_group(optimizer: Optimizer, name: str, parameters: Iterable[nn.Parameter]) -> None:
    """Take a newborn's parameters in: no moments, no steps, the optimiser's own hyperparameters."""
    optimizer.add_param_group({"params": list(parameters), "name": name})


def remove_group(optimizer: Optimizer, name: str) -> None:
    """Forget a group and everything known about its parameters."""
    (group,) = (g for g in optimizer.param_groups if g["name"] == name)
    for parameter in group["params"]:
        optimizer.state.pop(parameter, None)
    optimizer.param_groups[:] = [g for g in optimizer.param_groups if g is not group]
