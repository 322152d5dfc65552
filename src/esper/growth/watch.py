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
DIVERGED, LOST, NOISE = 1.0, 0.25, 3.0
"""How far the recent average may rise above the average before a birth: the largest of a share of that average, a share
of what had been gained since the first loss, and a multiple of the deviation of single losses."""
WATCHED = 2
"""Times the length of a blend for which a birth is watched."""
DELAY = 2 * READ_EVERY
"""Steps after which every loss has been read."""


def agreed(value: Tensor) -> Tensor:
    """Return the mean over all processes of a distributed run; it is not finite if one of them is not."""
    if not is_distributed():
        return value
    value = value.detach().clone()
    dist.all_reduce(value)
    return value / dist.get_world_size()


class Watch:
    """The average of the training loss, and the latest birth while it can still be taken back.

    Losses on a GPU are collected, copied while training goes on, and looked at when the next ones are copied: nothing
    waits for the GPU.
    """

    def __init__(self) -> None:
        self.average: float | None = None
        """Exponential average of the training loss, over all processes."""
        self.before: Capture | None = None
        """The model just before the birth that is being watched."""
        self.usual, self.limit, self.since, self.until = math.inf, math.inf, 0, 0
        """Average loss just before the birth and the highest allowed; the step of the birth, and when watching ends."""
        self._first: float | None = None
        self._variance: float | None = None
        self._recent: float | None = None
        self._unread: list[Tensor] = []
        self._arriving: tuple[Tensor, torch.cuda.Event] | None = None

    def begin(self, before: Capture | None, step: int, blend: int) -> None:
        """Watch a birth, unless there is nothing to go back to. Births of one step are taken back together."""
        if before is not None:
            self.before, self.usual = before, math.inf if self.average is None else self.average
            gained = 0.0 if self._first is None else self._first - self.usual
            noise = 0.0 if self._variance is None else self._variance**0.5
            self.limit = self.usual + max(DIVERGED * abs(self.usual), LOST * gained, NOISE * noise)
        self.since, self.until = step, step + WATCHED * blend

    def end(self) -> None:
        """Stop watching: the birth stays."""
        self.before, self.usual, self.limit = None, math.inf, math.inf

    def forget(self) -> None:
        """Drop the losses of a model that has been taken back."""
        self._unread, self._arriving, self._recent = [], None, None
        self.end()

    def see(self, loss: Tensor, step: int) -> float | None:
        """Take a loss in, and return the worst of those that have been read if training has diverged."""
        self._unread.append(loss.detach().reshape(()))
        at_once = loss.device.type == "cpu" and not is_distributed()
        if step % READ_EVERY and not at_once:
            return None
        for value in self._read():
            if not math.isfinite(value):
                return value
            self._first = value if self._first is None else self._first
            self._recent = _mixed(self._recent, value, RECENT)
            if self._recent > self.limit:
                return value
            if self.average is not None:
                self._variance = _mixed(self._variance, (value - self.average) ** 2, AVERAGE)
            self.average = _mixed(self.average, value, AVERAGE)
        if self.before is not None and step >= self.until + (0 if at_once else DELAY):
            self.end()
        return None

    def _read(self) -> list[float]:
        """Return losses that have arrived. Those of a GPU arrive one read later."""
        device = self._unread[-1].device
        losses = agreed(torch.stack([loss.to(device, torch.float32) for loss in self._unread]))
        self._unread = []
        if losses.device.type != "cuda":
            return losses.tolist()
        arrived, copy = self._arriving, losses.to("cpu", non_blocking=True)
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(losses.device))
        self._arriving = copy, event
        if arrived is None:
            return []
        arrived[1].synchronize()
        return arrived[0].tolist()

    def describe(self) -> dict[str, Any]:
        """Return everything but the capture, as JSON."""
        described: dict[str, Any] = {"average": self.average, "recent": self._recent}
        described |= {"variance": self._variance, "first": self._first}
        for name in ("usual", "limit"):
            described[name] = None if getattr(self, name) == math.inf else getattr(self, name)
        arriving: list[float] = []
        if self._arriving is not None:
            self._arriving[1].synchronize()
            arriving = self._arriving[0].tolist()
        unread = [*arriving, *(float(loss) for loss in self._unread)]
        return described | {"since": self.since, "until": self.until, "unread": unread}

    def load(self, saved: dict[str, Any], before: Capture | None) -> None:
        """Take over what was saved. Losses that were not read yet are read with the next."""
        self.average, self._recent = saved["average"], saved["recent"]
        self._variance, self._first = saved["variance"], saved["first"]
        self.usual, self.limit = (math.inf if saved[name] is None else saved[name] for name in ("usual", "limit"))
        self.since, self.until, self.before = saved["since"], saved["until"], before
        self._unread = [torch.tensor(loss) for loss in saved["unread"]]


def _mixed(average: float | None, value: float, weight: float) -> float:
    return value if average is None else average + weight * (value - average)
