"""Say what is going on in a run, for the list of runs: its state, and J as far as its log has been read."""

import os
from collections.abc import Mapping
from contextlib import suppress
from io import FileIO
from threading import Lock
from typing import Any, NamedTuple

from esper.dashboard.curves import Series
from esper.dashboard.growth_log import budget_in
from esper.dashboard.plain import count, inside, number, sentence, short, text
from esper.leyline.errors import FileError
from esper.telemetry import lock
from esper.telemetry.folder import CONTROLLER, EXAM, GARDEN, LIVES, LOCK, REPORTS, START, VERSION
from esper.ui.folders import GROWTH, GROWTH_LOG, RUN, Folder, Kind, Place, Tree, parsed, read_at
from esper.ui.tails import Log

SPARK = 60
"""Largest number of points of a sparkline."""
NEAR = 1 << 17
"""Bytes of a log that are read at once for the list; of a longer rest, some lines are sampled."""
SAMPLES = 24
"""Lines that are read of a long log."""
BLOCKS = (1 << 13, 1 << 18)
"""Bytes in which the next whole line is looked for: first few, then more."""
FILES: dict[str, tuple[str, ...]] = {
    "reports": (REPORTS, START),
    "garden": (GARDEN,),
    "exams": (EXAM, LIVES),
    "growth": (GROWTH_LOG, GROWTH),
    "state": (RUN, CONTROLLER, LOCK),
}
"""The files whose changes are told, by what the page calls them."""
QUIET = 60.0
"""Least seconds without a new line after which a growth that is not finished counts as stopped."""


class Stamp(NamedTuple):
    """By what a change of a file is noticed."""

    inode: int
    size: int
    modified: int
    """Nanoseconds since 1970."""


Stamps = dict[str, Stamp | None]


def stamps(folder: Folder) -> Stamps:
    """Return the stamps of all files that a page shows something of."""
    found: Stamps = {}
    for names in FILES.values():
        for name in names:
            stat = folder.stat(name)
            found[name] = Stamp(stat.st_ino, stat.st_size, stat.st_mtime_ns) if stat else None
    return found


def is_written(folder: Folder) -> bool:
    """Return whether a live process holds the lock of a folder."""
    try:
        file = folder.open(LOCK)
    except FileError:
        return False
    if file is None:
        return False
    with file:
        taken = lock._flock(file, shared=True)
        holder = _holder(file) if taken is None else None
    return taken is False or (holder is not None and holder.may_live)


def _holder(file: FileIO) -> lock.Holder | None:
    """Return the process that a lock file names; None if it names none."""
    try:
        return lock.Holder.read(file) if os.fstat(file.fileno()).st_size < NEAR else None
    except RecursionError:
        return None


