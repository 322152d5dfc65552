"""`esper train`, `esper resume` and `esper recipes`."""

import json as json_module
import shlex
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console
from rich.live import Live
from rich.table import Table
from tyro.conf import OmitArgPrefixes

from esper.cli.console import show_exam
from esper.cli.exam import cost
from esper.cli.report import write_report
from esper.leyline.errors import EsperError, FileError
from esper.leyline.json_records import jsonable
from esper.leyline.reports import UpdateReport
from esper.recipes import RECIPES, Recipe, recipe
from esper.recipes.exam import QUICK, hold_exam
from esper.recipes.warm_start import begin, folder_of
from esper.simic.checkpoint import load_training_run, save_training_run
from esper.simic.train import Training
from esper.tamiyo.controller_files import load_controller, save_controller
from esper.tamiyo.features import HIDEABLE
from esper.tamiyo.policies import LearnedPolicy
from esper.telemetry import SINKS, Board, RunFolder, Sink, SinkName
from esper.telemetry.board import line
from esper.telemetry.folder import LOGS, environment


@dataclass(frozen=True, kw_only=True)
class Listening:
    """Who hears of a run besides its folder."""

    log: tuple[SinkName, ...] = ()
    """Where else to write every update: tensorboard, wandb, mlflow."""
    json: bool = False
    """Print every report as a line of JSON."""

    @contextmanager
    def told(self, folder: RunFolder, asked: Recipe, update: int) -> Iterator[Callable[[UpdateReport], None]]:
        """Whoever listens hears every report. One that fails is left out from then on: the run goes on."""
        with ExitStack() as open_sinks:
            sinks: dict[SinkName, Sink] = {}
            for name in self.log:
                sinks[name] = SINKS[name](folder.path, folder.identity, asked.plain(), update)
                open_sinks.callback(_carefully, name, sinks[name].close)

            def tell(report: UpdateReport) -> None:
                for name in list(sinks):
                    if not _carefully(name, sinks[name].hear, report):
                        del sinks[name]

            yield tell

    @contextmanager
    def shown(self, board: Board, console: Console) -> Iterator[Callable[[UpdateReport], None]]:
        """A board that is redrawn in a terminal; elsewhere lines."""
        if self.json:
            yield lambda report: print(json_module.dumps(jsonable(asdict(replace(report, lives=())))), flush=True)
        elif console.is_terminal:
            with Live(board, console=console, auto_refresh=False) as live:
                yield lambda report: live.refresh()
        else:
            yield lambda report: console.print(line(report))


def _carefully(name: str, do: Callable[..., object], *arguments: object) -> bool:
    """Whether it went well; if not, a warning says why."""
    try:
        do(*arguments)
    except Exception as error:
        warnings.warn(f"{name} no longer listens: {error}", stacklevel=2)
        return False
    return True


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train a controller after a recipe, into a run folder that can be resumed at any time.

    Every field of a recipe is a flag, such as `--learn.updates 10`; `esper recipes NAME` shows them all.
    """

    recipe: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")]
    """One of `esper recipes`."""
    run_dir: Path | None = None
    """Where the run is written; a new folder under runs/ if not given."""
    rng_seed: int | None = None
    """Of the controller, its learning and its hosts; the recipe's own if not given."""
    listening: OmitArgPrefixes[Listening] = Listening()
    changes: tyro.conf.Suppress[tuple[str, ...]] = field(default=())
    """Flags of the recipe."""

    def run(self) -> None:
        asked = self.asked()
        path = self.run_dir or Path("runs") / f"{asked.name}-{datetime.now():%Y%m%d-%H%M%S}"
        training = asked.build()
        known = environment(asked.engine.device_name, torch.get_num_threads(), self.command())
        with RunFolder(path).alone():
            folder = RunFolder.create(path, asked.plain(), known)
            go_on(folder, asked, training, self.listening)

    def command(self) -> str:
        """What makes the same run again, as far as its recipe is concerned."""
        seed = () if self.rng_seed is None else ("--rng-seed", str(self.rng_seed))
        return shlex.join(["esper", "train", self.recipe, *seed, *self.changes])

    def asked(self) -> Recipe:
        """The recipe with its changes."""
        plain = recipe(self.recipe)
        changed = tyro.cli(Recipe, default=plain, args=list(self.changes), prog=f"esper train {self.recipe}")
        if changed.warm_start.run:
            changed = continued(changed, plain)
        if self.rng_seed is None:
            return changed
        fleets = tuple(replace(f, env=replace(f.env, rng_seed=self.rng_seed)) for f in changed.fleets)
        return replace(changed, fleets=fleets, learn=replace(changed.learn, rng_seed=self.rng_seed))


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Go on with a run from its last checkpoint, as if it had never stopped."""

    run_dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run's folder."""
    listening: OmitArgPrefixes[Listening] = Listening()

    def run(self) -> None:
        folder = RunFolder.open(self.run_dir)
        with folder.alone():
            asked = Recipe.revived(folder.config())
            before, threads = folder.environment().get("threads"), torch.get_num_threads()
            if before != threads:
                warnings.warn(f"begun with {before} threads, gone on with {threads}: bits may differ", stacklevel=1)
            go_on(folder, asked, asked.build(), self.listening, resumed=True)


