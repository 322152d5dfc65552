"""Running statistics agree with numpy, whatever the offset and however the samples arrive."""

import numpy as np
import torch

from esper.simic.normalizers import MAX_COUNT, RunningMeanStd, update_reward_std


def test_a_million_samples_with_outliers_and_an_offset():
    samples = np.random.default_rng(0).normal(1e6, 3.0, 1_000_000)
    samples[::1000] += 500.0
    running = RunningMeanStd((), torch.device("cpu"))
    for part in np.array_split(samples, 97):
        running.update(torch.from_numpy(part))
    assert abs(running.mean.item() - samples.mean()) < 1e-6
    assert abs(running.std.item() - samples.std()) < 1e-6


def test_invalid_samples_are_left_out_and_axes_are_kept():
    running = RunningMeanStd((2,), torch.device("cpu"))
    x = torch.tensor([[[1.0, 10.0], [3.0, 30.0]], [[torch.nan, 0.0], [5.0, 50.0]]])
    running.update(x, torch.tensor([[True, True], [False, True]]))
    torch.testing.assert_close(running.mean, torch.tensor([3.0, 30.0], dtype=torch.float64))
    running.update(x, torch.zeros(2, 2, dtype=torch.bool))
    assert running.count == 3


def test_the_count_cannot_overflow():
    running = RunningMeanStd((), torch.device("cpu"))
    running.update(torch.randn(1000))
    std = running.std.item()
    running.count.fill_(MAX_COUNT)
    running.squares = std**2 * running.count
    running.update(torch.randn(1000))
    assert running.count == MAX_COUNT
    assert abs(running.std.item() - std) < 1e-3
    before = running.std
    running.update(running.mean + before * torch.tensor([1.0, -1.0]).repeat(500_000))
    np.testing.assert_allclose(running.std, before, rtol=1e-8, err_msg="samples at the usual distance change nothing")


def test_the_scale_of_rewards_is_their_deviation_so_far():
    """Over all rollouts, the newest included; rewards are clipped to ±10, and the deviation is at least 0.001."""
    scale = RunningMeanStd((), torch.device("cpu"))
    assert update_reward_std(scale, torch.full((2, 2), 0.5)).item() == np.float32(1e-3)
    rewards = torch.tensor([[1e6, -3.0], [2.0, -1e6]])
    found = update_reward_std(scale, rewards).item()
    np.testing.assert_allclose(found, np.std([0.5] * 4 + [10.0, -3.0, 2.0, -10.0]), rtol=1e-6)


def test_normalised_values_are_bounded():
    running = RunningMeanStd((), torch.device("cpu"))
    assert running.normalize(torch.tensor([3.0])).item() == 3.0, "no statistics yet"
    running.update(torch.randn(100))
    assert running.normalize(torch.tensor([1e9])).item() == 10.0
