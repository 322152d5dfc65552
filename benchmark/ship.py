"""Put a controller into the package: of several trainings the one whose J over its last ten updates was best, with its
recipe, the command that trained it, and the exams of all of them.

python benchmark/ship.py runs/g1 runs/g2 runs/g3 runs/g4 runs/g5
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Annotated

import tyro

from esper.tamiyo.files import SHIPPED, load_controller
from esper.telemetry.folder import CONTROLLER, REPORTS, START, RunFolder

FILES = (REPORTS, START, CONTROLLER)
PRIVATE = ("id", "platform")
"""What is nobody's business of where it was trained."""


@dataclass(frozen=True, kw_only=True)
class Ship:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders of trainings that are done."""
    examined: tuple[Path, ...] = ()
    """Folders that hold exams of all of them, in the order of their settings; the first run's, if none are given."""

    def run(self) -> None:
        folders = [RunFolder.open(path) for path in self.runs]
        found = [mean(r.objective for r in folder.reports()[-10:] if r.objective is not None) for folder in folders]
        best = folders[found.index(max(found))]
        load_controller(best.controller_path)  # refuses what this Esper cannot use
        exams = [exam for path in self.examined or self.runs[:1] for exam in RunFolder.open(path).exams()]
        shutil.rmtree(SHIPPED, ignore_errors=True)
        told = {name: value for name, value in best.environment().items() if name not in PRIVATE}
        shipped = RunFolder.create(SHIPPED, best.config(), told)
        for path in (best.path / name for name in FILES):
            if path.exists():
                shutil.copyfile(path, SHIPPED / path.name)
        shipped.write_exam(exams, [])
        size = sum(path.stat().st_size for path in SHIPPED.iterdir())
        for folder, j in zip(folders, found, strict=True):
            print(f"{folder.path}: J {j:.4f}{', shipped' if folder is best else ''}")
        print(f"{len(exams)} exams, {size:,} bytes")


if __name__ == "__main__":
    tyro.cli(Ship).run()
