"""Read a log that grows, line by line, from where the last reading ended, in slices of bounded size."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import FileIO
from time import monotonic
from typing import Any

from esper.leyline.errors import FileError
from esper.ui.folders import Folder, parsed, read_at

SLICE = 1 << 18
"""Bytes that are read at once."""
LONGEST = 4 << 20
"""Longest line that is read; a longer one is damage."""
REMEMBERED = 1024
"""Bytes before the end of what was read, by which a log is known again."""


@dataclass
class Tail:
    """A position in a log up to which it has been read.

    A log that was cut and written on, or replaced, is noticed: its last bytes before the position differ.
    """

    name: str
    """The name of the file."""
    identity: tuple[int, int] | None = None
    """Device and inode of the file."""
    offset: int = 0
    """Where the next line begins, or, within one that is too long, where the next slice begins."""
    size: int = 0
    """Bytes of the file when it was last looked at."""
    is_skipping: bool = False
    """Whether the line that is being read is too long."""
    before: bytes = field(default=b"", repr=False)
    """The last bytes before the offset."""

    @property
    def reading(self) -> float:
        """The share of the log that has been read, but for a last line that is still being written."""
        return 1.0 if self.is_done else min(self.offset / max(self.size, 1), 0.999)

    is_done: bool = True
    """Whether everything that was there when last looked at has been read."""

    def still_fits(self, file: FileIO) -> bool:
        """Return whether the file continues what was read."""
        found = os.fstat(file.fileno())
        if self.identity is None:
            return self.offset == 0
        if (found.st_dev, found.st_ino) != self.identity or found.st_size < self.offset:
            return False
        return read_at(file, self.offset - len(self.before), len(self.before)) == self.before

    def begin(self, file: FileIO) -> None:
        """Go to the start of a file."""
        found = os.fstat(file.fileno())
        self.identity = (found.st_dev, found.st_ino)
        self.offset, self.is_skipping, self.before = 0, False, b""

    def slice(self, file: FileIO) -> Iterator[tuple[int, bytes | None]]:
        """Read the next slice, and yield its whole lines with their offsets; None stands for one that is too long."""
        self.size = os.fstat(file.fileno()).st_size
        block, most = b"", LONGEST if self.is_skipping else SLICE
        while True:
            block += read_at(file, self.offset + len(block), most - len(block))
            end = block.rfind(b"\n") + 1
            self.is_done = len(block) < most
            if end or self.is_done or self.is_skipping or most > LONGEST:
                break
            most = LONGEST + 1
        is_rest, at = self.is_skipping, self.offset
        self.is_skipping = not end and (is_rest or len(block) > LONGEST)
        if not self.is_skipping:
            block = block[:end]
        self._move(block)
        if self.is_skipping and not is_rest:
            yield at, None
        for line in block.split(b"\n")[:-1]:
            if not is_rest:
                yield at, line
            is_rest = False
            at += len(line) + 1

    def _move(self, block: bytes) -> None:
        self.offset += len(block)
        self.before = (self.before + block[-REMEMBERED:])[-REMEMBERED:]


@dataclass
class Log:
    """A log that is folded into something: curves, an index, a summary.

    Args:
        name: The name of the file.
        fresh: Makes what the lines are folded into, when the log is read from its start.
        fold: Takes what was made, the offset of a line, and what is in it; None for a damaged line.
    """

    name: str
    fresh: Callable[[], Any]
    fold: Callable[[Any, int, Any], object]

    def __post_init__(self) -> None:
        self.tail, self.made = Tail(self.name), self.fresh()

    def advance(self, folder: Folder, until: float) -> None:
        """Read on until a time of `monotonic`, at least one slice.

        Raises:
            FileError: The log is no regular file, or cannot be read.
        """
        file = folder.open(self.name)
        if file is None:
            self.__post_init__()
            return
        with file:
            try:
                if not self.tail.still_fits(file):
                    self.made = self.fresh()
                    self.tail.begin(file)
                elif self.tail.identity is None:
                    self.tail.begin(file)
                while True:
                    for at, line in self.tail.slice(file):
                        self.fold(self.made, at, None if line is None else _record(line))
                    if self.tail.is_done or monotonic() >= until:
                        return
            except OSError as error:
                raise FileError(f"cannot read {self.name}: {error.strerror or error}") from None


def _record(line: bytes) -> Any:
    """Parse a line; None if it is damaged."""
    try:
        return parsed(line, "line") if line else None
    except FileError:
        return None
