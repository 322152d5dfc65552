"""How well a host does a task: loss, metric, direction, and a score between 0 and 1."""

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
    """Per-example loss and metric, and the score that a mean metric is worth."""

    name: str
    loss: Callable[[Tensor, Tensor], Float[Tensor, " B"]]
    """Prediction and target to one loss per example; training minimises its mean."""
    metric: Callable[[Tensor, Tensor], Float[Tensor, " B"]]
    """Prediction and target to one number per example; its mean is what people read."""
    metric_name: str
    direction: Literal["max", "min"]
    score: Callable[[Tensor, int], Tensor]
    """Mean metric and number of outputs to a score in [0, 1], higher is better."""
    chance: Callable[[int], float]
    """The score of guessing among that many outputs..."""
    guess: Callable[[int], float]
    """...and its loss."""


def _at_least_fp32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _same_shape(prediction: Tensor, target: Tensor) -> None:
    if prediction.shape != target.shape:
        raise EsperError(f"targets of shape {tuple(target.shape)} do not fit predictions for {tuple(prediction.shape)}")


def cross_entropy(prediction: Tensor, target: Tensor) -> Float[Tensor, " B"]:
    """Cross entropy over the last axis, averaged over positions if there are any."""
    _same_shape(prediction[..., 0], target)
    losses = -functional.log_softmax(_at_least_fp32(prediction), -1).gather(-1, target[..., None])
    return losses.flatten(1).mean(1)


def correct(prediction: Tensor, target: Tensor) -> Float[Tensor, " B"]:
    _same_shape(prediction[..., 0], target)
    return _at_least_fp32(prediction.argmax(-1) == target)


def squared_error(prediction: Tensor, target: Tensor) -> Float[Tensor, " B"]:
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
"""For targets of unit variance, so that always answering the mean scores 0."""
