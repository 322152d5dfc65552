"""Read and write the folder of a run.

config.json            the recipe
environment.json       the command, versions, device, threads, workers, git
reports.jsonl          one line per update, readable while the run goes on
episodes.jsonl         one line per finished episode
garden.jsonl           one line per update: the slots of every host before each decision
checkpoints/           the newest few training states, and best.safetensors
controller.safetensors the trained controller, once the run is done
exam.json              how the controller compares with simple policies on fresh hosts
exams.jsonl            every final exam, oldest first
choices.json           learning rates and plans chosen so far by unfinished exams
parts/                 results of the parts of unfinished exams that several processes hold
start.json             cost before the first update, of the warm start and of the run that this one continues, and the
                       mean J of hosts that never grow
lives.jsonl            some episodes of the exam, decision by decision
report.html            the report
.lock                  names the process that writes to the folder
"""

import json
import math
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

from esper import __version__
from esper.exam.records import ExamReport, Life
from esper.leyline.atomic import replace_file
from esper.leyline.errors import EsperError, FileError
from esper.leyline.json_records import from_json, jsonable
from esper.leyline.reports import LifeReport, UpdateReport
from esper.telemetry.lock import holder_of, locked, wait_until_free

VERSION = 1
"""Version of the folder's layout; docs/files.md lists what each version changed."""
BEST = "best.safetensors"
REPORTS, EPISODES, GARDEN = "reports.jsonl", "episodes.jsonl", "garden.jsonl"
EXAM, LIVES = "exam.json", "lives.jsonl"
EXAMS, START, CONTROLLER = "exams.jsonl", "start.json", "controller.safetensors"
CHOICES, LOCK = "choices.json", ".lock"
PARTS = "parts"
LOGS = (REPORTS, EPISODES, GARDEN)
"""Logs that are only appended to; a resumed run cuts them back to the state at its checkpoint."""
OLDEST_LOGS = (REPORTS, EPISODES)
"""Logs that every checkpoint knows the lengths of. Those of older versions know no others: they are then cut to 0."""


