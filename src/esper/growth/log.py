"""Write down what happens to a growing model, in a folder that can be read while it trains.

growth.json   what is grown: version, name, options, parameters, blocks, budget
growth.jsonl  one line per measurement {"point": {...}} or event {"event": {...}}, oldest first
"""

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esper.growth.distributed import is_first
from esper.growth.records import Event, Measurement
from esper.growth.reports import options_of
from esper.leyline.atomic import replace_file
from esper.leyline.errors import FileError
from esper.leyline.json_records import jsonable

if TYPE_CHECKING:
    from esper.growth.growth import Growth

VERSION = 1
HEADER, LINES, RUN = "growth.json", "growth.jsonl", "config.json"
"""The files of a log, and the file by which a run of `esper train` is known."""


class Recorder:
    """Writes the events and measurements of one growth; without a folder, nothing.

    Trouble with the disk never ends the training: there is one warning, and the log ends.
    """

    def __init__(self, folder: Path | None = None, kept: Sequence[str] = (), events: int = 0, points: int = 0) -> None:
        self.folder = folder
        self.kept = tuple(kept)
        """Lines of the growth before it was resumed."""
        self.events, self.points = events, points
        """Events and measurements that are in the file."""
        self.header: dict[str, Any] = {}

    def open(self, growth: "Growth") -> None:
        """Make the folder, write what is known so far, and follow the growth from now on.

        Raises:
            FileError: If that cannot be written.
        """
        if self.folder is not None:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                replace_file(self.folder / LINES, "".join(self.kept))
                self._write(self.folder, growth)
            except OSError as error:
                raise FileError(f"log cannot be written: {self.folder}: {error.strerror or error}") from error
        growth.recorder = self

    def record(self, growth: "Growth") -> None:
        """Write what has happened since the last call."""
        if self.folder is None:
            return
        try:
            self._write(self.folder, growth)
        except (OSError, FileError) as error:
            folder, self.folder = self.folder, None
            warnings.warn(f"the log {folder} ends here, and training goes on without it: {error}", stacklevel=2)

    def _write(self, folder: Path, growth: "Growth") -> None:
        header = jsonable(header_of(growth))
        if header != self.header:
            replace_file(folder / HEADER, json.dumps(header, indent=1))
            self.header = header
        events, points = growth.log[self.events :], growth.history[self.points :]
        if not growth.step_cost and not any(event.kind == "finish" for event in events):
            return  # which chains there are is known from the first training step on
        new = sorted([*events, *points], key=lambda x: x.step)
        if new:
            _append(folder / LINES, "".join(_line(x, growth) for x in new))
        self.events, self.points = self.events + len(events), self.points + len(points)


def new_log(log: Any) -> Recorder:
    """Check the folder of a new log, and write nothing yet. Only the first of several processes writes.

    Raises:
        FileError: If the folder cannot hold a new log.
    """
    if log is None or not is_first():
        return Recorder()
    folder = _folder(log)
    if (folder / HEADER).exists() or (folder / LINES).exists():
        raise FileError(
            f"log={str(folder)!r} holds the log of another growth: choose another folder, or go on with that growth by"
            " esper.resume(..., log=...)"
        )
    return Recorder(folder)


def resumed_log(log: Any, saved: Mapping[str, Any]) -> Recorder:
    """Check the folder of a growth that is resumed, and write nothing yet. Lines from after the save will be cut.

    Args:
        log: The folder. It may hold the log of this growth, or none.
        saved: The description of the saved growth.

    Raises:
        FileError: If the folder holds something else.
    """
    if log is None or not is_first():
        return Recorder()
    folder = _folder(log)
    other = FileError(f"log={str(folder)!r} holds the log of another growth: choose another folder")
    options = _header_in(folder).get("options", {})
    if any(options.get(name, value) != value for name, value in jsonable(saved["config"]).items()):
        raise other
    known = {"event": jsonable(saved["log"]), "point": jsonable(saved["history"])}
    kept: dict[str, int] = dict.fromkeys(known, 0)
    lines = []
    for number, line in enumerate(_lines(folder / LINES), 1):
        if all(kept[kind] == len(known[kind]) for kind in known):
            break
        kind, found = _parsed(line, f"line {number} of {folder / LINES}")
        if kept[kind] == len(known[kind]):
            continue
        if found != known[kind][kept[kind]]:
            raise other
        kept[kind] += 1
        lines.append(line + "\n")
    return Recorder(folder, lines, kept["event"], kept["point"])


def _folder(log: Any) -> Path:
    """Return the folder of a log, and refuse one that is something else."""
    if not isinstance(log, str | os.PathLike) or not str(log):
        raise FileError(f"log must be the name of a folder, not {log!r}")
    folder = Path(log)
    if folder.exists() and not folder.is_dir():
        raise FileError(f"log={str(folder)!r} is a file: choose a folder")
    if (folder / RUN).exists():
        raise FileError(f"log={str(folder)!r} is the folder of a run or of a model: choose {str(folder / 'growth')!r}")
    header = _header_in(folder)
    if "config" in header:
        raise FileError(f"log={str(folder)!r} holds a saved growth: choose another folder")
    if header.get("version", VERSION) != VERSION:
        raise FileError(f"log={str(folder)!r} was written by a newer Esper: upgrade Esper, or choose another folder")
    return folder


def _header_in(folder: Path) -> dict[str, Any]:
    """Return the header of a folder; nothing if there is none, or none that can be read."""
    try:
        found = json.loads((folder / HEADER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _lines(path: Path) -> list[str]:
    """Return the lines of a log, without a last one that was not written to its end."""
    try:
        return path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"log cannot be continued, {path} is not readable: {error}") from None


def _parsed(line: str, where: str) -> tuple[str, dict[str, Any]]:
    """Return the kind and the record of a line."""
    try:
        ((kind, found),) = json.loads(line).items()
        if kind == "event":
            del found["blocks"]
        return {"event": kind, "point": kind}[kind], dict(found)
    except (ValueError, AttributeError, KeyError, TypeError):
        raise FileError(f"log cannot be continued, {where} is damaged: choose another folder") from None


def header_of(growth: "Growth") -> dict[str, Any]:
    """Return what a log says about a growth as a whole."""
    return {
        "version": VERSION,
        "name": type(growth.model).__name__,
        "options": options_of(growth),
        "parameters": growth.num_initial,
        "blocks": sum(growth.started_with[name] for name in growth.depth),
        "budget": growth.budget,
    }


def _line(x: Event | Measurement, growth: "Growth") -> str:
    plain = asdict(x)
    if isinstance(x, Event):
        plain["blocks"] = sum(x.depth[name] for name in growth.depth)
    return json.dumps({"event" if isinstance(x, Event) else "point": jsonable(plain)}) + "\n"


def _append(path: Path, text: str) -> None:
    """Append to a file, or leave it as it is: half a line would be damage."""
    length = path.stat().st_size if path.exists() else 0
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        with suppress(OSError):
            os.truncate(path, length)
        raise
