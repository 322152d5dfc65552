"""Follow the training loss, and notice when it diverges after a birth."""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from esper.growth.captures import Capture
from esper.growth.distributed import is_distributed

READ_EVERY = 10
"""Steps between two reads of the loss from a GPU, or from other processes; otherwise it is looked at every step."""
AVERAGE, RECENT = 0.05, 0.25
"""Weights of the newest loss in its average and in its recent average."""
DIVERGED = 1.0
"""How far the recent average may rise above the average before a birth, as a share of that."""
WATCHED = 2
"""Times the length of a blend for which a birth is watched."""


def agreed(value: Tensor, largest: bool = False) -> Tensor:
    """Return numbers that all processes of a distributed run share: their mean, or the largest, on the CPU.

    A number that is not finite on one process is not finite on all.
    """
    if is_distributed():
        value = value.detach().clone()
        if largest:  # backends differ in what the maximum with NaN is
            value = torch.where(value.isfinite(), value, torch.inf)
        dist.all_reduce(value, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM)
        value = value if largest else value / dist.get_world_size()
    return value.cpu()


class Watch:
    """The average of the training loss, and the latest birth while it can still be taken back."""

    def __init__(self) -> None:
        self.average: Tensor | None = None
        """Exponential average of the training loss, on its device."""
        self.before: Capture | None = None
        """The model just before the birth that is being watched."""
        self.usual, self.since, self.until = math.inf, 0, 0
        """Average loss just before the birth; the step of the birth, and that at which watching ends."""
        self._worst: Tensor | None = None
        self._recent: Tensor | None = None

    def begin(self, before: Capture | None, step: int, blend: int) -> None:
        """Watch a birth, unless there is nothing to go back to. Births of one step are taken back together."""
        if before is not None:
            self.before, self.usual = before, math.inf if self.average is None else float(agreed(self.average))
        self.since, self.until = step, step + WATCHED * blend

    def end(self) -> None:
        """Stop watching: the birth stays."""
        self.before, self.usual = None, math.inf

    def see(self, loss: Tensor, step: int) -> float | None:
        """Add a loss to the average, and return the worst of the latest ones if training has diverged.

        The loss is read from a GPU every few steps only.
        """
        loss = loss.detach().float()
        self._worst = loss if self._worst is None else torch.maximum(self._worst, loss)
        self._recent = _mixed(self._recent, loss, RECENT)
        if step % READ_EVERY == 0 or (loss.device.type == "cpu" and not is_distributed()):
            worst, recent = agreed(torch.stack([self._worst, self._recent]), largest=True).tolist()
            self._worst = None
            if not math.isfinite(worst) or recent > self.usual + DIVERGED * abs(self.usual):
                self._recent = None
                return worst
        self.average = _mixed(self.average, loss, AVERAGE)
        if self.before is not None and step >= self.until:
            self.end()
        return None

    def describe(self) -> dict[str, Any]:
        """Return everything but tensors, as JSON."""
        average = None if self.average is None else float(self.average)
        usual = None if self.usual == math.inf else self.usual
        recent = None if self._recent is None else float(self._recent)
        return {"average": average, "recent": recent, "usual": usual, "since": self.since, "until": self.until}

    def load(self, saved: dict[str, Any], before: Capture | None) -> None:
        """Take over what was saved."""
        self.average = None if saved["average"] is None else torch.tensor(saved["average"])
        self._recent = None if saved["recent"] is None else torch.tensor(saved["recent"])
        self.usual = math.inf if saved["usual"] is None else saved["usual"]
        self.since, self.until, self.before = saved["since"], saved["until"], before


def _mixed(average: Tensor | None, loss: Tensor, weight: float) -> Tensor:
    """Add a loss to an average; one that is not finite is left out, and noticed when losses are read."""
    if average is None:
        return loss
    average = average.to(loss.device)
    mixed = torch.where(loss.isfinite(), torch.lerp(average, loss, weight), average)
    return torch.where(average.isfinite(), mixed, loss)
