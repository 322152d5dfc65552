"""`esper tune`: search for the best values of a recipe's fields."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import OmitArgPrefixes

from esper.cli.console import print_table
from esper.cli.flags import optional
from esper.cli.many import Many
from esper.cli.train import Train
from esper.cli.trials import WORST, Search, parsed, rungs_of, trials_of
from esper.leyline.atomic import replace_file
from esper.leyline.errors import EsperError, FileError
from esper.leyline.json_records import jsonable
from esper.recipes import Recipe
from esper.tasks import load_task
from esper.telemetry.lock import locked

RESULTS = "tune.json"
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Tune:
    """Search for the best values of fields by successive halving.

    Every combination of values is a trial: a training in a run folder of its own, without an exam. After each rung, a
    number of updates, only the best third of the trials goes on, by J since the rung before. Locally all trials of a
    rung are compared, which is deterministic; with --ray each is compared with those that reached the rung before it
    (ASHA). Every field of the recipe is a flag, such as `--learn.updates 10`.
    """

    recipe: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")]
    """Name of a recipe; `esper recipes` lists them."""
    over: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, optional("FIELD=VALUE,VALUE,...", "none")] = ()
    """A field and the values to try, such as learn.ppo.lr=1e-4,3e-4,1e-3; may be given several times."""
    first: Annotated[int | None, optional("N", "all updates divided by FACTOR squared")] = None
    """Updates of every trial until the first comparison."""
    factor: int = 3
    """One in so many trials goes on after each comparison, for so many times the updates."""
    run_dir: Annotated[Path | None, optional("FOLDER", "a new folder under runs/")] = None
    """Folder of the search; each trial has a run folder in it."""
    rng_seed: Annotated[int | None, optional("N", "the recipe's")] = None
    """Random seed of all trials."""
    device: Annotated[str | None, optional("DEVICE", "the recipe's")] = None
    """Device to run on, with its usual precision: cpu (fp32) or cuda (bf16)."""
    many: OmitArgPrefixes[Many] = Many()
    changes: tyro.conf.Suppress[tuple[str, ...]] = field(default=())
    """Flags of the recipe."""

    def run(self) -> None:
        asked = self.asked()
        path = self.run_dir or Path("runs") / f"tune-{asked.name}-{datetime.now():%Y%m%d-%H%M%S}"
        search = self.search(asked, path)
        self.many.cluster.check()
        self.require_same(path, asked, search)
        for fleet in (fleet for trial in search.trials for fleet in trial.recipe.fleets):
            load_task(fleet.task, **fleet.options)
        with locked(path / ".lock", path):
            self.keep(path, asked, search)
            has_ended = self.searched(search, path, asked.engine.device)
            self.keep(path, asked, search)
        show(search)
        print(f"{'results' if has_ended else 'stopped: the same command goes on; results so far'}: {path / RESULTS}")

    def asked(self) -> Recipe:
        """Return the recipe with its flags applied, and without an exam at the end."""
        train = Train(recipe=self.recipe, rng_seed=self.rng_seed, device=self.device, changes=self.changes)
        return replace(train.asked(), exam=0)

    def search(self, asked: Recipe, path: Path) -> Search:
        """Return the search; all trials have been checked.

        Raises:
            EsperError: A field, a value, or the number of updates until the first comparison is not possible.
        """
        if not self.over:
            raise EsperError("no field to search over: add --over, such as --over learn.ppo.lr=1e-4,3e-4,1e-3")
        if self.factor < 2:
            raise EsperError(f"factor must be at least 2, not {self.factor}")
        first = max(asked.updates // self.factor**2, 1) if self.first is None else self.first
        if not 1 <= first <= asked.updates:
            raise EsperError(f"first must be from 1 to {asked.updates}, the recipe's updates, not {first}")
        over = parsed(self.over, asked.plain())
        if any(name.endswith("updates") for name in over):
            raise EsperError("trials are compared after equal numbers of updates: leave updates out of --over")
        trials = trials_of(asked, over, path)
        return Search(
            trials=trials,
            rungs=rungs_of(first, self.factor, asked.updates),
            factor=self.factor,
            command=shlex.join(["esper", "tune", self.recipe, *(w for name in self.over for w in ("--over", name))]),
        )

    def searched(self, search: Search, path: Path, device: str) -> bool:
        """Train all trials as far as they go, and return whether the search has ended."""
        if not self.many.cluster.ray:
            return search.halved(lambda jobs: list(self.many.done(jobs, device)))
        from esper.cli.tune_ray import Room, asynchronously

        count = len(search.trials)
        gpus = 1 / self.many.sharing(count, device) if device.startswith("cuda") else 0.0
        asynchronously(search, path, Room(*self.many.shares(count, device), gpus), self.many.cluster.address)
        return True

    def keep(self, path: Path, asked: Recipe, search: Search) -> None:
        """Write the results so far."""
        trials = []
        for trial in search.ranking():
            rungs = {str(until): j for until in search.rungs if (j := trial.result(until)) is not None}
            trials.append({"trial": trial.number, "values": dict(trial.values), "j": rungs})
        content = self.identity(asked, search) | {"trials": trials}
        replace_file(path / RESULTS, json.dumps(jsonable(content), indent=2))

    def identity(self, asked: Recipe, search: Search) -> dict[str, Any]:
        """Return what a search must have in common with the one that it continues."""
        over = {trial.number: dict(trial.values) for trial in search.trials}
        tried = [over[number] for number in sorted(over)]
        rungs = {"rungs": list(search.rungs), "factor": search.factor}
        return {"version": VERSION, "recipe": asked.plain(), "tried": tried, **rungs}

    def require_same(self, path: Path, asked: Recipe, search: Search) -> None:
        """Refuse to go on with a folder that was begun with other flags."""
        if not (path / RESULTS).exists():
            return
        try:
            found = json.loads((path / RESULTS).read_text(encoding="utf-8"))
        except ValueError as error:
            raise FileError(f"{path / RESULTS} is damaged, remove it: {error}") from None
        if {**found, "trials": None} != {**self.identity(asked, search), "trials": None}:
            raise FileError(f"{path} was begun with other flags: give the same ones, or choose another --run-dir")


def show(search: Search) -> None:
    """Print all trials, the best first."""
    names: Sequence[str] = [*search.trials[0].values]
    rows = []
    for trial in search.ranking():
        updates, j = search.reached(trial)
        tried = [str(trial.values[name]) for name in names]
        rows.append([str(trial.number), *tried, str(updates), f"{j:.4f}" if j > WORST else "-"])
    print_table(("trial", *names, "updates", "J"), rows)
