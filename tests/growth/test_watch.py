"""The governor tells divergence after a birth from the noise of single batches."""

import json

import pytest
import torch

from esper.growth.captures import Capture
from esper.growth.watch import Watch

QUIET, LOUD = 0.01, 0.3
"""A model that fits its data has losses like these: most are small, and one in eight is thirty times as large."""


def after_a_birth(usual: float, loud: float, steps: int = 200) -> Watch:
    watch = Watch()
    for step in range(steps):
        assert watch.see(torch.tensor(loud if step % 8 == 0 else usual), step) is None
    watch.begin(Capture({}, {}), steps, 50)
    return watch


def test_single_batches_of_a_noisy_loss_are_no_divergence():
    watch = after_a_birth(QUIET, LOUD)
    for step, loss in enumerate((LOUD, QUIET, LOUD, QUIET, 2 * LOUD, QUIET, QUIET), start=200):
        assert watch.see(torch.tensor(loss), step) is None


@pytest.mark.parametrize(("usual", "loud"), [(QUIET, LOUD), (1.5, 1.6)])
def test_a_loss_that_stays_high_is_divergence(usual, loud):
    watch = after_a_birth(usual, loud)
    found = [watch.see(torch.tensor(8 * loud), step) for step in range(200, 204)]
    assert any(worst is not None for worst in found)


def test_a_resumed_watch_has_the_same_limit():
    watch, again = after_a_birth(QUIET, LOUD), Watch()
    again.load(json.loads(json.dumps(watch.describe())), Capture({}, {}))
    assert again.limit == watch.limit > 2 * watch.usual
    assert again.describe() == watch.describe()
