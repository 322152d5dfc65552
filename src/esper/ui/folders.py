"""Find run folders and growth logs below one folder, and open their files without ever leaving it.

Everything is opened relative to the folder above it, symbolic links are not followed, and only regular files are read:
somebody who can write into the folder cannot make the server read, or wait for, anything else.
"""

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from io import FileIO
from pathlib import Path
from typing import Any, Literal, NamedTuple

from esper.dashboard.plain import text
from esper.leyline.errors import EsperError, FileError
from esper.telemetry.folder import CONTROLLER, EXAM, LOCK, REPORTS

RUN, GROWTH = "config.json", "growth.json"
"""The files by which a run and the log of a growth are known."""
GROWTH_LOG = "growth.jsonl"
MARKS = (REPORTS, EXAM, CONTROLLER, LOCK, "environment.json", "checkpoints")
"""What stands beside the config.json of a run, but not beside that of other programs."""
KNOWN = {*MARKS, RUN, GROWTH, GROWTH_LOG}
CLOSED = ("checkpoints", "pictures", "node_modules", "site-packages", "__pycache__")
"""Folders that hold no runs, besides hidden ones."""
DEEPEST, MOST_FOLDERS, MOST_ENTRIES = 8, 100_000, 2_000_000
"""Bounds of the search for runs: levels, folders, and files and folders together."""
MOST_BYTES = 4 << 20
"""Largest file that is read as a whole, besides exams."""
SAFELY = os.O_RDONLY
for flag in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY"):
    SAFELY |= getattr(os, flag, 0)  # Windows has none of them, and is refused below
Kind = Literal["run", "growth"]


class Place(NamedTuple):
    """Where a run or the log of a growth lies."""

    parts: tuple[str, ...]
    """Names of the folders on the way to it, from the folder that is shown."""
    kind: Kind

    @property
    def id(self) -> str:
        """The opaque name of the place in addresses, which stays when the server is started again."""
        path = b"\0".join(os.fsencode(part) for part in self.parts)
        return blake2b(path, digest_size=8, person=self.kind.encode()).hexdigest()


