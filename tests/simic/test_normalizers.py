"""Running statistics agree with numpy, whatever the offset and however the samples arrive."""

import numpy as np
import torch

from esper.simic.normalizers import LARGEST_COUNT, Running, spread


def test_a_million_samples_with_outliers_and_an_offset():
    samples = np.random.default_rng(0).normal(1e6, 3.0, 1_000_000)
    samples[::1000] += 500.0
    running = Running((), torch.device("cpu"))
    for part in np.array_split(samples, 97):
        running.absorb(torch.from_numpy(part))
    assert abs(running.mean.item() - samples.mean()) < 1e-6
    assert abs(running.std.item() - samples.std()) < 1e-6


def test_invalid_samples_are_left_out_and_axes_are_kept():
    running = Running((2,), torch.device("cpu"))
    x = torch.tensor([[[1.0, 10.0], [3.0, 30.0]], [[torch.nan, 0.0], [5.0, 50.0]]])
    running.absorb(x, torch.tensor([[True, True], [False, True]]))
    torch.testing.assert_close(running.mean, torch.tensor([3.0, 30.0], dtype=torch.float64))
    running.absorb(x, torch.zeros(2, 2, dtype=torch.bool))
    assert running.count == 3


def test_the_count_cannot_overflow():
    running = Running((), torch.device("cpu"))
    running.absorb(torch.randn(1000))
    std = running.std.item()
    running.count.fill_(LARGEST_COUNT)
    running.squares = std**2 * running.count
    running.absorb(torch.randn(1000))
    assert running.count == LARGEST_COUNT
    assert abs(running.std.item() - std) < 1e-3
    before = running.std
    running.absorb(running.mean + before * torch.tensor([1.0, -1.0]).repeat(500_000))
    np.testing.assert_allclose(running.std, before, rtol=1e-8, err_msg="samples as far away as usual change nothing")


def test_the_scale_of_rewards_is_their_deviation_so_far():
    """Of all rollouts, the newest included; beyond ±10 a reward counts as 10, and the scale is at least 0.001."""
    scale = Running((), torch.device("cpu"))
    assert spread(scale, torch.full((2, 2), 0.5)).item() == np.float32(1e-3)
    rewards = torch.tensor([[1e6, -3.0], [2.0, -1e6]])
    found = spread(scale, rewards).item()
    np.testing.assert_allclose(found, np.std([0.5] * 4 + [10.0, -3.0, 2.0, -10.0]), rtol=1e-6)


def test_normalised_values_are_bounded():
    running = Running((), torch.device("cpu"))
    assert running.normalized(torch.tensor([3.0])).item() == 3.0, "nothing is known yet"
    running.absorb(torch.randn(100))
    assert running.normalized(torch.tensor([1e9])).item() == 10.0
