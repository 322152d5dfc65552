"""Loss, metric, direction and score of every kind of task."""

import pytest
import torch

from esper.leyline.objectives import CLASSIFICATION, LANGUAGE, REGRESSION
from esper.leyline.specs import TaskSpec


def test_classification(rng):
    logits, y = torch.randn(20, 5, generator=rng), torch.randint(5, (20,), generator=rng)
    expected = torch.nn.functional.cross_entropy(logits, y, reduction="none")
    torch.testing.assert_close(CLASSIFICATION.loss(logits, y), expected)
    assert torch.equal(CLASSIFICATION.metric(logits, y), (logits.argmax(1) == y).float())


def test_language(rng):
    logits, y = torch.randn(4, 7, 5, generator=rng), torch.randint(5, (4, 7), generator=rng)
    expected = torch.nn.functional.cross_entropy(logits.transpose(1, 2), y, reduction="none").mean(1)
    torch.testing.assert_close(LANGUAGE.loss(logits, y), expected)
    assert LANGUAGE.score(torch.tensor(0.0), 5) == 1
    assert LANGUAGE.score(torch.tensor(99.0), 5) == 0


def test_regression():
    prediction, target = torch.tensor([[0.0, 0.0], [1.0, 3.0]]), torch.tensor([[1.0, 2.0], [1.0, 2.0]])
    assert REGRESSION.loss(prediction, target).tolist() == [2.5, 0.5]
    assert REGRESSION.metric(prediction, target).tolist() == [2.5, 0.5]
    assert [REGRESSION.score(torch.tensor(error), 2).item() for error in (0.0, 0.25, 1.0, 2.5)] == [1.0, 0.75, 0.0, 0.0]


@pytest.mark.parametrize(
    ("objective", "direction", "chance", "guess"),
    [(CLASSIFICATION, "max", 0.2, 1.609438), (LANGUAGE, "min", 0.0, 1.609438), (REGRESSION, "min", 0.0, 1.0)],
)
def test_a_guess_among_five_scores_chance_and_more_is_better(objective, direction, chance, guess):
    """The logarithm of 5 is 1.609438."""
    assert objective.direction == direction
    assert objective.guess(5) == pytest.approx(guess, abs=1e-6)
    assert TaskSpec("t", (3,), 5, objective).chance == chance
    metric = torch.tensor(chance if direction == "max" else guess)
    better = metric + 0.1 if direction == "max" else metric - 0.1
    assert objective.score(metric, 5) == pytest.approx(chance, abs=1e-6)
    assert objective.score(better, 5) > objective.score(metric, 5) + 0.05


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises(ValueError, match=r"targets have shape \(4,\), but predictions need"):
        REGRESSION.loss(torch.zeros(4, 1), torch.zeros(4))
    with pytest.raises(ValueError, match=r"targets have shape \(4, 1\), but predictions need"):
        CLASSIFICATION.metric(torch.zeros(4, 3), torch.zeros(4, 1, dtype=torch.long))


@pytest.mark.parametrize("objective", [CLASSIFICATION, LANGUAGE, REGRESSION])
def test_half_precision_is_measured_in_single(objective, rng):
    out = torch.randn(4, 3, generator=rng)
    y = out.clone() if objective is REGRESSION else torch.tensor([0, 1, 2, 0])
    assert objective.loss(out.bfloat16(), y).dtype == torch.float32
    assert objective.metric(out.bfloat16(), y).dtype == torch.float32