class Folder:
    """An open folder; its files are opened relative to it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def stat(self, name: str) -> os.stat_result | None:
        """Return what is known of an entry, without following links; None if there is none."""
        with suppress(OSError, ValueError):
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        return None

    def open(self, name: str) -> FileIO | None:
        """Open a regular file; None if there is no entry of this name.

        Raises:
            FileError: The entry is something else, or cannot be opened.
        """
        found = self.stat(name)
        if found is None:
            return None
        _require_regular(found, name)
        try:
            file = FileIO(os.open(name, SAFELY, dir_fd=self.fd))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise FileError(f"cannot read {name}: {error.strerror or error}") from None
        try:
            _require_regular(os.fstat(file.fileno()), name)  # it may have been replaced in between
        except FileError:
            file.close()
            raise
        return file

    def read(self, name: str, most: int = MOST_BYTES) -> bytes | None:
        """Read a whole file; None if there is none.

        Raises:
            FileError: It is no regular file, is too large, or cannot be read.
        """
        file = self.open(name)
        if file is None:
            return None
        with file:
            if os.fstat(file.fileno()).st_size > most:
                raise FileError(f"{name} has more than {most >> 20} MB and is not read")
            try:
                found = read_at(file, 0, most + 1)
            except OSError as error:
                raise FileError(f"cannot read {name}: {error.strerror or error}") from None
        if len(found) > most:
            raise FileError(f"{name} has more than {most >> 20} MB and is not read")
        return found

    def json(self, name: str, most: int = MOST_BYTES) -> Any:
        """Read a JSON file; None if there is none.

        Raises:
            FileError: It cannot be read, or is not JSON.
        """
        found = self.read(name, most)
        return None if found is None else parsed(found, name)


def read_at(file: FileIO, offset: int, most: int) -> bytes:
    """Read up to so many bytes from an offset, whatever part of them a single call returns."""
    parts = []
    while most > 0 and (part := os.pread(file.fileno(), min(most, 1 << 20), offset)):
        parts.append(part)
        offset, most = offset + len(part), most - len(part)
    return b"".join(parts)


def parsed(found: bytes, name: str) -> Any:
    """Parse JSON.

    Raises:
        FileError: It is damaged: not JSON, nested too deeply, or with a number of thousands of digits.
    """
    try:
        return json.loads(found)
    except RecursionError:
        raise FileError(f"{name} is damaged: it is nested too deeply") from None
    except ValueError:
        raise FileError(f"{name} is damaged: it is not JSON") from None


def _require_regular(found: os.stat_result, name: str) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise FileError(f"{name} is a symbolic link, which is not followed: put the file itself there")
    if not stat.S_ISREG(found.st_mode):
        raise FileError(f"{name} is not a regular file and is not read")


class Tree:
    """The folder that is shown, and everything below it."""

    def __init__(self, path: Path) -> None:
        """Remember the folder.

        Raises:
            EsperError: It does not exist, is no folder, or cannot be read.
        """
        if os.open not in os.supports_dir_fd:
            raise EsperError("esper ui needs Linux, macOS or another Unix; on Windows, start it in WSL")
        self.path = path.absolute()
        self.problems: list[str] = []
        """What the last complete search could not look at."""
        try:
            os.close(self._top())
        except NotADirectoryError:
            raise EsperError(f"{path} is a file: name the folder of a run, or one that holds runs") from None
        except OSError as error:
            raise EsperError(f"cannot read the folder {path}: {error.strerror or error}") from None

    def _top(self) -> int:
        # by its path, every time: it may be removed and made again
        return os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    @property
    def name(self) -> str:
        """The name of the folder, as clean text."""
        return text(self.path.resolve().name or str(self.path.resolve())) or "?"

    def named(self, place: Place) -> str:
        """Return the path of a run as clean text."""
        return text("/".join(place.parts), 400) or self.name

    def path_of(self, place: Place) -> str:
        """Return the path of a run for commands."""
        return str(self.path.joinpath(*place.parts))

    @contextmanager
    def open(self, parts: tuple[str, ...]) -> Iterator[Folder]:
        """Open a folder below this one, step by step and without following links.

        Raises:
            FileError: It is gone, or something else has taken its place.
        """
        try:
            fd = self._top()
        except OSError as error:
            raise FileError(f"the folder {self.name} cannot be read: {error.strerror or error}") from None
        try:
            for part in parts:
                inner = _enter(part, fd)
                os.close(fd)
                fd = inner
            yield Folder(fd)
        finally:
            os.close(fd)

    def find(self) -> Iterator[Place]:
        """Yield all runs and growth logs, folder by folder, and note in `problems` what was left out."""
        problems: dict[str, None] = {}
        waiting: list[tuple[str, ...]] = [()]
        folders = entries = 0
        while waiting and folders < MOST_FOLDERS and entries < MOST_ENTRIES:
            parts = waiting.pop()
            folders += 1
            try:
                with self.open(parts) as folder:
                    found = _listed(folder)
                    kinds = _kinds(folder, found.names)
            except (FileError, OSError):
                problems[f"A folder cannot be read: {text('/'.join(parts), 200) or self.name}."] = None
                continue
            entries += found.entries
            yield from (Place(parts, kind) for kind in kinds)
            if len(parts) < DEEPEST:
                waiting += [(*parts, name) for name in sorted(found.inner, reverse=True)]
        if waiting:
            problems[f"The folder is too large to be searched to its end: {folders:,} folders were looked into."] = None
        self.problems = list(problems)[:20]


def _enter(name: str, fd: int) -> int:
    try:
        return os.open(name, SAFELY | os.O_DIRECTORY, dir_fd=fd)
    except (OSError, ValueError):
        raise FileError("the folder of this run is gone") from None


class Listed(NamedTuple):
    """What the search needs to know of a folder."""

    names: set[str]
    """Names of entries by which runs are known."""
    inner: list[str]
    """Names of folders to look into."""
    entries: int


def _listed(folder: Folder) -> Listed:
    names, inner, number = set(), [], 0
    with os.scandir(folder.fd) as entries:
        for entry in entries:
            number += 1
            if entry.name in KNOWN:
                names.add(entry.name)
            if entry.is_dir(follow_symlinks=False) and not (entry.name in CLOSED or entry.name.startswith(".")):
                inner.append(entry.name)
    return Listed(names, inner, number)


def _kinds(folder: Folder, names: set[str]) -> list[Kind]:
    """Return what a folder holds: a run, the log of a growth, both, or neither."""
    kinds: list[Kind] = []
    is_run = REPORTS in names or (RUN in names and (not names.isdisjoint(MARKS) or _says(folder, RUN, "recipe")))
    is_growth = GROWTH_LOG in names or (GROWTH in names and _says(folder, GROWTH, "blocks"))
    if is_run:
        kinds.append("run")
    if is_growth:
        kinds.append("growth")
    return kinds


def _says(folder: Folder, name: str, key: str) -> bool:
    """Return whether the JSON object in a file has a key."""
    try:
        found = folder.json(name)
    except FileError:
        return False
    return isinstance(found, dict) and key in found
