"""Running mean and standard deviation in float64, merged batch by batch."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

MAX_COUNT = 1e12
"""Sample count at which the statistics become an exponential moving average."""
MAX_REWARD = 10.0
"""Rewards are clipped to ± this before they enter the statistics; J changes by less than 1 in a whole episode."""
MIN_STD = 1e-3
"""Lower bound on the standard deviation that rewards are divided by."""


class RunningMeanStd:
    """Running mean and variance of all samples so far (Welford's algorithm, merged by batch)."""

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        self.count = torch.zeros((), dtype=torch.float64, device=device)
        self.mean = torch.zeros(shape, dtype=torch.float64, device=device)
        self.squares = torch.zeros(shape, dtype=torch.float64, device=device)
        """Sum of squared deviations from the mean."""

    def update(self, x: Float[Tensor, "..."], valid: Bool[Tensor, "..."] | None = None) -> None:
        """Add samples, whose leading axes are batch axes; `valid` selects which of them count."""
        flat = x.double().reshape(-1, *self.mean.shape)
        if valid is not None:
            flat = flat[valid.reshape(-1)]
        if not len(flat):
            return
        mean = flat.mean(0)
        delta = mean - self.mean
        total = self.count + len(flat)
        self.squares = self.squares + (flat - mean).square().sum(0) + delta.square() * self.count * len(flat) / total
        self.mean = self.mean + delta * len(flat) / total
        if total > MAX_COUNT:
            self.squares = self.squares * MAX_COUNT / total
            total = total.clamp(max=MAX_COUNT)
        self.count = total

    @property
    def std(self) -> Tensor:
        return (self.squares / self.count.clamp(min=1)).sqrt()

    def normalize(self, x: Tensor, floor: float = 1e-2, limit: float = 10.0) -> Tensor:
        """Return x with the running mean subtracted, divided by the running deviation and clipped to ±limit."""
        std = torch.where(self.count > 1, self.std.clamp(min=floor), 1.0)
        return ((x - self.mean) / std).clamp(-limit, limit).float()


def update_reward_std(statistics: RunningMeanStd, rewards: Float[Tensor, "T N"]) -> Float[Tensor, ""]:
    """Add rewards to the running statistics and return the standard deviation of all rewards so far."""
    statistics.update(rewards.clamp(-MAX_REWARD, MAX_REWARD), rewards.isfinite())
    return statistics.std.clamp(min=MIN_STD).float()
