"""Hold the runs of a folder: search for them, list them, and read on in the background."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Condition, Event, Lock, Thread
from typing import Any

from esper.leyline.errors import EsperError, FileError
from esper.ui.folders import Tree
from esper.ui.runs import Run
from esper.ui.tails import Log

PATIENCE = 0.6
"""Seconds that a request may read; the rest is read in the background."""
TURN = 0.05
"""Seconds that the background reads before it rests as long."""
SEARCH = 1.0
"""Least seconds between two searches for runs; they take at most a tenth of the time."""
INTEREST = 10.0
"""Seconds after the list was last looked at in which it is kept up to date."""
FIRST = 100
"""Runs that are listed before the first search has ended."""
OPENED = 16
"""Logs that are held in memory: curves, indices of gardens and lives."""
SORTS: dict[str, Callable[[Run], Any]] = {
    "modified": lambda run: run.modified,
    "name": lambda run: run.name.casefold(),
    "best": lambda run: run.summary.best if run.kind == "run" else None,  # a loss is no J
    "updates": lambda run: run.summary.updates,
}
BY_CONTENT = ("best", "updates")
"""Sort keys that stand in the logs."""


@dataclass(eq=False)
class Opened:
    """A log that a page looks at, with a lock for those who read it or show it."""

    run: Run
    log: Log
    lock: Lock = field(default_factory=Lock)
    has_failed: bool = False
    """Whether the background could not read it; the next request says why."""

    @property
    def is_waiting(self) -> bool:
        """Whether there is something left for the background to read."""
        return not self.log.tail.is_done and not self.has_failed


class Library:
    """The runs below a folder."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.runs: dict[str, Run] = {}
        self.opened: OrderedDict[tuple[str, str], Opened] = OrderedDict()
        self.lock, self.work = Lock(), Condition()
        self.ended, self.searched = Event(), Event()
        self.asked = -math.inf
        """When the list was last looked at, by `monotonic`."""
        self.current: Run | None = None
        self.unread: Iterator[Run] = iter(())
        """The run whose log the background reads, and those that are next."""
        self.thread = Thread(target=self._read_on, name="esper-ui-reader", daemon=True)

    def start(self) -> None:
        """Begin to search and read in the background."""
        self.thread.start()

    def close(self) -> None:
        """End the background thread."""
        self.ended.set()
        self._wake()
        self.thread.join(0.5)

    def _wake(self) -> None:
        with self.work:
            self.work.notify_all()

    def run(self, id: str) -> Run | None:
        """Return a run by its id; None if there is none."""
        self.searched.wait(PATIENCE)
        return self.runs.get(id)

    @contextmanager
    def opened_log(self, run: Run, name: str, make: Callable[[], Log]) -> Iterator[Log]:
        """Yield a log of a run, read on for a moment; the background reads the rest.

        Raises:
            FileError: The log cannot be read.
        """
        with self.lock:
            opened = self.opened.setdefault((run.id, name), Opened(run, make()))
            self.opened.move_to_end((run.id, name))
            while len(self.opened) > OPENED:
                self.opened.popitem(last=False)
        is_first = opened.lock.acquire(blocking=False)
        if not is_first:
            opened.lock.acquire()  # somebody else has just read on, for everybody who waits
        try:
            if is_first and not opened.is_waiting:
                with self.tree.open(run.place.parts) as folder:
                    opened.log.advance(folder, time.monotonic() + PATIENCE)
                opened.has_failed = False
            yield opened.log
        finally:
            opened.lock.release()
        if opened.is_waiting:
            self._wake()

    def reading(self, run: Run) -> float:
        """Return the share of the logs of a run, as far as pages look at them, that has been read."""
        with self.lock:
            logs = [opened.log for (id, _), opened in self.opened.items() if id == run.id]
        return min((log.tail.reading for log in logs), default=1.0)

    def page(self, *, offset: int, limit: int, sort: str, search: str, state: str) -> dict[str, Any]:
        """Return a part of the list of runs.

        Raises:
            EsperError: The sort key is unknown.
        """
        key = sort.removeprefix("-")
        if key not in SORTS:
            raise EsperError(f"sort must be one of {', '.join(SORTS)}, with a - in front for descending, not {key!r}")
        self.asked = time.monotonic()
        is_complete = self.searched.wait(PATIENCE)
        until, now = time.monotonic() + PATIENCE, time.time()
        runs = list(self.runs.values())
        problems = [] if is_complete else ["Still looking for runs in this folder."]
        if search or state or key in BY_CONTENT:
            known = list(runs) if state or key in BY_CONTENT else []
            self._look([run for run in runs if not run.is_known] + known, until)
            if unknown := sum(not run.is_known for run in runs):
                problems.append(f"{unknown:,} of {len(runs):,} runs have not been looked at yet: this is not all.")
        if search:
            runs = [run for run in runs if search.casefold() in f"{run.name} {run.header.title}".casefold()]
        if state:
            runs = [run for run in runs if run.state(now) == state]
        runs = ordered(runs, key, sort.startswith("-"))
        shown = runs[offset : offset + limit]
        self._look(shown, until)
        self._wake()
        return {
            "folder": self.tree.name,
            "total": len(runs),
            "runs": [run.row(now) for run in shown],
            "problems": [*self.tree.problems, *problems],
        }

    def _look(self, runs: list[Run], until: float) -> None:
        """Bring as many runs up to date as there is time for."""
        for run in runs:
            if time.monotonic() >= until:
                break
            run.look(self.tree, until)

    def look_at_all(self) -> list[Run]:
        """Return all runs, after a look at when their files were written, and at who still writes."""
        self.asked = time.monotonic()
        runs = list(self.runs.values())
        for run in runs:
            run.glance(self.tree)
        return runs

    def known(self) -> tuple[int, int]:
        """Return the number of runs, and of those whose logs have been read to their ends."""
        runs = list(self.runs.values())
        return len(runs), sum(run.is_exact for run in runs)

    def _search(self) -> None:
        """Search for runs once."""
        found: dict[str, Run] = {}
        for place in self.tree.find():
            run = self.runs.get(place.id) or Run(place, self.tree.named(place))
            found[run.id] = run
            run.glance(self.tree)
            if not self.searched.is_set() and len(found) <= FIRST:
                self.runs = dict(found)
            if self.ended.is_set():
                return
        self.runs = found
        self.searched.set()

    def _read_on(self) -> None:
        """Search and read until the library is closed; runs in a thread of its own."""
        due = -math.inf
        while not self.ended.is_set():
            started = time.monotonic()
            if started >= due and (self._is_asked() or not self.searched.is_set()):
                self._search()
                due = time.monotonic() + max(SEARCH, 9 * (time.monotonic() - started))
            started = time.monotonic()
            if self._read_some(started + TURN):
                self.ended.wait(time.monotonic() - started)  # rest as long as it worked
            else:
                with self.work:
                    self.work.wait(min(max(due - time.monotonic(), 0.05), SEARCH))

    def _is_asked(self) -> bool:
        """Return whether somebody looks at the list."""
        return time.monotonic() - self.asked < INTEREST

    def _read_some(self, until: float) -> bool:
        """Read until a time, first what pages look at; return whether there was anything to read."""
        with self.lock:
            waiting = [opened for opened in self.opened.values() if opened.is_waiting]
        if waiting:
            self._read(waiting[-1], until)
            return True
        has_read = False
        while self._is_asked() and time.monotonic() < until and (run := self._next()) is not None:
            run.look(self.tree, until, far=True)
            has_read = True
        return has_read

    def _next(self) -> Run | None:
        """Return the run whose log is to be read next, the latest first; None if all have been read."""
        for _ in range(2):
            while self.current is not None:
                if self.current.is_unread:
                    return self.current
                self.current = next(self.unread, None)
            unread = [run for run in self.runs.values() if run.is_unread]
            self.unread = iter(sorted(unread, key=lambda run: -run.seen))
            self.current = next(self.unread, None)
        return self.current

    def _read(self, opened: Opened, until: float) -> None:
        with opened.lock:
            try:
                with self.tree.open(opened.run.place.parts) as folder:
                    opened.log.advance(folder, until)
            except (FileError, OSError):
                opened.has_failed = True


def ordered(runs: list[Run], key: str, descending: bool) -> list[Run]:
    """Return runs in the order of a sort key; those without a value come last."""
    value = SORTS[key]
    known = sorted((run for run in runs if value(run) is not None), key=lambda run: run.name)
    known.sort(key=value, reverse=descending)
    return known + [run for run in runs if value(run) is None]
