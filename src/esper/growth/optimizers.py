"""Keep an optimizer true to a model that changes: new parameters join existing groups, removed ones leave no trace."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from esper.leyline.errors import EsperError

REFUSED = (torch.optim.LBFGS,)
"""Optimizers whose state belongs to all parameters together."""


def check_optimizer(optimizer: Any, model: nn.Module) -> None:
    """Refuse an optimizer that cannot follow the model's growth.

    Raises:
        EsperError: If it is no torch optimizer, keeps state for all parameters together, or lacks parameters.
    """
    if not isinstance(optimizer, Optimizer):
        raise EsperError(f"optimizer must be a torch.optim.Optimizer, not {type(optimizer).__name__}")
    if isinstance(optimizer, REFUSED):
        raise EsperError(f"optimizer {type(optimizer).__name__} cannot be grown: it keeps one state for all parameters")
    held = [id(p) for group in optimizer.param_groups for p in group["params"]]
    missing = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in set(held)]
    if missing:
        raise EsperError(f"optimizer lacks {len(missing)} trainable parameters of the model, first {missing[0]!r}")


def group_of(optimizer: Optimizer, parameter: nn.Parameter) -> dict[str, Any] | None:
    """Find the group that holds a parameter, by identity."""
    return next((g for g in optimizer.param_groups if any(p is parameter for p in g["params"])), None)


def join_as_copies(optimizer: Optimizer, copies: Mapping[nn.Parameter, nn.Parameter]) -> None:
    """Add parameters to the groups of those that they copy, with copies of their state.

    Args:
        optimizer: The user's optimizer.
        copies: Each new parameter with the parameter it was copied from.
    """
    for new, source in copies.items():
        group = group_of(optimizer, source)
        if group is None:  # frozen: not trained, and so neither is its copy
            continue
        group["params"].append(new)
        if source in optimizer.state:
            optimizer.state[new] = {name: copied(value) for name, value in optimizer.state[source].items()}


def copied(value: Any) -> Any:
    """Copy a value of an optimizer's state."""
    return value.detach().clone() if isinstance(value, Tensor) else copy.deepcopy(value)


def leave(optimizer: Optimizer, parameters: Iterable[nn.Parameter]) -> None:
    """Remove parameters from their groups, with everything the optimizer knows about them."""
    gone = {id(p) for p in parameters}
    for group in optimizer.param_groups:
        group["params"][:] = [p for p in group["params"] if id(p) not in gone]
    for parameter in [p for p in optimizer.state if id(p) in gone]:
        del optimizer.state[parameter]


def rename_groups(optimizer: Optimizer, model: nn.Module) -> None:
    """Refresh the parameter names that torch keeps in groups made from `named_parameters()`."""
    names = {id(p): name for name, p in model.named_parameters()}
    for group in optimizer.param_groups:
        if "param_names" in group:
            group["param_names"] = [names.get(id(p), f"unnamed.{i}") for i, p in enumerate(group["params"])]
