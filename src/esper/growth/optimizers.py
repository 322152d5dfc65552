"""Keep an optimizer true to a model that changes: new parameters join existing groups, removed ones leave no trace."""

import copy
import warnings
from collections.abc import Iterable, Mapping, Sequence
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
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    missing = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in held]
    if missing:
        raise EsperError(
            f"optimizer lacks {len(missing)} trainable parameters of the model, first {missing[0]!r}: pass it all"
            " parameters that train, and freeze the others with requires_grad_(False)"
        )


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
        state = optimizer.state.get(source)
        if state and _is_its_own(state, source):
            optimizer.state[new] = {name: copied(value) for name, value in state.items()}
        elif state:
            warnings.warn(
                f"{type(optimizer).__name__} keeps state that is not shaped like its parameter: copies of blocks start"
                " with fresh state",
                stacklevel=2,
            )


def _is_its_own(state: Mapping[str, Any], parameter: nn.Parameter) -> bool:
    """Whether state can be copied: numbers, and tensors with the parameter's axes, each whole or reduced to 1."""
    tensors = [value for value in state.values() if isinstance(value, Tensor)]
    plain = all(isinstance(value, Tensor | int | float | bool | None) for value in state.values())
    return plain and all(_fits(tensor, parameter) for tensor in tensors)


def _fits(tensor: Tensor, parameter: nn.Parameter) -> bool:
    if tensor.numel() == 1 or tensor.shape == parameter.shape:
        return True
    return tensor.ndim == parameter.ndim and all(
        a in (1, b) for a, b in zip(tensor.shape, parameter.shape, strict=True)
    )


def join_beside(optimizer: Optimizer, new: Iterable[nn.Parameter], neighbours: Sequence[nn.Parameter]) -> None:
    """Add parameters to the groups of their neighbours, matrices beside matrices and vectors beside vectors."""
    trained = [p for p in neighbours if group_of(optimizer, p) is not None]
    for parameter in new:
        alike = [p for p in trained if (p.ndim > 1) == (parameter.ndim > 1)] or trained
        group = group_of(optimizer, alike[0]) if alike else optimizer.param_groups[0]
        assert group is not None
        group["params"].append(parameter)


def replace(optimizer: Optimizer, old: nn.Parameter, new: nn.Parameter, state: dict[str, Any]) -> None:
    """Put a parameter in the place of another, with this state."""
    for group in optimizer.param_groups:
        group["params"][:] = [new if p is old else p for p in group["params"]]
    if optimizer.state.pop(old, None) is not None:
        optimizer.state[new] = state


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


def named(model: nn.Module, optimizer: Optimizer) -> dict[str, nn.Parameter]:
    """Name all parameters of a model, and those that only its optimizer knows by their group and place."""
    names = dict(model.named_parameters())
    known = {id(p) for p in names.values()}
    for g, group in enumerate(optimizer.param_groups):
        others = [p for p in group["params"] if id(p) not in known]
        names |= {f"outside/{g}/{i}": p for i, p in enumerate(others)}
    return names
