"""Make the JSON of one run for the page: what it is about, curves, gardens, episodes, exams, growth."""

import math
import shlex
import time
from array import array
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

from esper.dashboard.curves import Curves
from esper.dashboard.growth import summary
from esper.dashboard.growth_log import GrowthLog
from esper.dashboard.plain import count, inside, sentence, text, tidy
from esper.dashboard.sentences import run_sentence
from esper.dashboard.views import (
    decisions_in,
    exams_view,
    facts,
    garden_fleets,
    garden_frames,
    growth_facts,
    life_row,
    life_view,
)
from esper.exam.records import ExamReport
from esper.leyline.errors import EsperError, FileError
from esper.leyline.json_records import from_json
from esper.telemetry.folder import EXAM, GARDEN, LIVES, REPORTS
from esper.ui.folders import GROWTH_LOG, Folder, parsed, read_at
from esper.ui.library import Library
from esper.ui.runs import Run, Stamp
from esper.ui.tails import LONGEST, Log

MOST_EXAM_BYTES = 32 << 20
MOST_GARDEN_BYTES = 8 << 20
"""Bytes of a garden that are read for one answer."""
MOST_LIVES, MOST_UPDATES = 10_000, 1_000_000
"""Episodes and updates of a garden that are listed."""
MOST_EXAMS = 16
"""Runs whose exams are kept in memory."""


class Pages:
    """Answers about single runs of a library."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.known_exams: dict[str, tuple[Stamp | None, list[ExamReport]]] = {}

    def detail(self, run: Run) -> dict[str, Any]:
        """Return what a run is about, and what came out of it."""
        state, header, problem = run.state(time.time()), run.header, run.problem or run.header.problem
        found = {
            "id": run.id,
            "kind": run.kind,
            "name": run.name,
            "title": header.title,
            "state": state,
            "problem": problem,
            "reading": self.library.reading(run),
            "never": header.never,
            "resume": None,
            "environment": {},
        }
        if run.kind == "growth":
            with self.library.opened_log(run, GROWTH_LOG, _growth_log) as log:
                said = summary(log.made.story(header.config))
            told = {"facts": growth_facts(header.config), "config": tidy(inside(header.config, "options") or {})}
            return found | {"sentence": said, "views": ["growth"]} | told
        return found | self._detail_of_run(run, state)

    def _detail_of_run(self, run: Run, state: str) -> dict[str, Any]:
        header, summary = run.header, run.summary
        problem, environment, exams = run.problem or header.problem, {}, []
        try:
            exams = self._exams(run)
            with self.library.tree.open(run.place.parts) as folder:
                environment = folder.json("environment.json") or {}
        except FileError as error:
            problem = problem or sentence(error)
        environment = environment if isinstance(environment, Mapping) else {}
        said = run_sentence(
            state=state,
            updates=summary.updates,
            of=header.of,
            objective=summary.last,
            never=header.never,
            exams=exams,
        )
        path = self.library.tree.path_of(run.place)
        resume = shlex.join(["esper", "resume", path]) if state == "stopped" and path.isprintable() else None
        return {
            "sentence": said,
            "facts": facts(header.config, environment),
            "config": tidy(header.config),
            "environment": tidy(environment),
            "views": _views(run, exams),
            "problem": problem,
            "resume": resume,
        }

    def curves(self, run: Run, points: int) -> dict[str, Any]:
        """Return the curves of a run."""
        _require(run, "run")
        try:
            exams = self._exams(run)
        except FileError:
            exams = []  # the page of exams says what is wrong with them
        with self.library.opened_log(run, REPORTS, _curves_log) as log:
            reading = log.tail.reading
            note = f"Still reading the log: {reading:.0%}." if not log.tail.is_done else None
            return log.made.view(points, never=run.header.never, exams=exams, of=run.header.of, note=note)

    def _exams(self, run: Run) -> list[ExamReport]:
        with self.library.tree.open(run.place.parts) as folder:
            stat = folder.stat(EXAM)
            stamp = Stamp(stat.st_ino, stat.st_size, stat.st_mtime_ns) if stat else None
            known = self.known_exams.get(run.id)
            if known is None or known[0] != stamp:
                known = (stamp, _exams_in(folder))
                self.known_exams = dict([*self.known_exams.items(), (run.id, known)][-MOST_EXAMS:])
            return known[1]

    def exams(self, run: Run) -> dict[str, Any]:
        """Return the exams of a run."""
        _require(run, "run")
        return exams_view(self._exams(run))

    def lives(self, run: Run) -> dict[str, Any]:
        """Return the list of the recorded episodes of a run."""
        _require(run, "run")
        with self.library.opened_log(run, LIVES, _lives_log) as log:
            return {"lives": list(log.made.rows)}

    def life(self, run: Run, index: int) -> dict[str, Any] | None:
        """Return a recorded episode, decision by decision; None if there is none of this index."""
        _require(run, "run")
        with self.library.opened_log(run, LIVES, _lives_log) as log:
            rows, offsets = log.made.rows, log.made.offsets
            if not 0 <= index < len(rows):
                return None
            key = {name: rows[index][name] for name in ("task", "kind", "host")}
            equal = [row["index"] for row in rows if row["arm"] == "never" and key.items() <= row.items()]
            with self.library.tree.open(run.place.parts) as folder:
                life = _line_at(folder, LIVES, offsets[index])
                never = _line_at(folder, LIVES, offsets[equal[0]]) if equal else None
        return None if life is None else life_view(life, never)

    def garden(self, run: Run, start: int, number: int) -> dict[str, Any]:
        """Return some decisions of the garden: the state of every host, its score and op."""
        _require(run, "run")
        with self.library.opened_log(run, GARDEN, _garden_log) as log:
            made: GardenIndex = log.made
            found: dict[str, Any] = {"fleets": made.fleets, "frames": made.frames, "from": start, "shown": []}
            read = 0
            with self.library.tree.open(run.place.parts) as folder:
                at = start
                while at < min(start + number, made.frames) and read < MOST_GARDEN_BYTES:
                    line = bisect_right(made.ends, at)
                    begin = made.ends[line - 1] if line else 0
                    record = _line_at(folder, GARDEN, made.offsets[line])
                    until = min(start + number, made.ends[line])
                    found["shown"] += garden_frames(record, range(at - begin, until - begin))
                    read += made.offsets[line + 1] - made.offsets[line] if line + 1 < len(made.ends) else 0
                    at = until
        return found

    def growth(self, run: Run) -> dict[str, Any]:
        """Return what happened to a user's own model while it grew."""
        _require(run, "growth")
        with self.library.opened_log(run, GROWTH_LOG, _growth_log) as log:
            return log.made.view(run.header.config)


