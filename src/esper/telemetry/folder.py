"""A run on disk: what was asked, where it ran, every report, checkpoints, and the controller that came out of it.

config.json            the recipe
environment.json       versions, device, threads, git
reports.jsonl          one update on each line, readable while it grows
checkpoints/           everything that the next update depends on: the newest few, and best.safetensors
controller.safetensors the controller, once the run is done
"""

import json
import math
import os
import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from esper.leyline.errors import FileError
from esper.leyline.reports import UpdateReport

VERSION = 1
"""Of the folder's layout; docs/files.md lists what each version changed."""
BEST = "best.safetensors"


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
        return self._read_json("environment.json")

    def append(self, report: UpdateReport) -> None:
        """One more line, on the disk before this returns to whoever may be killed next."""
        line = json.dumps(_finite(asdict(report))) + "\n"
        try:
            with open(self.reports_path, "a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            raise FileError(f"cannot write {self.reports_path}: {error.strerror or error}") from error

    @property
    def reports_path(self) -> Path:
        return self.path / "reports.jsonl"

    def reports(self) -> list[dict[str, Any]]:
        """Every update so far. A last line that is still being written is left out."""
        if not self.reports_path.exists():
            return []
        lines = self.reports_path.read_text(encoding="utf-8").split("\n")
        found = []
        for number, line in enumerate(lines[:-1]):
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                raise FileError(f"{self.reports_path} is damaged in line {number + 1}") from None
        return found

    def offset(self) -> int:
        """How long the reports are, in bytes."""
        return self.reports_path.stat().st_size if self.reports_path.exists() else 0

    def cut(self, offset: int) -> None:
        """Forget reports of updates that will be made again."""
        if self.offset() < offset:
            raise FileError(f"{self.reports_path} is shorter than its checkpoint says: lines are missing")
        if self.reports_path.exists():
            os.truncate(self.reports_path, offset)

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
        return self.path / "controller.safetensors"

    def _write_json(self, name: str, content: Mapping[str, Any]) -> None:
        partial = self.path / f".{name}.partial"
        with open(partial, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, self.path / name)

    def _read_json(self, name: str) -> Any:
        try:
            return json.loads((self.path / name).read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise FileError(f"{self.path / name} is damaged: {error}") from None
        except OSError as error:
            raise FileError(f"cannot read {self.path / name}: {error.strerror or error}") from None


def environment(device: str, threads: int) -> dict[str, Any]:
    """Where a run happens, as far as its numbers may depend on it."""
    return {
        "esper": version("esper"),
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


def _finite(x: Any) -> Any:
    """JSON knows neither NaN nor infinity: they become null."""
    if isinstance(x, dict):
        return {name: _finite(value) for name, value in x.items()}
    if isinstance(x, list | tuple):
        return [_finite(value) for value in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x
