"""Hold the runs of a folder: search for them, list them, and read on in the background."""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
"""Seconds that the background reads one log before it rests."""
SEARCH = 2.0
"""Least seconds between two searches for runs; they take at most a tenth of the time."""
OPENED = 16
"""Logs that are held in memory: curves, indices of gardens and lives."""
SORTS: dict[str, Callable[[Run], Any]] = {
    "modified": lambda run: run.modified,
    "name": lambda run: run.name.casefold(),
    "best": lambda run: run.summary.best,
    "updates": lambda run: run.summary.updates,
}


@dataclass(eq=False)
class Opened:
    """A log that a page looks at, with a lock for whoever reads it or shows it."""

    run: Run
    log: Log
    lock: Lock = field(default_factory=Lock)


class Library:
    """The runs below a folder."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.runs: dict[str, Run] = {}
        self.opened: OrderedDict[tuple[str, str], Opened] = OrderedDict()
        self.lock, self.work = Lock(), Condition()
        self.ended, self.searched = Event(), Event()
        self.thread = Thread(target=self._read_on, name="esper-ui-reader", daemon=True)

    def start(self) -> None:
        """Begin to search and read in the background."""
        self.thread.start()

    def close(self) -> None:
        """End the background thread."""
        self.ended.set()
        with self.work:
            self.work.notify_all()
        self.thread.join(1.0)

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
        with opened.lock:
            with self.tree.open(run.place.parts) as folder:
                opened.log.advance(folder, time.monotonic() + PATIENCE)
            yield opened.log
        if not opened.log.tail.is_done:
            with self.work:
                self.work.notify_all()

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
        is_complete = self.searched.wait(PATIENCE)
        until, now = time.monotonic() + PATIENCE, time.time()
        runs = list(self.runs.values())
        if search:
            runs = [run for run in runs if search.casefold() in f"{run.name} {run.header.title}".casefold()]
        if state or key in ("best", "updates"):
            self._look(runs, until)
        if state:
            runs = [run for run in runs if run.state(now) == state]
        runs = _sorted(runs, key, sort.startswith("-"))
        shown = runs[offset : offset + limit]
        self._look(shown, until)
        problems = list(self.tree.problems)
        if not is_complete:
            problems.append("Still looking for runs in this folder.")
        if unknown := sum(not run.is_known for run in (runs if state or key in ("best", "updates") else shown)):
            problems.append(f"{unknown:,} runs have not been read yet, so the list is not final.")
        return {
            "folder": self.tree.name,
            "total": len(runs),
            "runs": [run.row(now) for run in shown],
            "problems": problems,
        }

    def look_at_all(self) -> list[Run]:
        """Return all runs, after a look at when their files were written, and at who still writes."""
        runs = list(self.runs.values())
        for run in runs:
            run.glance(self.tree)
        return runs

    def known(self) -> tuple[int, int]:
        """Return the number of runs, and of those whose logs have been read to their ends."""
        runs = list(self.runs.values())
        return len(runs), sum(run.is_known and run.is_exact for run in runs)

    def _look(self, runs: list[Run], until: float) -> None:
        for run in runs:
            if time.monotonic() >= until:
                break
            run.look(self.tree, until)
        with self.work:
            self.work.notify_all()

    def _search(self) -> float:
        """Search for runs once, and return the seconds that it took."""
        started, found = time.monotonic(), {}
        for place in self.tree.find():
            run = self.runs.get(place.id) or Run(place, self.tree.named(place))
            found[run.id] = run
            run.glance(self.tree)
            if not self.searched.is_set():
                self.runs[run.id] = run
            if self.ended.is_set():
                return 0.0
        self.runs = found
        self.searched.set()
        return time.monotonic() - started

    def _read_on(self) -> None:
        """Search and read until the library is closed; runs in a thread of its own."""
        due = 0.0
        while not self.ended.is_set():
            if time.monotonic() >= due:
                due = time.monotonic() + max(SEARCH, 9 * self._search())
            started = time.monotonic()
            if self._read_some():
                self.ended.wait(time.monotonic() - started)  # rest as long as it worked
                continue
            with self.work:
                self.work.wait(max(min(due - time.monotonic(), SEARCH), 0.01))

    def _read_some(self) -> bool:
        """Read a little of one log, those that pages look at first; return whether there was one."""
        with self.lock:
            waiting = [opened for opened in self.opened.values() if not opened.log.tail.is_done]
        if waiting:
            opened = waiting[-1]
            with opened.lock, suppress(FileError), self.tree.open(opened.run.place.parts) as folder:
                opened.log.advance(folder, time.monotonic() + TURN)
            return True
        for run in list(self.runs.values()):
            if not run.is_known or not run.is_exact:
                run.look(self.tree, time.monotonic() + TURN, far=True)
                return True
        return False


def _sorted(runs: list[Run], key: str, descending: bool) -> list[Run]:
    """Return runs in order; those without a value come last."""
    value = SORTS[key]
    known = [run for run in runs if value(run) is not None]
    known.sort(key=lambda run: run.name)
    known.sort(key=value, reverse=descending)
    return known + [run for run in runs if value(run) is None]
