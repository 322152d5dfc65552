"""Put a controller into the package: of several trainings the one whose J over its last ten updates was best, with its
recipe, the command that trained it, and the exams of all of them. All trainings are kept beside this script, in the
folder of their recipe, so that their exams can be held again without training anew, and so is the log of all final
exams that were ever sat.

python benchmark/ship.py runs/f1 runs/f2 runs/f3 runs/f4 runs/f5 --examined runs/exams/mnist1d-8 runs/exams/digits-4
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Annotated

import tyro

from esper.leyline.errors import EsperError
from esper.leyline.reports import ExamReport
from esper.tamiyo.controller_files import SHIPPED, load_controller
from esper.telemetry.folder import CONTROLLER, EXAMS, REPORTS, START, RunFolder

KEPT = Path(__file__).parent
FILES = (REPORTS, START, CONTROLLER)
PRIVATE = ("id", "platform")
"""What is nobody's business of where it was trained."""


@dataclass(frozen=True, kw_only=True)
class Ship:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders of trainings that are done."""
    examined: tuple[Path, ...] = ()
    """Folders that hold exams of all of them, in the order of their settings; if there are none yet, nothing goes into
    the package."""

    def run(self) -> None:
        folders = [RunFolder.open(path) for path in self.runs]
        found = [mean(r.objective for r in folder.reports()[-10:] if r.objective is not None) for folder in folders]
        exams = [exam for path in self.examined for exam in self.of_these(RunFolder.open(path))]
        for folder in folders:
            load_controller(folder.controller_path)  # refuses what this Esper cannot use
            copied(folder, KEPT / folder.config()["name"] / folder.path.name)
        best = folders[found.index(max(found))]
        for folder, j in zip(folders, found, strict=True):
            print(f"{folder.path}: J {j:.4f}{', shipped' if exams and folder is best else ''}")
        if exams:
            copied(best, SHIPPED).write_exam(exams, [])
            remember([line for path in self.examined for line in (path / EXAMS).read_text().splitlines()])
            size = sum(path.stat().st_size for path in SHIPPED.iterdir())
            print(f"{len(exams)} exams, {size:,} bytes")

    def of_these(self, examined: RunFolder) -> list[ExamReport]:
        """Its exams, if these runs sat them, and no others."""
        last = json.loads((examined.path / EXAMS).read_text().splitlines()[-1])
        if sorted(last["runs"]) != sorted(map(str, self.runs)):
            raise EsperError(f"{examined.path} holds an exam of {', '.join(last['runs'])}: name these as runs")
        return examined.exams()


def remember(held: list[str]) -> None:
    """Final exams are never forgotten, those that are held again neither."""
    known = (KEPT / EXAMS).read_text().splitlines() if (KEPT / EXAMS).exists() else []
    (KEPT / EXAMS).write_text("".join(f"{line}\n" for line in dict.fromkeys([*known, *held])))


def copied(folder: RunFolder, path: Path) -> RunFolder:
    """A run in another place, without checkpoints and lives."""
    if folder.path.resolve() == path.resolve():
        return folder
    shutil.rmtree(path, ignore_errors=True)
    told = {name: value for name, value in folder.environment().items() if name not in PRIVATE}
    copy = RunFolder.create(path, folder.config(), told)
    for name in FILES:
        if (folder.path / name).exists():
            shutil.copyfile(folder.path / name, path / name)
    return copy


if __name__ == "__main__":
    tyro.cli(Ship).run()
