"""Run parts that do not depend on each other side by side on a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

COUNT = 8
"""Lanes of a network. Four gave most of what eight did, and 24 no more: docs/internals/engine_notes.md."""


class Lanes:
    """Streams of a GPU on which parts run side by side until they are joined; on a CPU they run in turn.

    A recorded program keeps the lanes as branches. The backward pass of a part runs on the lane of its forward pass.
    """

    def __init__(self, device: torch.device, count: int = COUNT) -> None:
        self.streams = [torch.cuda.Stream(device) for _ in range(count)] if device.type == "cuda" else []
        self.used: set[torch.cuda.Stream] = set()

    @contextmanager
    def lane(self, n: int, *read: Tensor) -> Iterator[None]:
        """Run a part on lane `n`, after all that was called before.

        Args:
            n: Number of the part; parts with other numbers may run at the same time.
            read: Tensors that the part reads, made before, whose memory may be needed by others afterwards.
        """
        if not self.streams:
            yield
            return
        stream = self.streams[n % len(self.streams)]
        self.used.add(stream)
        stream.wait_stream(torch.cuda.current_stream())
        for tensor in read:
            tensor.record_stream(stream)
        with torch.cuda.stream(stream):
            yield

    def join(self, *made: Tensor) -> None:
        """Let what is called from now on begin after all parts.

        Args:
            made: Tensors that the parts made, and that are read from now on.
        """
        if not self.used:
            return
        here = torch.cuda.current_stream()
        for stream in self.used:
            here.wait_stream(stream)
        for tensor in made:
            tensor.record_stream(here)
        self.used.clear()
