"""What a task builder returns, and how data is divided."""

import zlib
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from esper.leyline.errors import EsperError, FileError
from esper.leyline.rng import Purpose, key, permutation
from esper.leyline.specs import TaskSpec
from esper.leyline.state import Split


class TaskData(NamedTuple):
    """A task with all of its data: three disjoint splits."""

    spec: TaskSpec
    train: Split
    validation: Split
    test: Split


def shuffled(x: Tensor, y: Tensor, name: str) -> Split:
    """The examples in an order that depends only on the task's name and their number."""
    order = permutation(key(len(x), Purpose.DATA, name), len(x))
    return Split(x[order], y[order])


def divide(data: Split, *sizes: int) -> tuple[Split, ...]:
    """Consecutive pieces of these sizes; the last piece is what remains."""
    if min(sizes) < 1 or sum(sizes) >= len(data.x):
        raise EsperError(f"{len(data.x)} examples are too few for training, validation and test")
    cuts = [*sizes, len(data.x) - sum(sizes)]
    return tuple(Split(x, y) for x, y in zip(data.x.split(cuts), data.y.split(cuts), strict=True))


def standardized(x: Float[Tensor, "B ..."], *others: Tensor) -> tuple[Tensor, ...]:
    """Zero mean and unit variance per channel, by the statistics of the first alone."""
    axes = list(range(x.ndim - 1))
    std, mean = torch.std_mean(x, axes, correction=0)
    return tuple((each - mean) / std.clamp(min=1e-6) for each in (x, *others))


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file; anything pickled, damaged or else is an error."""
    try:
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, TypeError, AttributeError, EOFError, RuntimeError, BadZipFile, zlib.error) as error:
        raise FileError(f"{path} is not a plain .npz file: {error}") from None


def num_classes(y: Int[Tensor, " B"]) -> int:
    """Classes are 0 to the largest label."""
    return int(y.max()) + 1
