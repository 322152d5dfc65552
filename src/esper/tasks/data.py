"""Define the data of a task, and split, shuffle and standardize it."""

import zlib
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from esper.leyline.errors import EsperError, FileError
from esper.leyline.objectives import LANGUAGE
from esper.leyline.rng import Purpose, key, permutation
from esper.leyline.specs import TaskSpec
from esper.leyline.state import Split


class TaskData(NamedTuple):
    """A task with all its data, as task builders return it: three disjoint splits.

    Example:
        >>> def build(examples: int = 300) -> TaskData:
        ...     '''Tell positive from negative numbers.'''
        ...     x = torch.randn(3, examples, 1)
        ...     splits = (Split(part, (part[:, 0] > 0).long()) for part in x)
        ...     return TaskData(TaskSpec("sign", (1,), 2, CLASSIFICATION), *splits)
    """

    spec: TaskSpec
    """The description of the task."""
    train: Split
    """The data that hosts are trained on."""
    validation: Split
    """The data that controllers measure hosts and seeds on."""
    test: Split
    """The data that only exams use."""


def shuffled(x: Tensor, y: Tensor, name: str) -> Split:
    """Shuffle examples, in an order that depends only on the name of the task and the number of examples."""
    order = permutation(key(len(x), Purpose.DATA, name), len(x))
    return Split(x[order], y[order])


def divide(data: Split, *sizes: int) -> tuple[Split, ...]:
    """Split data into consecutive parts of these sizes and a last part with the remaining examples."""
    if min(sizes) < 1 or sum(sizes) >= len(data.x):
        raise EsperError(f"{len(data.x)} examples are too few to split into training, validation and test data")
    cuts = [*sizes, len(data.x) - sum(sizes)]
    return tuple(Split(x, y) for x, y in zip(data.x.split(cuts), data.y.split(cuts), strict=True))


def windows(name: str, codes: Int[Tensor, " L"], outputs: int, context: int, validation: int = 0) -> TaskData:
    """Return the task to predict the next token of a text; its last two tenths are validation and test data.

    Args:
        name: Name of the task.
        codes: The text, as tokens from 0.
        outputs: Tokens of the vocabulary.
        context: Tokens per example.
        validation: Validation examples, spread over their tenth; 0: all.
    """
    count = (len(codes) - 1) // context
    x, y = (codes[shift : count * context + shift].view(count, context) for shift in (0, 1))
    tenth = count // 10
    if not 0 <= validation <= tenth:
        raise EsperError(f"validation must be from 0 to {tenth}, a tenth of the text, not {validation}")
    train, held, test = divide(Split(x, y), count - 2 * tenth, tenth)
    spread = torch.arange(validation or tenth) * tenth // (validation or tenth)
    held = Split(held.x[spread], held.y[spread])
    return TaskData(TaskSpec(name, (context,), outputs, LANGUAGE), train, held, test)


def standardized(x: Float[Tensor, "B ..."], *others: Tensor) -> tuple[Tensor, ...]:
    """Scale arrays to zero mean and unit variance per channel, with the statistics of the first array."""
    axes = list(range(x.ndim - 1))
    std, mean = torch.std_mean(x, axes, correction=0)
    return tuple((each - mean) / std.clamp(min=1e-6) for each in (x, *others))


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file. Pickled, damaged and other files are errors."""
    try:
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, TypeError, AttributeError, EOFError, RuntimeError, BadZipFile, zlib.error) as error:
        raise FileError(f"{path} is not a plain .npz file: {error}") from None


def num_classes(y: Int[Tensor, " B"]) -> int:
    """Return the number of classes: the largest label plus 1."""
    return int(y.max()) + 1
