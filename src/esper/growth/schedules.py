"""Learning rates that follow the compute spent."""

from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from esper.growth.growth import Growth
from esper.leyline.errors import EsperError
from esper.tolaria.budget import DECAY, WARMUP


class WarmupStableDecay(LRScheduler):
    """Warm up, hold, and decay linearly to zero over the last part of a growth's compute budget.

    Args:
        optimizer: The optimizer of the growth.
        growth: The growth whose progress is followed.
        warmup: Share of the budget over which the rate rises.
        decay: Share of the budget over which it falls to zero at the end.
    """

    def __init__(self, optimizer: Optimizer, growth: Growth, warmup: float = WARMUP, decay: float = DECAY) -> None:
        for name, share in (("warmup", warmup), ("decay", decay)):
            if not 0 <= share <= 1:
                raise EsperError(f"{name} must be a share from 0 to 1, not {share}")
        self.growth, self.warmup, self.decay = growth, warmup, decay
        super().__init__(optimizer)

    def factor(self, progress: float) -> float:
        """Return the multiple of the base rate at a share of the budget."""
        rise = (progress + self._one_step) / self.warmup if self.warmup else 1.0
        fall = (1 - progress) / self.decay if self.decay else 1.0
        return max(0.0, min(1.0, rise, fall))

    @property
    def _one_step(self) -> float:
        cost, budget = self.growth.step_cost, self.growth.budget
        return cost / budget if cost and budget else 0.01 * self.warmup

    def get_lr(self) -> list[float | Any]:
        """Return the rate of every group."""
        return [base * self.factor(self.growth.progress) for base in self.base_lrs]

    def state_dict(self) -> dict[str, Any]:
        """Return what the schedule needs besides the growth, which is saved apart."""
        return {key: value for key, value in self.__dict__.items() if key not in ("optimizer", "growth")}
