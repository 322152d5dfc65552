"""Loss, metric, direction and score of every kind of task."""

import math

import pytest
import torch

from esper.leyline.objectives import CLASSIFICATION, LANGUAGE, REGRESSION
from esper.leyline.specs import HostSpec, TaskSpec


def test_classification(rng):
    logits, y = torch.randn(20, 5, generator=rng), torch.randint(5, (20,), generator=rng)
    expected = torch.nn.functional.cross_entropy(logits, y, reduction="none")
    torch.testing.assert_close(CLASSIFICATION.loss(logits, y), expected)
    assert torch.equal(CLASSIFICATION.metric(logits, y), (logits.argmax(1) == y).float())
    assert TaskSpec("t", (3,), 5, CLASSIFICATION).chance == 0.2


def test_language(rng):
    logits, y = torch.randn(4, 7, 5, generator=rng), torch.randint(5, (4, 7), generator=rng)
    expected = torch.nn.functional.cross_entropy(logits.transpose(1, 2), y, reduction="none").mean(1)
    torch.testing.assert_close(LANGUAGE.loss(logits, y), expected)
    assert LANGUAGE.score(torch.tensor(0.0), 5) == 1
    assert LANGUAGE.score(torch.tensor(math.log(5)), 5) == pytest.approx(0, abs=1e-6)
    assert LANGUAGE.score(torch.tensor(99.0), 5) == 0


def test_regression(rng):
    target = torch.randn(1000, 2, generator=rng)
    assert REGRESSION.score(REGRESSION.metric(target, target).mean(), 2) == 1
    mean = REGRESSION.metric(torch.zeros_like(target), target).mean()
    assert REGRESSION.score(mean, 2) == pytest.approx(0, abs=0.1)


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises(ValueError, match=r"targets of shape \(4,\) do not fit"):
        REGRESSION.loss(torch.zeros(4, 1), torch.zeros(4))
    with pytest.raises(ValueError, match=r"targets of shape \(4, 1\) do not fit"):
        CLASSIFICATION.metric(torch.zeros(4, 3), torch.zeros(4, 1, dtype=torch.long))


@pytest.mark.parametrize("objective", [CLASSIFICATION, LANGUAGE, REGRESSION])
def test_half_precision_is_measured_in_single(objective, rng):
    out = torch.randn(4, 3, generator=rng)
    y = out.clone() if objective is REGRESSION else torch.tensor([0, 1, 2, 0])
    assert objective.loss(out.bfloat16(), y).dtype == torch.float32
    assert objective.metric(out.bfloat16(), y).dtype == torch.float32


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (((), 3, (8,)), "inputs must be"),
        (((4,), 0, (8,)), "outputs must be at least 1"),
        (((4,), 3, ()), "widths must be"),
        (((4,), 3, (8, 0)), "widths must be"),
    ],
)
def test_impossible_hosts_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        HostSpec("mlp", *fields)
