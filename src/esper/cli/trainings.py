"""`esper train RECIPE --trainings N`: independent trainings of one recipe, each in a run folder of its own."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from math import inf
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from esper.cli.commands import parse
from esper.cli.console import print_table
from esper.cli.many import Many
from esper.jobs import Job
from esper.leyline.errors import EsperError, FileError
from esper.recipes import Recipe
from esper.tasks import load_task
from esper.telemetry import RunFolder
from esper.telemetry.lock import locked

if TYPE_CHECKING:
    from esper.cli.train import Train

LAST = 10
"""Updates whose mean J says how good a training has become."""


def train(folder: str, arguments: Sequence[str]) -> None:
    """Train into a run folder with the arguments of `esper`, or resume the training that the folder holds."""
    begun = (Path(folder) / "config.json").exists()
    parse(["resume", folder] if begun else list(arguments)).run()


def train_all(asked: "Train", count: int, many: Many) -> None:
    """Train with the random seeds 1 to `count`, each into a folder of that name; resume those that were begun."""
    if count < 1:
        raise EsperError(f"trainings must be at least 1, not {count}")
    if asked.rng_seed is not None:
        raise EsperError("--trainings numbers the random seeds from 1: leave out --rng-seed")
    if asked.workers is not None:
        raise EsperError("--workers is for one training: leave it out, or --trainings")
    asked.on_ray.require_unused("is for one training: leave it out, or --trainings")
    if asked.logging.json or asked.logging.heads:
        raise EsperError("--json and --heads show one training: leave them out, or train one after the other")
    many.cluster.check()
    asked.logging.check()
    recipe = asked.asked()
    path = asked.run_dir or Path("runs") / f"{recipe.name}-{datetime.now():%Y%m%d-%H%M%S}"
    folders = {n: path / str(n) for n in range(1, count + 1)}
    for n, folder in folders.items():
        require_equal(RunFolder(folder), recipe.seeded(n))
    for fleet in (fleet for stage in recipe.stages for fleet in stage.fleets):
        load_task(fleet.task, **fleet.options)  # what cannot be loaded is refused before anything begins
    jobs = [training_job(asked, n, folder) for n, folder in folders.items()]
    with locked(path / ".lock", path):
        done = list(many.done(jobs, recipe.engine.device))
    if len(done) == count:
        show_trainings([RunFolder(folder) for folder in folders.values()])
    else:
        print(f"stopped: the same command with --run-dir {path} goes on")


def require_equal(folder: RunFolder, asked: Recipe) -> None:
    """Refuse to go on with a folder that was begun with another recipe."""
    if (folder.path / "config.json").exists() and Recipe.revived(folder.config()) != asked:
        raise FileError(f"{folder.path} was begun with other flags: give the same ones, or choose another --run-dir")


def training_job(asked: "Train", n: int, folder: Path) -> Job:
    """Return the job of the n-th training."""
    one = replace(asked, rng_seed=n)
    log = ("--log", *asked.logging.log) if asked.logging.log else ()
    return Job(
        name=f"training {n}",
        function="esper.cli.trainings:train",
        given={"folder": str(folder), "arguments": [*shlex.split(one.command())[1:], *log, "--run-dir", str(folder)]},
        done=RunFolder(folder).controller_path,
        log=folder.with_name(f"{n}.log"),
    )


def show_trainings(folders: Sequence[RunFolder]) -> None:
    """Print how good each training has become, the best first."""
    rows = []
    for folder in folders:
        found = [report.objective for report in folder.reports() if report.objective is not None]
        rows.append((mean(found[-LAST:]) if found else -inf, folder.path, len(folder.reports())))
    rows.sort(key=lambda row: -row[0])
    shown = [(path.name, str(made), f"{j:.4f}" if j > -inf else "-") for j, path, made in rows]
    print_table(("training", "updates", f"J of the last {LAST}"), shown)
    print(f"best: {rows[0][1]}")
