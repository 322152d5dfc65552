"""Turn what is known of hosts into flat observations, masks and infos, as numpy arrays."""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
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
NUMBERS = {torch.float32: np.float32, torch.float64: np.float64, torch.int64: np.int64, torch.bool: np.bool_}
"""The types of numbers that are copied from a device as they are."""
Info = dict[str, Any]


class Bytes(NamedTuple):
    """Tensors of several types as one tensor of bytes, so that they need one transfer."""

    data: UInt8[Tensor, " B"]
    layout: tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]
    """The name, type and shape of each."""


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


def described(life: LifeState, refused: Bool[Tensor, " N"], setting: Setting) -> dict[str, Tensor]:
    """Return the observations of hosts, as `obs`, and what `info` says of them."""
    return {"obs": observe_life(life, setting), **facts(life, refused, setting.space)}


def joined(first: LifeState, second: LifeState) -> LifeState:
    """Return the hosts of both states, one after the other, so that they are observed at once."""
    leaves, tree = tree_flatten(first)
    pairs = zip(leaves, tree_flatten(second)[0], strict=True)
    return tree_unflatten([None if a is None else torch.cat([a, b]) for a, b in pairs], tree)


def as_bytes(tensors: dict[str, Tensor]) -> Bytes:
    """Join tensors as bytes. Numbers of a type that numpy lacks become float64."""
    known = {name: x if x.dtype in NUMBERS else x.double() for name, x in tensors.items()}
    data = torch.cat([x.contiguous().flatten().view(torch.uint8) for x in known.values()])
    return Bytes(data, tuple((name, x.dtype, tuple(x.shape)) for name, x in known.items()))


def arrays(known: Bytes) -> dict[str, np.ndarray]:
    """Return tensors as arrays, after one transfer; on a CPU they share its memory."""
    data, found, start = known.data.cpu().numpy(), {}, 0
    for name, dtype, shape in known.layout:
        end = start + math.prod(shape) * dtype.itemsize
        found[name] = data[start:end].view(NUMBERS[dtype]).reshape(shape)
        start = end
    return found


def widened(array: np.ndarray) -> np.ndarray:
    """Copy an array, one of floating-point numbers as float64."""
    return array.astype(np.float64 if array.dtype.kind == "f" else array.dtype)


def rows_of(values: np.ndarray, fleet: Fleet) -> Tensor:
    """Return an array with a row for each of the first hosts as a tensor with a row for every host, zeros behind."""
    rows = torch.from_numpy(values)
    rows = torch.cat([rows, rows.new_zeros(fleet.num_hosts - len(rows), *rows.shape[1:])])
    return rows.to(fleet.device)


def marked(known: dict[str, np.ndarray], rows: np.ndarray) -> Info:
    """Return an info of a vector env: only `rows` are known, the others are set to 0, and `_name` says which."""
    info: Info = {}
    for name, value in known.items():
        value[~rows] = 0
        info |= {name: value, f"_{name}": rows.copy()}
    return info


def info_of(infos: Info, n: int) -> Info:
    """Return what the infos of a vector env say of one host, without the marks and the life before."""
    plain = {name: value for name, value in infos.items() if not name.startswith(("_", "final_"))}
    return {name: value[n].copy() if value.ndim > 1 else value[n].item() for name, value in plain.items()}
