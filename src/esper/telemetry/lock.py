"""Let one process at a time write to a folder, and say which one does.

The lock is the kernel's (`flock`): it is freed when its holder ends, even by SIGKILL. The file's text names the holder
and is believed only while the lock is held. On Windows, and on network disks without `flock`, that text is all there
is: it is believed until its process has ended, or, where that cannot be checked, until the file is removed.
"""

import json
import os
import platform
import shlex
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from io import FileIO
from pathlib import Path

from esper.leyline.errors import FileError
from esper.leyline.json_records import from_json

try:
    import fcntl
except ImportError:
    fcntl = None

PATIENCE = 0.5
"""Seconds to wait for a lock: long enough for another process to look at it with `holder_of`."""


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock."""

    process: int
    host: str
    since: float
    """Seconds since 1970."""
    command: str

    @classmethod
    def here(cls) -> "Holder":
        """Describe this process."""
        program = Path(sys.argv[0]).name
        command = shlex.join(["python", *sys.argv] if program.startswith("-") else [program, *sys.argv[1:]])
        return cls(os.getpid(), platform.node(), time.time(), textwrap.shorten(command, 120))

    @classmethod
    def read(cls, file: FileIO) -> "Holder | None":
        """Read what a lock file says; None if it names no process."""
        file.seek(0)
        try:
            return from_json(cls, json.loads(file.read()), "holder")
        except ValueError:
            return None

    def write(self, file: FileIO) -> None:
        file.truncate(0)
        file.write(json.dumps(asdict(self)).encode())

    @property
    def may_live(self) -> bool:
        """Whether the process runs, or runs where that cannot be checked."""
        if self.host != platform.node() or os.name == "nt":  # there, os.kill would end it
            return True
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since)
        when = f"{since:%H:%M}" if since.date() == datetime.now().date() else f"{since:%Y-%m-%d %H:%M}"
        return f"process {self.process} on {self.host} since {when} ({self.command})"


@contextmanager
def locked(path: Path, what: Path) -> Iterator[None]:
    """Hold the lock file `path` of the folder `what`.

    Raises:
        FileError: Another process holds it; the message says which one.
    """
    try:
        what.mkdir(parents=True, exist_ok=True)
        file = open(path, "a+b", buffering=0)  # noqa: SIM115
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}") from error
    with file:
        taken, holder = _take(file), Holder.read(file)
        if taken is False:
            raise FileError(f"{what} is being written by {holder or 'another process'}: wait or stop it")
        if taken is None and holder and holder.may_live:
            raise FileError(
                f"{what} is being written by {holder}: wait or stop it; if it has ended already, remove {path}"
            )
        with suppress(OSError):  # a full disk
            Holder.here().write(file)
        try:
            yield
        finally:
            with suppress(OSError):
                file.truncate(0)


def holder_of(path: Path) -> str | None:
    """Say which process holds the lock file `path`, without waiting; None if no process does."""
    try:
        file = open(path, "rb", buffering=0)  # noqa: SIM115
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from error
    with file:
        taken, holder = _flock(file, shared=True), Holder.read(file)
    if taken or (taken is None and not (holder and holder.may_live)):
        return None
    return str(holder or "another process")


def wait_until_free(path: Path, seconds: float) -> None:
    """Wait at most so many seconds for a process that holds the lock file `path` and is about to end."""
    until = time.monotonic() + seconds
    while holder_of(path) and time.monotonic() < until:
        time.sleep(0.1)


def _take(file: FileIO) -> bool | None:
    until = time.monotonic() + PATIENCE
    while (taken := _flock(file)) is False and time.monotonic() < until:
        time.sleep(PATIENCE / 10)
    return taken


def _flock(file: FileIO, shared: bool = False) -> bool | None:
    """Try to take the kernel's lock; None where there are no such locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
