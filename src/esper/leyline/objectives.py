"""Define objectives: the loss, the metric and the score of a task."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from esper.leyline.errors import EsperError


@dataclass(frozen=True)
class Objective:
    """The loss, metric and score that hosts are trained and compared with on a task.

    `CLASSIFICATION`, `LANGUAGE` and `REGRESSION` are built in.

    Example:
        >>> CLASSIFICATION.metric(torch.tensor([[0.1, 0.9]]), torch.tensor([1]))
        tensor([1.])
    """

    name: str
    """A name for reports."""
    loss: Callable[[Tensor, Tensor], Float[Tensor, " B"]]
    """Function of predictions and targets that returns one loss per example; training minimises the mean."""
    metric: Callable[[Tensor, Tensor], Float[Tensor, " B"]]
    """Function of predictions and targets that returns one number per example; reports show the mean."""
    metric_name: str
    """The name of the metric in tables and plots."""
    direction: Literal["max", "min"]
    """Whether a better metric is larger ("max") or smaller ("min")."""
    score: Callable[[Tensor, int], Tensor]
    """Function of the mean metric and the number of outputs that returns a score from 0 to 1; higher is better."""
    chance: Callable[[int], float]
    """Function of the number of outputs that returns the score of guessing."""
    guess: Callable[[int], float]
    """Function of the number of outputs that returns the loss of guessing."""


def _at_least_fp32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _same_shape(prediction: Tensor, target: Tensor) -> None:
    if prediction.shape != target.shape:
        raise EsperError(f"targets have shape {tuple(target.shape)}, but predictions need {tuple(prediction.shape)}")


def cross_entropy(prediction: Tensor, target: Tensor) -> Float[Tensor, " B"]:
    """Return the cross entropy of each example, averaged over its positions if it has any."""
    _same_shape(prediction[..., 0], target)
    losses = -functional.log_softmax(_at_least_fp32(prediction), -1).gather(-1, target[..., None])
    return losses.flatten(1).mean(1)


def correct(prediction: Tensor, target: Tensor) -> Float[Tensor, " B"]:
    """Return 1 for each example whose largest prediction is the target, and 0 for the others."""
    _same_shape(prediction[..., 0], target)
    return _at_least_fp32(prediction.argmax(-1) == target)


def squared_error(prediction: Tensor, target: Tensor) -> Float[Tensor, " B"]:
    """Return the mean squared error of each example."""
    _same_shape(prediction, target)
    return (_at_least_fp32(prediction) - target).square().flatten(1).mean(1)


CLASSIFICATION = Objective(
    name="classification",
    loss=cross_entropy,
    metric=correct,
    metric_name="accuracy",
    direction="max",
    score=lambda accuracy, _: accuracy,
    chance=lambda outputs: 1 / outputs,
    guess=lambda outputs: math.log(outputs),
)
"""Classification: cross entropy is the loss, accuracy the metric and the score."""
LANGUAGE = Objective(
    name="language",
    loss=cross_entropy,
    metric=cross_entropy,
    metric_name="loss",
    direction="min",
    score=lambda loss, outputs: (1 - loss / math.log(outputs)).clamp(min=0),
    chance=lambda _: 0.0,
    guess=lambda outputs: math.log(outputs),
)
"""Next-token prediction: cross entropy is the loss and the metric; the score is max(0, 1 - loss / ln(vocabulary))."""
REGRESSION = Objective(
    name="regression",
    loss=squared_error,
    metric=squared_error,
    metric_name="squared_error",
    direction="min",
    score=lambda error, _: (1 - error).clamp(min=0),
    chance=lambda _: 0.0,
    guess=lambda _: 1.0,
)
"""Regression to targets of unit variance: the score is 1 - squared error, so that predicting the mean scores 0."""
