"""Put a trained controller into the package: of several trainings the one with the best mean J over its last ten
updates, with its config, the command that trained it, and the final exams of all of them.

All trainings are kept in benchmark/controllers without their configs (`python benchmark/unpack.py` makes run folders of
them again), and all final exams that were ever held in benchmark/exams.jsonl.

python benchmark/ship.py runs/general/? --examined runs/exams/mnist1d-8 runs/exams/digits-4
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import tyro

from esper.cli.exam import cost
from esper.exam.records import ExamReport
from esper.leyline.errors import EsperError
from esper.recipes import Recipe
from esper.recipes.config import WarmStartConfig
from esper.tamiyo.controller_files import SHIPPED, load_controller
from esper.telemetry.folder import CONTROLLER, EXAM, EXAMS, REPORTS, START, RunFolder

BENCHMARK = Path(__file__).parent
FILES = (REPORTS, START, CONTROLLER)
PRIVATE = ("id", "platform")
"""Fields of environment.json that are not published."""


@dataclass(frozen=True, kw_only=True)
class Ship:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders of trainings that are done."""
    examined: tuple[Path, ...] = ()
    """Folders with final exams of all these trainings, one for each setting; none: nothing goes into the package."""

    def run(self) -> None:
        folders = [RunFolder.open(path) for path in self.runs]
        objectives = [
            mean(r.objective for r in folder.reports()[-10:] if r.objective is not None) for folder in folders
        ]
        exams = [exam for path in self.examined for exam in self.exams_of(RunFolder.open(path))]
        for folder in folders:
            load_controller(folder.controller_path)  # refuses what this version cannot use
            keep(folder, BENCHMARK / "controllers" / folder.path.name)
        best = folders[objectives.index(max(objectives))]
        for folder, j in zip(folders, objectives, strict=True):
            print(f"{folder.path}: J {j:.4f}{', shipped' if exams and folder is best else ''}")
        if exams:
            ship(best, exams)
            remember([line for path in self.examined for line in (path / EXAMS).read_text().splitlines()])
            print(f"{len(exams)} exams, {sum(path.stat().st_size for path in SHIPPED.iterdir()):,} bytes")

    def exams_of(self, examined: RunFolder) -> list[ExamReport]:
        """Return the exams of a folder; those of other trainings are refused."""
        last = json.loads((examined.path / EXAMS).read_text().splitlines()[-1])
        if sorted(last["runs"]) != sorted(map(str, self.runs)):
            raise EsperError(f"{examined.path} holds an exam of {', '.join(last['runs'])}: name these as runs")
        return examined.exams()


def ship(folder: RunFolder, exams: Sequence[ExamReport]) -> None:
    """Write what `esper exam` and `--warm-start.run shipped` need into the package."""
    recipe, spent = Recipe.revived(folder.config()), cost([folder])
    known = recipe.learned_from[len(recipe.fleets) :]  # of earlier stages and runs, where the last stage lacks them
    config = replace(recipe, pretrain=(), known=known, warm_start=WarmStartConfig())
    shutil.rmtree(SHIPPED, ignore_errors=True)
    shipped = RunFolder.create(SHIPPED, config.plain(), public(folder))
    (SHIPPED / "checkpoints").rmdir()
    shutil.copyfile(folder.controller_path, shipped.controller_path)
    shipped.write_start(spent.lives, spent.decisions, spent.seconds)
    shipped.write_exam(exams, [])
    (SHIPPED / "lives.jsonl").unlink()
    for name in ("config.json", EXAM):
        (SHIPPED / name).write_text(json.dumps(json.loads((SHIPPED / name).read_text())) + "\n")


def keep(folder: RunFolder, path: Path) -> None:
    """Copy a training without its config, checkpoints and episodes."""
    if folder.path.resolve() == path.resolve():
        return
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    (path / "environment.json").write_text(json.dumps(public(folder), indent=2) + "\n")
    for name in FILES:
        if (folder.path / name).exists():
            shutil.copyfile(folder.path / name, path / name)


def public(folder: RunFolder) -> dict[str, Any]:
    return {name: value for name, value in folder.environment().items() if name not in PRIVATE}


def remember(held: list[str]) -> None:
    """Add exams to the log of all final exams; none is ever removed from it."""
    known = (BENCHMARK / EXAMS).read_text().splitlines() if (BENCHMARK / EXAMS).exists() else []
    (BENCHMARK / EXAMS).write_text("".join(f"{line}\n" for line in dict.fromkeys([*known, *held])))


if __name__ == "__main__":
    tyro.cli(Ship).run()
