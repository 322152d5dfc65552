"""Copy data to a device, and assignments as one tensor for each dtype, which is cut into views there."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from esper.leyline.state import Split
from esper.tolaria.assignment import Assignment


class Packed(NamedTuple):
    """An assignment packed for transfer to a device: one tensor for each dtype."""

    pieces: tuple[Tensor, ...]
    layout: "AssignmentLayout"


@dataclass(frozen=True)
class AssignmentLayout:
    """The structure of a packed assignment. Assignments of equal layout can run one captured program."""

    spec: TreeSpec = field(compare=False, repr=False)
    num_buckets: tuple[int, ...]
    """Buckets of each slot. With `parts`, this determines `spec`."""
    parts: tuple[Any, ...]
    """For each leaf: the index of its piece and its length, or the leaf itself if it is not a tensor."""


def upload(array: np.ndarray, device: torch.device) -> Tensor:
    """Copy an array to a device asynchronously."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def pack(assignment: Assignment, device: torch.device) -> Packed:
    """Copy an assignment to a device asynchronously, as one tensor for each dtype."""
    leaves, spec = tree_flatten(assignment)
    by_type: dict[torch.dtype, list[Tensor]] = {}
    parts: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            same = by_type.setdefault(leaf.dtype, [])
            parts.append((list(by_type).index(leaf.dtype), len(leaf)))
            same.append(leaf)
        else:
            parts.append(leaf)
    pieces = tuple(_joined_on(device, dtype, tensors) for dtype, tensors in by_type.items())
    return Packed(pieces, AssignmentLayout(spec, tuple(len(slot.buckets) for slot in assignment.slots), tuple(parts)))


def _joined_on(device: torch.device, dtype: torch.dtype, tensors: list[Tensor]) -> Tensor:
    sizes = [_aligned(len(x)) for x in tensors]
    whole = torch.zeros(sum(sizes), dtype=dtype, pin_memory=device.type == "cuda")
    for part, x in zip(whole.split(sizes), tensors, strict=True):
        part[: len(x)] = x
    return whole.to(device, non_blocking=True)


def _aligned(size: int) -> int:
    """Round up to a multiple of 16: kernels are specialised on the alignment of their inputs."""
    return -(-size // 16) * 16


def unpack(packed: Packed) -> Assignment:
    """Return the assignment, as views of the packed tensors."""
    places = [0] * len(packed.pieces)
    leaves: list[Any] = []
    for part in packed.layout.parts:
        if isinstance(part, tuple):
            piece, size = part
            leaves.append(packed.pieces[piece].narrow(0, places[piece], size))
            places[piece] += _aligned(size)
        else:
            leaves.append(part)
    return tree_unflatten(leaves, packed.layout.spec)


def resident(data: Split, device: torch.device, dtype: torch.dtype) -> Split:
    """Copy data to a device, floating-point data in the precision of activations."""
    return Split(*(x.to(device, dtype) if x.is_floating_point() else x.to(device) for x in data))
