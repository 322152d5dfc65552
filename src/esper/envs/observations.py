"""Turn what is known of hosts into flat observations, masks and infos, as numpy arrays."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from esper.leyline.actions import ActionSpace, Head, Op
from esper.leyline.state import Setting
from esper.simic.lives import LifeState
from esper.simic.rewards import objective
from esper.tamiyo.features import HOST_FEATURES, SLOT_FEATURES, View, column_names, features
from esper.tolaria import Fleet

BOUND = 20.0
"""Largest value in an observation; features are ratios and logarithms, and larger only where a host is failing."""
Info = dict[str, Any]


def observe(view: View) -> Float[Tensor, "N D"]:
    """Return the features of hosts, then those of each slot, as one row for each host."""
    seen = features(view)
    return torch.cat([seen.host, seen.slots.flatten(1)], 1).clamp(-BOUND, BOUND)


def observe_life(life: LifeState, setting: Setting) -> Float[Tensor, "N D"]:
    """Return the observations of hosts that may grow without a limit."""
    return observe(life.view(setting, torch.full_like(life.rent, torch.inf)))


def observation_names(setting: Setting) -> tuple[str, ...]:
    """Return the name of each column of an observation: `score`, or `s0.alpha` of a slot."""
    of_slot = column_names(SLOT_FEATURES)
    return (*column_names(HOST_FEATURES), *(f"{slot}.{name}" for slot in setting.space.slots for name in of_slot))


def masks(legal: Bool[Tensor, "N O S"], space: ActionSpace) -> Bool[Tensor, "N A"]:
    """Return which choices of each head some legal action makes, in head order.

    An op is in the mask if it is legal on some slot, a slot if some op other than WAIT is legal on it. Together they
    may still be illegal, and are then refused.
    """
    starts = np.cumsum((0, *space.sizes)).tolist()
    allowed = legal.new_ones(len(legal), starts.pop())
    acting = torch.cat([legal[:, : Op.WAIT], legal[:, Op.WAIT + 1 :]], 1).any(1)
    for head, choices in ((Head.OP, legal.any(2)), (Head.SLOT, acting | ~acting.any(1, keepdim=True))):
        allowed[:, starts[head] : starts[head] + choices.shape[1]] = choices
    return allowed


def split_mask(mask: np.ndarray, space: ActionSpace) -> tuple[Any, ...]:
    """Return a flat mask as `MultiDiscrete.sample(mask=...)` takes it: for each head, and of several hosts for each."""
    if mask.ndim > 1:
        return tuple(split_mask(row, space) for row in mask)
    ends = np.cumsum(space.sizes)[:-1]
    return tuple(part.astype(np.int8) for part in np.split(mask, ends))


def facts(life: LifeState, refused: Bool[Tensor, " N"], space: ActionSpace) -> dict[str, Tensor]:
    """Return what `info` says of every host."""
    signals = life.signals
    return {
        "score": signals.score,
        "metric": signals.metric,
        "growth": signals.growth,
        "j": objective(signals, life.rent),
        "flops": signals.flops,
        "price": life.rent,
        "spent": torch.zeros_like(signals.score) if signals.spent is None else signals.spent,
        "age": signals.age,
        "refused": refused,
        "legal": signals.legal,
        "action_mask": masks(signals.legal, space),
    }


def joined(first: LifeState, second: LifeState) -> LifeState:
    """Return the hosts of both states, one after the other, so that they are observed at once."""
    leaves, tree = tree_flatten(first)
    pairs = zip(leaves, tree_flatten(second)[0], strict=True)
    return tree_unflatten([None if a is None else torch.cat([a, b]) for a, b in pairs], tree)


def arrays(tensors: dict[str, Tensor]) -> dict[str, np.ndarray]:
    """Copy tensors to new arrays in one transfer, those of floating-point numbers as float64."""
    groups: dict[torch.dtype, list[str]] = {}
    for name, x in tensors.items():
        groups.setdefault(x.dtype, []).append(name)
    parts = [torch.cat([tensors[name].flatten() for name in names]).double() for names in groups.values()]
    packed, names = torch.cat(parts).cpu().numpy(), [name for group in groups.values() for name in group]
    ends = np.cumsum([tensors[name].numel() for name in names])[:-1]
    found = dict(zip(names, np.split(packed, ends), strict=True))
    return {name: found[name].reshape(x.shape).astype(_kind(x.dtype)) for name, x in tensors.items()}


def _kind(dtype: torch.dtype) -> type:
    """Return the type of numpy's numbers; float64 holds whole numbers exactly up to 2**53."""
    return np.float64 if dtype.is_floating_point else np.bool_ if dtype == torch.bool else np.int64


def rows_of(values: np.ndarray, fleet: Fleet) -> Tensor:
    """Return an array with a row for each of the first hosts as a tensor with a row for every host, zeros behind."""
    rows = torch.from_numpy(values)
    rows = torch.cat([rows, rows.new_zeros(fleet.num_hosts - len(rows), *rows.shape[1:])])
    return rows.to(fleet.device)


def marked(known: dict[str, Any], rows: np.ndarray) -> Info:
    """Return an info of a vector env: only `rows` are known, the others 0, and `_name` says which."""
    info: Info = {}
    for name, value in known.items():
        info[name] = np.where(rows.reshape(-1, *[1] * (value.ndim - 1)), value, np.zeros_like(value))
        info[f"_{name}"] = rows.copy()
    return info


def info_of(infos: Info, n: int) -> Info:
    """Return what the infos of a vector env say of one host, without the marks and the life before."""
    plain = {name: value for name, value in infos.items() if not name.startswith(("_", "final_"))}
    return {name: value[n].copy() if value.ndim > 1 else value[n].item() for name, value in plain.items()}