@dataclass(frozen=True, kw_only=True)
class Recipes:
    """The recipes that `esper train` knows; with a name, everything in one of them."""

    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = None
    """One of them."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        if self.name is not None:
            print(json_module.dumps(recipe(self.name).plain(), indent=None if self.json else 2))
        elif self.json:
            print(json_module.dumps({name: _summary(name) for name in RECIPES}))
        else:
            table = Table("recipe", "what it is")
            for name in RECIPES:
                table.add_row(name, _summary(name))
            Console().print(table)


def _summary(name: str) -> str:
    return (RECIPES[name].__doc__ or "").strip()


def continued(asked: Recipe, plain: Recipe) -> Recipe:
    """The recipe of a run that goes on from another: with that one's controller, which may be told more or less than it
    was, and knowing what it knows."""
    before = RunFolder.open(folder_of(asked.warm_start.run))
    if not before.done:
        raise FileError(f"{before.path} is not done: resume it before another run goes on from it")
    told = {group: getattr(asked.controller, group) for group in HIDEABLE}
    controller = replace(load_controller(before.controller_path).config, **told)
    if asked.controller not in (controller, replace(plain.controller, **told)):
        raise EsperError(f"controller must be left as it is in {before.path}, from which the run goes on")
    return replace(asked, known=Recipe.revived(before.config()).learned_from, controller=controller)


def go_on(folder: RunFolder, asked: Recipe, training: Training, listening: Listening, resumed: bool = False) -> None:
    """Train to the end, or until a signal asks to stop; either way nothing is lost."""
    best = pick_up(folder, training) if resumed else -float("inf")
    console = Console(stderr=listening.json)
    board = Board(str(folder.path), asked.learn.updates, folder.reports())
    with stopping() as asked_to_stop, listening.told(folder, asked, training.update) as tell:
        if training.update == 0 and (asked.warm_start.plans or asked.warm_start.run):
            head_start(folder, asked, training, console)
        with listening.shown(board, console) as show:
            while training.update < asked.learn.updates and not asked_to_stop():
                report = training.step()
                folder.append(report)
                board.hear(report)
                tell(report)
                show(report)
                done = training.update >= asked.learn.updates
                if done or asked_to_stop() or training.update % asked.checkpoint_every == 0:
                    best = checkpoint(folder, asked, training, report, best)
        if training.update >= asked.learn.updates and not folder.done and not asked_to_stop():
            finish(folder, asked, training, console)
    if folder.done:
        console.print(f"done: {folder.path}")
    else:
        console.print(f"stopped after update {training.update}: go on with `esper resume {folder.path}`")


def head_start(folder: RunFolder, asked: Recipe, training: Training, console: Console) -> None:
    """Begin where another run has ended, imitate the best of some plans, and note what all that took."""
    started, run = time.perf_counter(), asked.warm_start.run
    before = cost([RunFolder.open(folder_of(run))] if run else [])
    imitated = f"; {asked.warm_start.plans} plans are tried, and the best imitated" if asked.warm_start.plans else ""
    with console.status(f"begins with {run or 'random weights'}{imitated}"):
        took = begin(asked, training.controller)
    seconds = before["seconds"] + time.perf_counter() - started
    folder.write_start(before["lives"] + took.lives, before["decisions"] + took.decisions, seconds)


def finish(folder: RunFolder, asked: Recipe, training: Training, console: Console) -> None:
    """Hold a preliminary exam, if one is wanted, keep the controller, write the report."""
    exams = []
    with console.status("the controller sits a preliminary exam" if asked.exam else "writes the report"):
        if asked.exam:
            exams, lives = hold_exam(asked, [LearnedPolicy(training.controller)], replace(QUICK, hosts=asked.exam))
            took = cost([folder])
            exams = [replace(exam, **took) for exam in exams]
            folder.write_exam(exams, lives)
        save_controller(folder.controller_path, training.controller)
        path = write_report(folder)
    for exam in exams:
        show_exam(exam, console)
    console.print(f"report: {path}" if path else "for pictures: pip install 'esper-nn[plot]', then esper report")


def checkpoint(folder: RunFolder, asked: Recipe, training: Training, report: UpdateReport, best: float) -> float:
    """Write one, keep the newest few, and remember the best. Returns the best objective so far."""
    better = report.objective is not None and report.objective > best
    best = max(best, report.objective) if report.objective is not None else best
    notes = {"logs": folder.offsets(), "best": best if best > -float("inf") else None}
    if better:  # first: what a checkpoint says of it must be there
        save_controller(folder.best_path, training.controller)
    save_training_run(folder.checkpoint_path(training.update), training, notes)
    folder.keep(asked.keep)
    return best


def pick_up(folder: RunFolder, training: Training) -> float:
    """Load the newest checkpoint, or begin again if there is none yet; forget what came after it."""
    paths = folder.checkpoints()
    if not paths:
        folder.cut(dict.fromkeys(LOGS, 0))
        return -float("inf")
    notes = load_training_run(paths[-1], training)
    if not isinstance(notes.get("logs"), dict) or notes["logs"].keys() != set(LOGS):
        raise FileError(f"{paths[-1]} is damaged: it does not say how long the logs were")
    folder.cut(notes["logs"])
    return -float("inf") if notes["best"] is None else float(notes["best"])


@contextmanager
def stopping() -> Iterator[Any]:
    """Ctrl-C and SIGTERM end a run after the update that is being made; a second one ends it at once."""
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        print("stopping after this update; once more to stop at once", file=sys.stderr, flush=True)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    except KeyboardInterrupt:
        raise EsperError("stopped in the middle of an update; resume goes on from the last checkpoint") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