def _views(run: Run, exams: list[ExamReport]) -> list[str]:
    """Return the views that a run has something for."""
    stamps = {name: stamp for name, stamp in run.stamps.items() if stamp is not None and stamp.size}
    has = {"garden": GARDEN in stamps, "lives": LIVES in stamps, "frontier": bool(exams)}
    has = {"run": REPORTS in stamps or not any(has.values()), **has}
    return [name for name, is_there in has.items() if is_there]


def _require(run: Run, kind: str) -> None:
    if run.kind != kind:
        other = "growth log: ask for /growth" if kind == "run" else "run: ask for /curves"
        raise EsperError(f"{run.id} is a {other}")


def _exams_in(folder: Folder) -> list[ExamReport]:
    found = folder.json(EXAM, MOST_EXAM_BYTES)
    if found is None:
        return []
    exams = inside(found, "exams")
    if not isinstance(exams, list):
        raise FileError(f"{EXAM} is damaged: it has no list of exams")
    try:
        made = [from_json(ExamReport, exam, f"exams[{i}]", null=math.nan) for i, exam in enumerate(exams)]
    except (EsperError, RecursionError) as error:
        raise FileError(f"{EXAM} is damaged: {text(str(error), 300)}") from None
    if any(not exam.arms or exam.policy not in exam.by_name for exam in made):
        raise FileError(f"{EXAM} is damaged: an exam lacks the policy under test")
    return made


def _line_at(folder: Folder, name: str, at: int) -> Any:
    """Return what stands in the line of a log that begins at an offset; None if it is damaged or gone."""
    file = folder.open(name)
    if file is None:
        return None
    with file:
        block, most = b"", 1 << 16
        while True:
            block = read_at(file, at, most)
            end = block.find(b"\n")
            if end >= 0 or len(block) < most or most > LONGEST:
                break
            most *= 4
    try:
        return parsed(block[:end], name) if end >= 0 else None
    except FileError:
        return None


class LifeIndex:
    """The recorded episodes of an exam: a row for each, and where it stands in the file."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.offsets: list[int] = []

    def add(self, at: int, line: object) -> None:
        """Add an episode; what is none is left out."""
        if isinstance(line, Mapping) and isinstance(line.get("epochs"), list) and len(self.rows) < MOST_LIVES:
            self.rows.append(life_row(len(self.rows), line))
            self.offsets.append(at)


class GardenIndex:
    """Where the decisions of a garden stand in its file."""

    def __init__(self) -> None:
        self.offsets, self.ends = array("Q"), array("Q")
        """Of each line: its offset, and how many decisions there are up to its end."""
        self.fleets: list[dict[str, Any]] = []
        self.update = -1

    @property
    def frames(self) -> int:
        """The number of decisions."""
        return self.ends[-1] if self.ends else 0

    def add(self, at: int, line: object) -> None:
        """Add the line of an update; what is none is left out."""
        update, decisions = count(inside(line, "update")), decisions_in(line)
        if update is None or not decisions or update <= self.update or len(self.ends) >= MOST_UPDATES:
            return
        self.update = update
        self.offsets.append(at)
        self.ends.append(self.frames + decisions)
        self.fleets = garden_fleets(line)


def _curves_log() -> Log:
    return Log(REPORTS, Curves, lambda made, _, line: made.add(line))


def _lives_log() -> Log:
    return Log(LIVES, LifeIndex, lambda made, at, line: made.add(at, line))


def _garden_log() -> Log:
    return Log(GARDEN, GardenIndex, lambda made, at, line: made.add(at, line))


def _growth_log() -> Log:
    return Log(GROWTH_LOG, GrowthLog, lambda made, _, line: made.add(line))
