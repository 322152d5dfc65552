"""A run on disk: what was asked, where it ran, every report, checkpoints, and the controller that came out of it.

config.json            the recipe
environment.json       the command, versions, device, threads, git
reports.jsonl          one update on each line, readable while it grows
episodes.jsonl         one line for every host whose life has ended
checkpoints/           everything that the next update depends on: the newest few, and best.safetensors
controller.safetensors the controller, once the run is done
exam.json              how it compares with simple policies on fresh hosts
exams.jsonl            every final exam that was ever held, the last one at the end
choices.json           learning rates and plans that exams which have not ended have chosen so far
start.json             what was done before the first update: a head start, and the run that this one goes on from
lives.jsonl            what it did with some of them, decision by decision
report.html, pictures/ all of this, to look at
.lock                  held by whoever writes to the folder
"""

import json
import math
import os
import platform
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

from esper import __version__
from esper.leyline.errors import EsperError, FileError
from esper.leyline.json_records import from_json, jsonable
from esper.leyline.reports import ExamReport, Life, LifeReport, UpdateReport
from esper.telemetry.lock import holder_of, locked

VERSION = 1
"""Of the folder's layout; docs/files.md lists what each version changed."""
BEST = "best.safetensors"
REPORTS, EPISODES, EXAM, LIVES = "reports.jsonl", "episodes.jsonl", "exam.json", "lives.jsonl"
EXAMS, START, CONTROLLER = "exams.jsonl", "start.json", "controller.safetensors"
CHOICES, LOCK = "choices.json", ".lock"
LOGS = (REPORTS, EPISODES)
"""What only grows; a resumed run cuts it back to where its checkpoint was written."""