class RunFolder:
    """Folder of one run, through which all its files are read and written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any], environment: Mapping[str, Any]) -> "RunFolder":
        """Start a run folder with its recipe and environment.

        Raises:
            FileError: The folder holds a run already, or cannot be written.
        """
        if (path / "config.json").exists():
            raise FileError(f"{path} holds a run already: resume it, or choose another run_dir")
        folder = cls(path)
        try:
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
            folder._write_json("environment.json", environment)
            folder._write_json("config.json", {"version": VERSION, "recipe": config})
        except OSError as error:
            raise FileError(f"cannot start a run in {path}: {error.strerror or error}") from error
        return folder

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Open the folder of an existing run.

        Raises:
            FileError: The folder holds no run.
        """
        if not (path / "config.json").is_file():
            raise FileError(f"{path} holds no run: there is no config.json in it")
        return cls(path)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes from writing to the folder.

        The lock is freed when this process ends, even if it is killed; `esper.telemetry.lock` says where that fails.

        Raises:
            FileError: Another process writes to the folder; the message says which one.
        """
        with locked(self.path / LOCK, self.path):
            yield

    def writer(self) -> str | None:
        """Say which process is writing to the folder; None if no process is."""
        return holder_of(self.path / LOCK)

    def wait_until_free(self, seconds: float) -> None:
        """Wait at most so many seconds for a process that writes to the folder and is about to end."""
        wait_until_free(self.path / LOCK, seconds)

    def config(self) -> dict[str, Any]:
        """Return the recipe as plain data."""
        found = self._read_json("config.json")
        if not isinstance(found, dict) or not isinstance(found.get("version"), int) or "recipe" not in found:
            raise FileError(f"{self.path / 'config.json'} is damaged: it has no version and recipe")
        if found["version"] > VERSION:
            raise FileError(
                f"{self.path} was written by a newer Esper (version {found['version']}, this one reads up to {VERSION})"
            )
        return found["recipe"]

    def environment(self) -> dict[str, Any]:
        """Return the versions, device and command that the run was started with."""
        found = self._read_json("environment.json")
        if not isinstance(found, dict):
            raise FileError(f"{self.path / 'environment.json'} is damaged: it must hold an object")
        return found

    def append(self, report: UpdateReport) -> None:
        """Append an update to the logs, with the episodes that ended in it and the gardens of its rollout."""
        garden = [asdict(fleet) for fleet in report.garden]
        self._append(EPISODES, [asdict(life) for life in report.lives])
        self._append(GARDEN, [{"update": report.update, "fleets": garden}] if garden else [])
        self._append(REPORTS, [asdict(report.brief())])

    def _append(self, name: str, records: list[dict[str, Any]]) -> None:
        try:
            with open(self.path / name, "a", encoding="utf-8") as file:
                file.write("".join(json.dumps(jsonable(record)) + "\n" for record in records))
        except OSError as error:
            raise FileError(f"cannot write {self.path / name}: {error.strerror or error}") from error

    def reports(self) -> list[UpdateReport]:
        """Return the updates so far, without a last line that is still being written."""
        return self._records(REPORTS, UpdateReport)

    def episodes(self) -> list[LifeReport]:
        """Return the episodes that have ended so far."""
        return self._records(EPISODES, LifeReport)

    def _records(self, name: str, kind: type) -> list[Any]:
        path, found = self.path / name, []
        if not path.exists():
            return []
        try:
            lines = path.read_text(encoding="utf-8").split("\n")[:-1]
            for number, line in enumerate(lines, 1):
                found.append(from_json(kind, json.loads(line), f"line {number}", null=math.nan))
        except (json.JSONDecodeError, UnicodeDecodeError):
            raise FileError(f"{path} is damaged after line {len(found)}") from None
        except OSError as error:
            raise FileError(f"cannot read {path}: {error.strerror or error}") from None
        except EsperError as error:
            raise FileError(f"{path} is damaged: {error}") from None
        return found

    def offsets(self) -> dict[str, int]:
        """Return the length of each log in bytes."""
        return {name: self._length(name) for name in LOGS}

    def _length(self, name: str) -> int:
        return (self.path / name).stat().st_size if (self.path / name).exists() else 0

    def cut(self, offsets: Mapping[str, int]) -> None:
        """Cut the logs back to these lengths, dropping updates that will be made again; one without a length to 0."""
        offsets = dict.fromkeys(LOGS, 0) | dict(offsets)
        for name in LOGS:
            if self._length(name) < offsets[name]:
                raise FileError(f"{self.path / name} is shorter than its checkpoint says: lines are missing")
        for name in LOGS:
            if self._length(name) > offsets[name]:
                try:
                    os.truncate(self.path / name, offsets[name])
                except OSError as error:
                    raise FileError(f"cannot cut {self.path / name}: {error.strerror or error}") from None

    def checkpoint_path(self, update: int) -> Path:
        return self.path / "checkpoints" / f"{update:06d}.safetensors"

    def checkpoints(self) -> list[Path]:
        """Return the checkpoints of updates, oldest first; `best_path` is not among them."""
        return sorted((self.path / "checkpoints").glob("[0-9]" * 6 + ".safetensors"))

    def keep(self, count: int) -> None:
        """Remove all but the newest `count` checkpoints."""
        for old in self.checkpoints()[:-count]:
            with suppress(FileNotFoundError):
                old.unlink()

    @property
    def best_path(self) -> Path:
        return self.path / "checkpoints" / BEST

    @property
    def controller_path(self) -> Path:
        return self.path / CONTROLLER

    @property
    def done(self) -> bool:
        return self.controller_path.exists()

    def write_exam(self, exams: Sequence[ExamReport], lives: Sequence[Life]) -> None:
        """Write the exams and their recorded episodes; episodes first, so that an exam on disk always has them."""
        self.write(LIVES, "".join(json.dumps(jsonable(asdict(life))) + "\n" for life in lives))
        self._write_json(EXAM, {"version": VERSION, "exams": [jsonable(asdict(exam)) for exam in exams]})

    def keep_exam(self, exams: Sequence[ExamReport], lives: Sequence[Life], runs: Sequence[str]) -> None:
        """Store the exams so far. A final exam replaces any other, a preliminary one only preliminary ones."""
        if exams[-1].final:
            self.log_exam(exams[-1], runs)
        if exams[-1].final or not any(kept.final for kept in self.exams()):
            self.write_exam(exams, lives)

    def log_exam(self, exam: ExamReport, runs: Sequence[str]) -> None:
        """Append a final exam to the log of all final exams, without the scores of single hosts.

        One that stands there already, to the letter, is not appended again: storing it was interrupted.
        """
        arms = tuple(replace(arm, scores=(), objectives=()) for arm in exam.arms)
        record = {"runs": list(runs), "exam": asdict(replace(exam, arms=arms))}
        log = self.path / EXAMS
        known = log.read_text(encoding="utf-8").splitlines() if exam.held and log.exists() else []
        if json.dumps(jsonable(record)) not in known:
            self._append(EXAMS, [record])

    def choices(self, asked: str) -> "Choices":
        """Return the choices of an interrupted exam with this description, or an empty record."""
        return Choices(self, asked)

    def all_choices(self) -> dict[str, dict[str, Sequence[float]]]:
        """Return the choices of all unfinished exams, by description and purpose."""
        found = self._read_json(CHOICES) if (self.path / CHOICES).exists() else {}
        try:
            return from_json(dict[str, dict[str, tuple[float, ...]]], found, "choices")
        except EsperError as error:
            raise FileError(f"{self.path / CHOICES} is damaged, remove it: {error}") from None

    def write_choices(self, choices: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
        """Write the choices of all unfinished exams; without any, remove the file."""
        if choices:
            self._write_json(CHOICES, choices)
        else:
            (self.path / CHOICES).unlink(missing_ok=True)

    def write_start(self, lives: int, decisions: int, seconds: float, never: float | None = None) -> None:
        """Write the cost before the first update, and the mean J of hosts that never grow, if it was measured."""
        never = None if never is None or not math.isfinite(never) else never
        self._write_json(START, {"lives": lives, "decisions": decisions, "seconds": seconds, "never": never})

    def start(self) -> dict[str, Any]:
        """Return the number of episodes (`lives`), decisions and seconds before the first update, and `never`.

        `never` is the mean J of hosts that never grow; None if it was not measured.
        """
        if not (self.path / START).exists():
            return {"lives": 0, "decisions": 0, "seconds": 0.0, "never": None}
        found = self._read_json(START)
        try:
            lives, never = int(found.get("lives", 0)), found.get("never")  # absent from older files
            cost = {"lives": lives, "decisions": int(found["decisions"]), "seconds": float(found["seconds"])}
            return cost | {"never": None if never is None else float(never)}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise FileError(f"{self.path / START} is damaged: {error!r}") from None

    @property
    def identity(self) -> str:
        """Unique name of the run."""
        return f"{self.path.resolve().name}-{self.environment().get('id', '')}"

    def exams(self) -> list[ExamReport]:
        """Return one exam for every fleet; none before the run is done."""
        if not (self.path / EXAM).exists():
            return []
        found = self._read_json(EXAM)
        try:
            return [from_json(ExamReport, exam, f"exams[{i}]", null=math.nan) for i, exam in enumerate(found["exams"])]
        except (EsperError, KeyError, TypeError) as error:
            raise FileError(f"{self.path / EXAM} is damaged: {error}") from None

    def lives(self) -> list[Life]:
        """Return the recorded episodes of the exam."""
        return self._records(LIVES, Life)

    def write(self, name: str, text: str) -> None:
        """Replace a file; the old one stays until the new one is on disk."""
        replace_file(self.path / name, text)

    def _write_json(self, name: str, content: Mapping[str, Any]) -> None:
        self.write(name, json.dumps(content, indent=2))

    def _read_json(self, name: str) -> Any:
        try:
            return json.loads((self.path / name).read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise FileError(f"{self.path / name} is damaged: {error}") from None
        except OSError as error:
            raise FileError(f"cannot read {self.path / name}: {error.strerror or error}") from None


class Choices:
    """Record of what an exam has chosen, kept on disk so that an interrupted exam resumes."""

    def __init__(self, folder: RunFolder, asked: str) -> None:
        self.folder, self.asked, self.chosen = folder, asked, folder.all_choices().get(asked, {})

    def get(self, purpose: str, /) -> Sequence[float] | None:
        """Return the recorded choice for a purpose; None if there is none."""
        return self.chosen.get(purpose)

    def __setitem__(self, purpose: str, choice: Sequence[float], /) -> None:
        self.chosen[purpose] = choice
        self.folder.write_choices({**self.folder.all_choices(), self.asked: self.chosen})

    def forget(self) -> None:
        """Drop the record of this exam, which has ended."""
        kept = self.folder.all_choices()
        kept.pop(self.asked, None)
        self.folder.write_choices(kept)


def environment(device: str, threads: int, command: str = "", workers: int = 1) -> dict[str, Any]:
    """Describe the command, versions and device of a run, as far as its numbers may depend on them."""
    return {
        "id": uuid4().hex[:8],
        "command": command,
        "esper": __version__,
        "torch": version("torch"),
        "numpy": version("numpy"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": device,
        "threads": threads,
        "workers": workers,
        "git": _git(),
    }


def _git() -> str | None:
    """Return the commit of the working directory, with a + if files were changed; None outside a repository."""
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run(["git", "status", "--porcelain"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit.stdout.strip() + ("+" if changed.stdout.strip() else "")