class Summary:
    """The J of a run, or the loss of a growth, in few numbers."""

    def __init__(self, kind: Kind) -> None:
        self.kind: Kind = kind
        self.updates, self.lines, self.flops, self.is_finished = 0, 0, 0.0, False
        self.best: float | None = None
        self.last: float | None = None
        self.buckets, self.width, self.filled = Series(), 1, 0

    def add(self, line: object) -> None:
        """Add what stands in a line of the log; None for a damaged line."""
        update, value = self._read(line)
        if update is None or update < self.updates:
            return
        self.lines += 1
        self.updates = update + (self.kind == "run")
        if self.filled == self.width or not self.buckets.sums:
            if len(self.buckets.sums) == 2 * SPARK:
                self.buckets.halve()
                self.width *= 2
            self.buckets.open()
            self.filled = 0
        self.filled += 1
        if value is not None:
            self.last = value
            better = min if self.kind == "growth" else max
            self.best = value if self.best is None else better(self.best, value)
            self.buckets.add(value)

    def _read(self, line: object) -> tuple[int | None, float | None]:
        if self.kind == "run":
            return count(inside(line, "update")), number(inside(line, "objective"))
        found = inside(line, "point")
        if found is None:
            found = inside(line, "event")
            self.is_finished = inside(found, "kind") == "finish"
        self.flops = max(self.flops, number(inside(found, "flops")) or 0.0)
        return count(inside(found, "step")), number(inside(found, "loss"))

    def spark(self) -> list[float | None]:
        """Return the values in at most `SPARK` points."""
        return self.buckets.means(-(-len(self.buckets.sums) // SPARK) or 1)


def sampled(folder: Folder, name: str, kind: Kind) -> Summary:
    """Return a summary of some lines of a log, the last one included.

    Raises:
        FileError: The log is no regular file, or cannot be read.
    """
    found = Summary(kind)
    file = folder.open(name)
    if file is None:
        return found
    with file:
        try:
            size = os.fstat(file.fileno()).st_size
            for i in range(SAMPLES):
                if (line := _line_after(file, size * i // SAMPLES)) is not None:
                    found.add(line)
            if (line := _last_line(file, size)) is not None:
                found.add(line)
        except OSError as error:
            raise FileError(f"cannot read {name}: {error.strerror or error}") from None
    return found


def _line_after(file: FileIO, at: int) -> Any:
    """Return the first line that begins after an offset; None if it is damaged, long or not there."""
    for most in BLOCKS:
        block = read_at(file, at, most)
        begin = block.find(b"\n") + 1 if at else 0
        end = block.find(b"\n", begin) if begin or not at else -1
        if end >= 0:
            return _parsed(block[begin:end])
    return None


def _last_line(file: FileIO, size: int) -> Any:
    for most in BLOCKS:
        block = read_at(file, max(size - most, 0), most)
        end = block.rfind(b"\n")
        begin = block.rfind(b"\n", 0, max(end, 0)) + 1
        if end >= 0 and (begin or size <= most):
            return _parsed(block[begin:end])
    return None


def _parsed(line: bytes) -> Any:
    try:
        return parsed(line, "line")
    except FileError:
        return None


class Header(NamedTuple):
    """What stands in the small files of a run."""

    title: str = ""
    of: int | None = None
    never: float | None = None
    problem: str | None = None
    config: Mapping[str, Any] = {}
    """The recipe of a run, or the options of a growth."""


def header(folder: Folder, kind: Kind) -> Header:
    """Read what a run is about; what is wrong with its files becomes its problem."""
    try:
        return _of_run(folder) if kind == "run" else _of_growth(folder)
    except FileError as error:
        return Header(problem=sentence(error))


def _of_run(folder: Folder) -> Header:
    found = folder.json(RUN)
    if found is None:
        raise FileError(f"{RUN} is missing")
    version, recipe = count(inside(found, "version")), inside(found, "recipe")
    if version is None or not isinstance(recipe, Mapping):
        raise FileError(f"{RUN} is damaged: it has no version and recipe")
    if version > VERSION:
        raise FileError(f"{RUN} was written by a newer Esper: upgrade Esper to see this run")
    found = Header(text(recipe.get("name"), 100) or "", updates_of(recipe), config=recipe)
    try:
        return found._replace(never=number(inside(folder.json(START), "never")))
    except FileError as error:
        return found._replace(problem=sentence(error))


def updates_of(recipe: Mapping[str, Any]) -> int | None:
    """Return the number of updates of all stages of a recipe; None if it does not say."""
    stages = recipe.get("pretrain")
    parts = [
        count(inside(part, "learn", "updates")) for part in [*(stages if isinstance(stages, list) else ()), recipe]
    ]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _of_growth(folder: Folder) -> Header:
    found = folder.json(GROWTH)
    if not isinstance(found, Mapping):
        raise FileError(f"{GROWTH} is {'missing' if found is None else 'damaged: it must hold an object'}")
    return Header(text(found.get("name"), 100) or "", config=found)


class Run:
    """One run or growth of the list, with what is known of it so far."""

    def __init__(self, place: Place, name: str) -> None:
        self.place, self.id, self.name = place, place.id, name
        self.kind: Kind = place.kind
        self.lock = Lock()
        self.log_name = REPORTS if self.kind == "run" else GROWTH_LOG
        self.log = Log(self.log_name, lambda: Summary(self.kind), lambda made, _, line: made.add(line))
        self.sample: Summary | None = None
        self.stamps: Stamps = {}
        self.header = Header()
        self.is_written, self.is_known = False, False
        self.seen = 0
        """When the last of its files was written, in nanoseconds since 1970."""
        self.problem: str | None = None
        """What is wrong with the folder or the log; it is tried again at every look."""

    def glance(self, tree: Tree) -> None:
        """Look only at when its files were written, for the order of the list."""
        with suppress(FileError, OSError), tree.open(self.place.parts) as folder:
            self.seen = max((stamp.modified for stamp in stamps(folder).values() if stamp), default=0)
            if self.is_written:
                self.is_written = is_written(folder)

    def look(self, tree: Tree, until: float, far: bool = False) -> None:
        """Bring everything up to date: a long log by samples, or, if `far`, by reading until a time."""
        with self.lock:
            problem = None
            try:
                with tree.open(self.place.parts) as folder:
                    self._look(folder, until, far)
            except (FileError, OSError) as error:
                problem = sentence(error)
            self.problem, self.is_known = problem, True

    def _look(self, folder: Folder, until: float, far: bool) -> None:
        before, self.stamps = self.stamps, stamps(folder)
        self.seen = max((stamp.modified for stamp in self.stamps.values() if stamp), default=0)
        self.is_written = self.stamps[CONTROLLER] is None and is_written(folder)
        changed = {name for name, stamp in self.stamps.items() if name not in before or before[name] != stamp}
        if changed & {RUN, START, GROWTH}:
            self.header = header(folder, self.kind)
        stamp = self.stamps[self.log_name]
        if stamp is None:
            self.sample = None
            self.log.advance(folder, until)
        elif self.log_name in changed or not self.is_exact or self.problem is not None:
            is_near = stamp.size - self.log.tail.offset <= NEAR
            if far or is_near:
                self.log.advance(folder, until)
            if (far or is_near) and self.log.tail.is_done:
                self.sample = None
            elif self.log_name in changed or self.sample is None:
                self.sample = sampled(folder, self.log_name, self.kind)

    @property
    def is_exact(self) -> bool:
        """Whether the whole log has been read."""
        return self.is_known and self.sample is None and self.log.tail.is_done

    @property
    def is_unread(self) -> bool:
        """Whether there is something of the log left to read."""
        return not self.is_exact and self.problem is None

    @property
    def summary(self) -> Summary:
        """What is known of J, or of the loss."""
        return self.log.made if self.sample is None else self.sample

    @property
    def modified(self) -> float:
        """When the last of its files was written, in seconds since 1970."""
        return self.seen / 1e9

    def state(self, now: float) -> str:
        """Return whether the run goes on, has stopped, is done, or is damaged."""
        if self.header.problem or self.problem:
            return "damaged"
        if self.kind == "run":
            done = self.stamps.get(CONTROLLER) is not None
            return "done" if done else "running" if self.is_written else "stopped"
        budget = budget_in(self.header.config)
        if self.summary.is_finished or (budget is not None and self.summary.flops >= budget):
            return "done"
        return "running" if self.is_written or now - self.modified < self._quiet() else "stopped"

    def _quiet(self) -> float:
        """Return the seconds without a new line after which a growth counts as stopped: some times the usual."""
        header, log = self.stamps.get(GROWTH), self.stamps.get(GROWTH_LOG)
        if header is None or log is None:
            return QUIET
        return max(QUIET, 5e-9 * (log.modified - header.modified) / max(self.summary.lines, 1))

    def row(self, now: float) -> dict[str, Any]:
        """Return the row of the list."""
        summary = self.summary
        return {
            "id": self.id,
            "kind": self.kind,
            "name": self.name,
            "title": self.header.title,
            "state": self.state(now),
            "modified": self.modified,
            "updates": summary.updates if self.is_known else None,
            "of": self.header.of,
            "best": short(summary.best),
            "last": short(summary.last),
            "never": short(self.header.never),
            "exact": self.is_exact,
            "spark": summary.spark(),
            "problem": self.problem or self.header.problem,
        }