class RunFolder:
    """The files of one run. All writing to it goes through here."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any], environment: Mapping[str, Any]) -> "RunFolder":
        """Begin a folder; one that holds a run already is left alone."""
        if (path / "config.json").exists():
            raise FileError(f"{path} holds a run already: resume it, or choose another run_dir")
        folder = cls(path)
        try:
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
            folder._write_json("environment.json", environment)
            folder._write_json("config.json", {"version": VERSION, "recipe": config})
        except OSError as error:
            raise FileError(f"cannot begin a run in {path}: {error.strerror or error}") from error
        return folder

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
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

    def config(self) -> dict[str, Any]:
        """The recipe, as it was asked for."""
        found = self._read_json("config.json")
        if not isinstance(found, dict) or not isinstance(found.get("version"), int) or "recipe" not in found:
            raise FileError(f"{self.path / 'config.json'} is damaged: it has no version and recipe")
        if found["version"] > VERSION:
            raise FileError(
                f"{self.path} was written by a newer Esper (version {found['version']}, this one reads up to {VERSION})"
            )
        return found["recipe"]

    def environment(self) -> dict[str, Any]:
        """Where it was begun."""
        found = self._read_json("environment.json")
        if not isinstance(found, dict):
            raise FileError(f"{self.path / 'environment.json'} is damaged: it must hold an object")
        return found

    def append(self, report: UpdateReport) -> None:
        """One more update, and the lives that ended in it."""
        self._append(EPISODES, [asdict(life) for life in report.lives])
        self._append(REPORTS, [asdict(replace(report, lives=()))])

    def _append(self, name: str, records: list[dict[str, Any]]) -> None:
        try:
            with open(self.path / name, "a", encoding="utf-8") as file:
                file.write("".join(json.dumps(jsonable(record)) + "\n" for record in records))
        except OSError as error:
            raise FileError(f"cannot write {self.path / name}: {error.strerror or error}") from error

    def reports(self) -> list[UpdateReport]:
        """The updates so far. A last line that is still being written is left out."""
        return self._records(REPORTS, UpdateReport)

    def episodes(self) -> list[LifeReport]:
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
        """How long each log is, in bytes."""
        return {name: self._length(name) for name in LOGS}

    def _length(self, name: str) -> int:
        return (self.path / name).stat().st_size if (self.path / name).exists() else 0

    def cut(self, offsets: Mapping[str, int]) -> None:
        """Forget what logs say of updates that will be made again."""
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
        """The oldest first; the best one is not among them."""
        return sorted((self.path / "checkpoints").glob("[0-9]" * 6 + ".safetensors"))

    def keep(self, count: int) -> None:
        """Remove all but the newest checkpoints."""
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
        """How the controller does on fresh hosts. Lives first: where there is an exam, there are its lives."""
        self.write(LIVES, "".join(json.dumps(jsonable(asdict(life))) + "\n" for life in lives))
        self._write_json(EXAM, {"version": VERSION, "exams": [jsonable(asdict(exam)) for exam in exams]})

    def log_exam(self, exam: ExamReport, runs: Sequence[str]) -> None:
        """Final exams are never forgotten. Who took part and what came out; not what became of every host."""
        arms = tuple(replace(arm, scores=(), objectives=()) for arm in exam.arms)
        self._append(EXAMS, [{"runs": list(runs), "exam": asdict(replace(exam, arms=arms))}])

    def choices(self, asked: str) -> "Choices":
        """What an exam has chosen that was asked the same and was interrupted."""
        return Choices(self, asked)

    def all_choices(self) -> dict[str, dict[str, Sequence[float]]]:
        """Of every exam that has not ended, by what was asked and by purpose."""
        found = self._read_json(CHOICES) if (self.path / CHOICES).exists() else {}
        try:
            return from_json(dict[str, dict[str, tuple[float, ...]]], found, "choices")
        except EsperError as error:
            raise FileError(f"{self.path / CHOICES} is damaged, remove it: {error}") from None

    def write_choices(self, choices: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
        """With those of nobody, there is no file."""
        if choices:
            self._write_json(CHOICES, choices)
        else:
            (self.path / CHOICES).unlink(missing_ok=True)

    def write_start(self, lives: int, decisions: int, seconds: float) -> None:
        """What was done before the first update: the head start, and all of the run that this one goes on from."""
        self._write_json(START, {"lives": lives, "decisions": decisions, "seconds": seconds})

    def start(self) -> dict[str, Any]:
        """Lives, decisions and seconds before the first update; none if there was nothing."""
        if not (self.path / START).exists():
            return {"lives": 0, "decisions": 0, "seconds": 0.0}
        found = self._read_json(START)
        try:
            lives = int(found.get("lives", 0))  # the first runs did not count them
            return {"lives": lives, "decisions": int(found["decisions"]), "seconds": float(found["seconds"])}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise FileError(f"{self.path / START} is damaged: {error!r}") from None

    @property
    def identity(self) -> str:
        """A name that no other run has."""
        return f"{self.path.resolve().name}-{self.environment().get('id', '')}"

    def exams(self) -> list[ExamReport]:
        """One for every fleet; none before the run is done."""
        if not (self.path / EXAM).exists():
            return []
        found = self._read_json(EXAM)
        try:
            return [from_json(ExamReport, exam, f"exams[{i}]", null=math.nan) for i, exam in enumerate(found["exams"])]
        except (EsperError, KeyError, TypeError) as error:
            raise FileError(f"{self.path / EXAM} is damaged: {error}") from None

    def lives(self) -> list[Life]:
        return self._records(LIVES, Life)

    def write(self, name: str, text: str) -> None:
        """A whole file: the old one stays until the new one is on the disk."""
        partial = self.path / f".{name}.partial"
        try:
            with open(partial, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, self.path / name)
        except OSError as error:
            with suppress(OSError):
                partial.unlink()
            raise FileError(f"cannot write {self.path / name}: {error.strerror or error}") from error

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
    """What an exam chooses, on the disk at once."""

    def __init__(self, folder: RunFolder, asked: str) -> None:
        self.folder, self.asked, self.chosen = folder, asked, folder.all_choices().get(asked, {})

    def once(self, purpose: str, choose: Callable[[], list[float]]) -> list[float]:
        """As it was chosen, or is now."""
        if purpose not in self.chosen:
            self.chosen[purpose] = choose()
            self.folder.write_choices({**self.folder.all_choices(), self.asked: self.chosen})
        return list(self.chosen[purpose])

    def forget(self) -> None:
        """The exam has ended; others may not have."""
        kept = self.folder.all_choices()
        kept.pop(self.asked, None)
        self.folder.write_choices(kept)


def environment(device: str, threads: int, command: str = "") -> dict[str, Any]:
    """What began a run and where it happens, as far as its numbers may depend on it."""
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
        "git": _git(),
    }


def _git() -> str | None:
    """The commit of the working directory, if it is one; with a + if files were changed."""
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run(["git", "status", "--porcelain"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit.stdout.strip() + ("+" if changed.stdout.strip() else "")
