"""Running statistics that do not drift: float64, merged batch by batch."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

LARGEST_COUNT = 1e12
"""Beyond this many samples new ones keep the weight they have then."""
LARGEST_REWARD = 10.0
"""Rewards beyond this count as this in their deviation; J moves by less than 1 in a whole life."""
LEAST_SPREAD = 1e-3
"""Rewards that hardly differ are not blown up by more than the inverse of this."""


class Running:
    """Mean and variance of everything seen so far, by Welford's merge."""

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        self.count = torch.zeros((), dtype=torch.float64, device=device)
        self.mean = torch.zeros(shape, dtype=torch.float64, device=device)
        self.squares = torch.zeros(shape, dtype=torch.float64, device=device)

    def absorb(self, x: Float[Tensor, "..."], valid: Bool[Tensor, "..."] | None = None) -> None:
        """Add samples, all axes before the statistic's own; only those that are valid."""
        flat = x.double().reshape(-1, *self.mean.shape)
        if valid is not None:
            flat = flat[valid.reshape(-1)]
        if not len(flat):
            return
        mean = flat.mean(0)
        apart = mean - self.mean
        total = self.count + len(flat)
        self.squares = self.squares + (flat - mean).square().sum(0) + apart.square() * self.count * len(flat) / total
        self.mean = self.mean + apart * len(flat) / total
        if total > LARGEST_COUNT:
            self.squares = self.squares * LARGEST_COUNT / total
            total = total.clamp(max=LARGEST_COUNT)
        self.count = total

    @property
    def std(self) -> Tensor:
        return (self.squares / self.count.clamp(min=1)).sqrt()

    def normalized(self, x: Tensor, floor: float = 1e-2, limit: float = 10.0) -> Tensor:
        """Zero mean and unit deviation as far as is known, within ±limit."""
        known = torch.where(self.count > 1, self.std.clamp(min=floor), 1.0)
        return ((x - self.mean) / known).clamp(-limit, limit).float()


def spread(scale: Running, rewards: Float[Tensor, "T N"]) -> Float[Tensor, ""]:
    """The deviation of rewards so far, these included; they are divided by it."""
    scale.absorb(rewards.clamp(-LARGEST_REWARD, LARGEST_REWARD), rewards.isfinite())
    return scale.std.clamp(min=LEAST_SPREAD).float()
