"""`esper train` and `esper resume`."""

import json as json_module
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from difflib import get_close_matches
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, SpinnerColumn, TextColumn
from rich.progress import Progress as Bars
from tyro.conf import OmitArgPrefixes

from esper.cli.console import literal_console, show_exam
from esper.cli.exam import cost
from esper.cli.flags import Flag, optional
from esper.cli.ray_train import OnRay, train_on_ray
from esper.cli.report import REPORT, write_report
from esper.cli.stopping import Stop, stopping
from esper.cli.workers import asks_for_workers, is_worker, launch, together, were_restarted
from esper.exam.arms import ARMS, always
from esper.exam.config import QUICK
from esper.exam.holding import held_one_by_one
from esper.exam.records import ExamReport, Life
from esper.leyline.errors import EsperError, FileError
from esper.leyline.json_records import jsonable
from esper.leyline.reports import UpdateReport
from esper.recipes import Recipe, recipe
from esper.recipes.warm_start import Progress, begin, folder_of
from esper.simic.checkpoint import load_training_run, save_training_run
from esper.simic.train import Training
from esper.simic.workers import ALONE, WorkerLost, Workers
from esper.tamiyo import Controller
from esper.tamiyo.controller_files import load_controller, save_controller
from esper.tamiyo.features import HIDEABLE
from esper.tamiyo.policies import LearnedPolicy
from esper.tasks import load_task
from esper.telemetry import SINKS, Board, RunFolder, Sink, SinkName
from esper.telemetry.board import duration
from esper.telemetry.folder import LOGS, OLDEST_LOGS, environment
from esper.telemetry.setting import setting_of
from esper.tolaria import Engine

PATIENCE = 60.0
"""Seconds to wait until workers that were lost have ended and freed the run folder."""
PLAIN: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}
"""Print text as it is: names of files and settings are no markup."""


@dataclass(frozen=True, kw_only=True)
class Logging:
    """Where the reports of a run go besides its folder."""

    log: Annotated[tuple[SinkName, ...], optional("NAME ...", "none")] = ()
    """Trackers that get every update as well: tensorboard, wandb, mlflow."""
    json: Flag = False
    """Print each update as one line of JSON."""
    heads: Flag = False
    """Show the statistics of each head of the controller, too."""

    def arguments(self) -> list[str]:
        """Return the flags of the command line that say this."""
        switches = [f"--{name}" for name in ("json", "heads") if getattr(self, name)]
        return [*(("--log", *self.log) if self.log else ()), *switches]

    def check(self) -> None:
        """Raise an error if a tracker is not installed, before anything is written."""
        for name in self.log:
            if find_spec(name) is None:
                raise EsperError(f"{name} is not installed: pip install 'esper-nn[{name}]'")

    @contextmanager
    def told(self, folder: RunFolder, asked: Recipe, update: int) -> Iterator[Callable[[UpdateReport], None]]:
        """Open all trackers, and yield a function that sends them a report; one that fails gets no more of them."""
        with ExitStack() as open_sinks:
            sinks: dict[SinkName, Sink] = {}
            for name in self.log:
                try:
                    sinks[name] = SINKS[name](folder.path, folder.identity, asked.plain(), update)
                except EsperError as error:
                    raise EsperError(f"{error}; `esper resume {folder.path}` goes on without {name}") from error
                open_sinks.callback(_carefully, name, sinks[name].close)

            def tell(report: UpdateReport) -> None:
                for name in list(sinks):
                    if not _carefully(name, sinks[name].hear, report):
                        del sinks[name]

            yield tell

    @contextmanager
    def shown(self, board: Board, console: Console) -> Iterator[Callable[[UpdateReport], None]]:
        """Yield a function that shows a report: as JSON, on a board in a terminal, as a line elsewhere."""
        if self.json:
            yield lambda report: print(json_module.dumps(jsonable(asdict(report.brief()))), flush=True)
        elif console.is_terminal:
            with Live(board, console=console, auto_refresh=False) as live:
                yield lambda report: live.refresh()
        else:
            yield lambda report: console.print(board.line(), **PLAIN)


def _carefully(name: str, do: Callable[..., object], *arguments: object) -> bool:
    """Call a tracker, and return whether it worked; if not, a warning says why."""
    try:
        do(*arguments)
    except Exception as error:
        warnings.warn(f"{name} no longer listens: {error}", stacklevel=2)
        return False
    return True


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train a controller with a recipe, and write a run folder.

    A run can be stopped and resumed at any time. Every field of a recipe is a flag, such as `--learn.updates 10`:
    `esper train RECIPE --help` explains them, and `esper recipes RECIPE` shows their values.
    """

    recipe: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")]
    """Name of a recipe; `esper recipes` lists them."""
    run_dir: Annotated[Path | None, optional("FOLDER", "a new folder under runs/")] = None
    """Folder of the run."""
    rng_seed: Annotated[int | None, optional("N", "the recipe's")] = None
    """Random seed of the controller, its learning and its hosts."""
    device: Annotated[str | None, optional("DEVICE", "the recipe's")] = None
    """Device to run on, with its usual precision: cpu (fp32) or cuda (bf16)."""
    workers: Annotated[int | None, optional("N", "1")] = None
    """Processes on this machine that train the controller together, each on its share of the recipe's fleets."""
    on_ray: OmitArgPrefixes[OnRay] = OnRay()
    logging: OmitArgPrefixes[Logging] = Logging()
    changes: tyro.conf.Suppress[tuple[str, ...]] = field(default=())
    """Flags of the recipe."""

    def run(self) -> None:
        size = self.workers or 1
        self.on_ray.check(size)
        if not (asks_for_workers(self.workers) or self.on_ray.ray):
            return together(self.again if were_restarted() else self.train, "--debug" in sys.argv)
        asked = self.asked()
        self.logging.check()
        require_fleets(asked, size)
        path = self.folder(asked)
        if (path / "config.json").exists():
            raise FileError(f"{path} holds a run already: resume it, or choose another run_dir")
        start_workers(self.on_ray, asked, self.arguments(path.resolve() if self.on_ray.ray else path), size, path)

    def folder(self, asked: Recipe) -> Path:
        """Return the folder of the run."""
        return self.run_dir or Path("runs") / f"{asked.name}-{datetime.now():%Y%m%d-%H%M%S}"

    def train(self, workers: Workers) -> None:
        """Begin a run, as one of these workers; the first one writes it down."""
        with warnings_once(), ExitStack() as held:
            asked = agreed(workers, self.asked)
            require_fleets(asked, workers.size)
            self.logging.check()
            training = asked.stages[0].build(workers)
            for stage in asked.stages[1:]:
                for fleet in workers.share(stage.fleets):
                    load_task(fleet.task, **fleet.options)  # what cannot be loaded is refused before training begins
            folder = None
            if workers.is_first:
                device, command = asked.engine.device_name, self.command(workers.size)
                known = environment(device, torch.get_num_threads(), command, workers.size)
                path = self.folder(asked)
                held.enter_context(RunFolder(path).alone())
                folder = RunFolder.create(path, asked.plain(), known)
            go_on(folder, asked, self.logging, Position(0, training), workers)

    def again(self, workers: Workers) -> None:
        """Begin a run, or go on with it, as workers do that were started again after some were lost."""
        path, is_begun = self.run_dir, False
        if workers.is_first and path is not None and (path / "config.json").exists():
            is_begun, until = True, time.monotonic() + PATIENCE
            while RunFolder(path).writer() and time.monotonic() < until:
                time.sleep(0.1)
        if workers.any(is_begun):
            Resume(run_dir=path or Path(), logging=self.logging).resume(workers)
        else:
            self.train(workers)

    def arguments(self, path: Path) -> list[str]:
        """Return the arguments of `esper` for a worker of this run."""
        own = ["--run-dir", str(path), *self._plain_flags(), *self.logging.arguments()]
        return ["train", self.recipe, *own, *self.changes]

    def _plain_flags(self) -> list[str]:
        seed = () if self.rng_seed is None else ("--rng-seed", str(self.rng_seed))
        return [*seed, *(() if self.device is None else ("--device", self.device))]

    def command(self, workers: int = 1) -> str:
        """Return the command that makes this run again."""
        several = () if workers == 1 else ("--workers", str(workers))
        return shlex.join(["esper", "train", self.recipe, *self._plain_flags(), *several, *self.changes])

    def asked(self) -> Recipe:
        """Return the recipe with its flags applied."""
        plain = recipe(self.recipe)
        self._suggest(plain)
        if self.device is not None:
            usual = Engine.on(self.device)
            plain = replace(plain, engine=replace(plain.engine, device=usual.device, precision=usual.precision))
        changed = tyro.cli(Recipe, default=plain, args=list(self.changes), prog=f"esper train {self.recipe}")
        if changed.warm_start.run:
            changed = continued(changed, plain)
        return changed if self.rng_seed is None else changed.seeded(self.rng_seed)

    def _suggest(self, plain: Recipe) -> None:
        """Refuse a misspelt flag of `train` itself, which the parser of the recipe's flags cannot know."""
        own = ("--run-dir", "--rng-seed", "--device", "--workers", "--ray", "--address", "--log", "--json", "--heads")
        for flag in (change.partition("=")[0] for change in self.changes if change.startswith("--")):
            close = get_close_matches(flag.replace("_", "-"), own, n=1, cutoff=0.75)
            if close and flag.removeprefix("--").partition(".")[0] not in plain.plain():
                raise EsperError(f"unknown flag {flag}: did you mean {close[0]}?")


def print_recipe_help(name: str) -> None:
    """Print the flags of `esper train NAME`: those of the command, then every field of the recipe."""
    plain = recipe(name)
    with suppress(SystemExit):
        tyro.cli(Train, args=["--help"], prog=f"esper train {name}", config=(OmitArgPrefixes,))
    print(f"Fields of the recipe {name}, each of them a flag:\n")
    with suppress(SystemExit):
        tyro.cli(Recipe, default=plain, args=["--help"], prog=f"esper train {name}", description="")


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Continue a run from its last checkpoint.

    The result is that of a run that never stopped.
    """

    run_dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    workers: Annotated[int | None, optional("N", "as it was begun")] = None
    """Processes on this machine that go on together; the fleets are dealt again if there are more or fewer."""
    on_ray: OmitArgPrefixes[OnRay] = OnRay()
    logging: OmitArgPrefixes[Logging] = Logging()

    def run(self) -> None:
        self.logging.check()
        if is_worker():
            return together(self.resume, "--debug" in sys.argv)
        folder = RunFolder.open(self.run_dir)
        size = self.workers or folder.environment().get("workers", 1)
        asks_for_workers(size)
        self.on_ray.check(size)
        if folder.done or (size == 1 and not self.on_ray.ray):
            return self.resume(ALONE)
        asked = Recipe.revived(folder.config())
        require_fleets(asked, size)
        path = self.run_dir.resolve() if self.on_ray.ray else self.run_dir
        arguments = ["resume", str(path), *self.logging.arguments()]
        start_workers(self.on_ray, asked, arguments, size, self.run_dir)

    def resume(self, workers: Workers) -> None:
        """Go on with the run, as one of these workers; the first one writes it down."""
        with warnings_once(), ExitStack() as held:
            folder = None
            if workers.is_first:
                folder = RunFolder.open(self.run_dir)
                held.enter_context(folder.alone())
            asked = agreed(workers, lambda: Recipe.revived(RunFolder.open(self.run_dir).config()))
            if workers.any(folder is not None and folder.done):
                if folder is not None:
                    complete(folder, literal_console(stderr=self.logging.json))
                return
            require_fleets(asked, workers.size)
            if folder is not None:
                self._warn(folder, workers.size)
            go_on(folder, asked, self.logging, pick_up(folder, asked, workers), workers)

    def _warn(self, folder: RunFolder, workers: int) -> None:
        known = folder.environment()
        now = {"threads": torch.get_num_threads(), "workers": workers}
        for name, before in (("threads", known.get("threads")), ("workers", known.get("workers", 1))):
            if before != now[name]:
                warnings.warn(f"begun with {before} {name}, gone on with {now[name]}: bits may differ", stacklevel=1)


def require_fleets(asked: Recipe, workers: int) -> None:
    """Raise an error if there are more workers than fleets in a stage of a recipe."""
    for stage in asked.stages:
        Workers(0, workers).share(stage.fleets)


def start_workers(on_ray: OnRay, asked: Recipe, arguments: Sequence[str], workers: int, path: Path) -> None:
    """Run `esper` with these arguments in several processes, of Ray or on this machine, and wait for their end."""
    if on_ray.ray:
        train_on_ray(on_ray, asked, arguments, workers, path.resolve())
    else:
        launch(arguments, workers, path)


def agreed(workers: Workers, ask: Callable[[], Recipe]) -> Recipe:
    """Return the recipe that the first worker asks for."""
    if workers.size == 1:
        return ask()
    said = json_module.dumps(ask().plain()).encode() if workers.is_first else b""
    return Recipe.revived(json_module.loads(workers.from_first(said)))


def continued(asked: Recipe, plain: Recipe) -> Recipe:
    """Return the recipe of a run that continues another one, with the controller and the known settings of that one.

    Only which features the controller sees may differ.
    """
    before = RunFolder.open(folder_of(asked.warm_start.run))
    if not before.done:
        raise FileError(f"{before.path} is not done: resume it before another run continues from it")
    visible = {group: getattr(asked.controller, group) for group in HIDEABLE}
    controller = replace(load_controller(before.controller_path).config, **visible)
    if asked.controller not in (controller, replace(plain.controller, **visible)):
        raise EsperError(f"controller must be left as it is in {before.path}, from which the run continues")
    return replace(asked, known=Recipe.revived(before.config()).learned_from, controller=controller)


@dataclass
class Position:
    """Where a run stands: a stage, its training once that is built, and the best objective in it so far."""

    stage: int
    training: Training | None = None
    best: float = -float("inf")
    before: Controller | None = None
    """The controller of the stage before."""


class Desk:
    """Writes the reports of a run down, shows them and tells trackers: what the first worker does besides training."""

    def __init__(self, folder: RunFolder, asked: Recipe, logging: Logging, console: Console) -> None:
        self.folder, self.asked, self.logging, self.console = folder, asked, logging, console
        setting = setting_of(folder.config(), folder.environment())
        reports = folder.reports()
        self.board = Board(str(folder.path), setting.updates, reports, setting=setting, heads=logging.heads)
        self.listeners: list[Callable[[UpdateReport], object]] = []

    @contextmanager
    def told(self) -> Iterator[None]:
        """Open all trackers."""
        with self.logging.told(self.folder, self.asked, len(self.board.reports)) as tell:
            self.listeners.append(tell)
            yield

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the reports that are heard in the block."""
        self.board.start(self.folder.start())
        with self.logging.shown(self.board, self.console) as show:
            self.listeners.append(show)
            yield
            self.listeners.remove(show)

    def hear(self, report: UpdateReport) -> None:
        """Write down an update, and say so."""
        self.folder.append(report)
        report = report.brief()
        self.board.hear(report)
        for listener in self.listeners:
            listener(report)

    def say_stopped(self, phase: str) -> None:
        during = f" during {phase}," if phase else ""
        made = f"after update {len(self.board.reports)}"
        self.console.print(f"stopped{during} {made}: go on with `esper resume {self.folder.path}`", **PLAIN)


def go_on(folder: RunFolder | None, asked: Recipe, logging: Logging, at: Position, workers: Workers = ALONE) -> None:
    """Train through all stages to the end, or until a signal asks to stop; either way nothing is lost.

    Only the first worker has the run's folder; all stop together, whichever of them was asked to.
    """
    console = literal_console(stderr=logging.json) if folder else Console(quiet=True)
    desk, stages = Desk(folder, asked, logging, console) if folder else None, asked.stages
    with resumable(folder), stopping(says_so=folder is not None) as stop, desk.told() if desk else nullcontext():
        while not (stopped := workers.any(stop())):
            training = prepared(folder, stages[at.stage], at, console, stop, workers)
            stopped = training is None or workers.any(stop())
            if training is None or stopped:
                break
            with desk.shown() if desk else nullcontext():
                stopped = improved(desk, asked, at, training, stop)
            if stopped or at.stage == len(stages) - 1:
                break
            at = Position(at.stage + 1, before=training.controller)
            del training  # its fleets hold memory that the next stage needs
        if folder and at.training and not stopped:
            with stop.at_once("the preliminary exam"):
                finish(folder, stages[-1], at.training.controller, console, stop)
        if folder and folder.done and not stop():
            with stop.at_once("the report"):
                complete(folder, console)
    if desk and (stopped or stop()):
        desk.say_stopped(stop.phase)


@contextmanager
def resumable(folder: RunFolder | None) -> Iterator[None]:
    """Say how to go on if another worker is lost."""
    try:
        yield
    except WorkerLost as error:
        raise WorkerLost(f"{error}: go on with `esper resume {folder.path}`" if folder else str(error)) from None


def improved(desk: Desk | None, asked: Recipe, at: Position, training: Training, stop: Stop) -> bool:
    """Make the updates of a stage that are left, and return whether the run is to stop."""
    stage, stopped = asked.stages[at.stage], False
    while training.update < stage.learn.updates and not stopped:
        report = numbered(training.step(), first_update(asked, at.stage))
        if desk:
            desk.hear(report)
        stopped = training.workers.any(stop())
        ended = training.update >= stage.learn.updates
        if ended or stopped or training.update % asked.checkpoint_every == 0:
            at.best = checkpoint(desk.folder if desk else None, asked, at.stage, training, report, at.best)
    return stopped


def first_update(asked: Recipe, stage: int) -> int:
    """Return the number of updates before a stage."""
    return sum(before.learn.updates for before in asked.stages[:stage])


def numbered(report: UpdateReport, first: int) -> UpdateReport:
    """Return a report of a stage with its update counted from the beginning of the run."""
    return replace(
        report,
        update=first + report.update,
        anomalies=tuple(replace(anomaly, update=first + anomaly.update) for anomaly in report.anomalies),
        lives=tuple(replace(life, update=first + life.update) for life in report.lives),
    )


def prepared(
    folder: RunFolder | None, stage: Recipe, at: Position, console: Console, stop: Stop, workers: Workers
) -> Training | None:
    """Return a stage's training as it is before its next update; what has happened until then is written down.

    If it is None, this was interrupted: a resumed run does it again. The first worker makes the warm start for all.
    """
    is_new, training = at.training is None, at.training or stage.build(workers)
    at.training = training
    if training.update:
        return training
    if is_new or needs_warm_start(stage):
        if folder:
            with stop.at_once(f"the warm start{f' of stage {at.stage + 1}' if at.stage else ''}"):
                warm_start(folder, stage, at, console, stop)
        if workers.any(stop()):
            return None
        workers.adopt(training.controller.state_dict())
    never = torch.empty(0)
    with stop.at_once("the measurement of hosts that never grow"):
        never = never_here(training, console, stop)
    if workers.any(stop()):
        return None
    never = workers.joined(never).mean().item()
    if folder:
        start = folder.start()
        start["never"] = never
        folder.write_start(**start)
    return training


def needs_warm_start(stage: Recipe) -> bool:
    return bool(stage.warm_start.plans or stage.warm_start.run)


def never_here(training: Training, console: Console, stop: Stop) -> torch.Tensor:
    """Measure J of hosts that never grow, on each fleet of this worker."""
    total, decisions = sum(env.setting.episode for env in training.fleets.envs), count()
    with shown_progress("hosts that never grow", console, stop) as progress:
        return training.never_here(lambda env: progress(env.fleet.task.name, next(decisions), total))


def warm_start(folder: RunFolder, stage: Recipe, at: Position, console: Console, stop: Stop) -> None:
    """Give a stage's controller its first weights, and write down what they have cost."""
    assert at.training is not None
    started, run = time.perf_counter(), stage.warm_start.run
    spent = folder.start() if at.before else asdict(cost([RunFolder.open(folder_of(run))] if run else []))
    with shown_progress("warm start", console, stop) as progress:
        took = begin(stage, at.training.controller, at.before, progress)
    seconds = spent["seconds"] + time.perf_counter() - started
    folder.write_start(spent["lives"] + took.lives, spent["decisions"] + took.decisions, seconds)


def finish(folder: RunFolder, asked: Recipe, controller: Controller, console: Console, stop: Stop) -> None:
    """Hold the preliminary exam, if the recipe wants one, and write the controller: with it the run is done."""
    exams: list[ExamReport] = []
    if asked.exam:
        lives: list[Life] = []
        with shown_progress("preliminary exam", console, stop) as progress:
            arms = 1 + sum(arm.when is always for arm in ARMS)
            config, tell = replace(QUICK, hosts=asked.exam), Steps(progress, len(asked.fleets) * arms)
            for exam, told in held_one_by_one(
                asked, [LearnedPolicy(controller)], config, tell=tell, background=cost([folder])
            ):
                exams.append(exam)
                lives += told
        folder.write_exam(exams, lives)
    save_controller(folder.controller_path, controller)
    for exam in exams:
        show_exam(exam, console)


def complete(folder: RunFolder, console: Console) -> None:
    """Write the report of a run that is done, unless there is one: a run may be killed while it is written."""
    if not (folder.path / REPORT).exists():
        with console.status("writing the report"):
            path = write_report(folder)
        said = f"report: {path}"
        console.print(said, **PLAIN)
    console.print(f"done: {folder.path}", **PLAIN)


class Steps:
    """Counts the steps of an exam for a progress display."""

    def __init__(self, progress: Progress, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def __call__(self, step: str) -> None:
        self.progress(step, self.done, self.total)
        self.done += 1


@contextmanager
def shown_progress(
    title: str,
    console: Console,
    stop: Callable[[], bool] = lambda: False,
    every: float = 5.0,
    now: Callable[[], float] = time.perf_counter,
) -> Iterator[Progress]:
    """Yield a function that shows progress and the time to go: a bar in a terminal, elsewhere a line now and then.

    The function raises KeyboardInterrupt if the run is to stop, in case a signal was lost inside of torch.
    """
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(bar_width=10))
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        bar = bars.add_task(title, total=None)
        began, printed, phase = now(), -float("inf"), 0.0

        def show(step: str, done: float, total: float) -> None:
            nonlocal began, printed, phase
            if stop():
                raise KeyboardInterrupt
            clock = now()
            if total != phase or done == 0:
                began, phase = clock, total
            to_go = f", {duration((clock - began) * (total - done) / done)} to go" if 0 < done < total else ""
            if console.is_terminal:
                bars.update(bar, description=f"{title}: {step}{to_go}", completed=done, total=total)
            elif clock - printed >= every:
                printed = clock
                console.print(f"{title}: {step}{to_go}", **PLAIN)

        yield show


def checkpoint(
    folder: RunFolder | None, asked: Recipe, stage: int, training: Training, report: UpdateReport, best: float
) -> float:
    """Write a checkpoint, keep the newest few and the stage's best controller, and return its best objective."""
    better = report.objective is not None and report.objective > best
    best = max(best, report.objective) if report.objective is not None else best
    if folder is None:
        save_training_run("", training)
        return best
    notes = {"logs": folder.offsets(), "best": best if best > -float("inf") else None, "start": folder.start()}
    if better:  # first: the best controller must be there before a checkpoint mentions it
        save_controller(folder.best_path, training.controller)
    save_training_run(folder.checkpoint_path(first_update(asked, stage) + training.update), training, notes)
    folder.keep(asked.keep)
    return best


def pick_up(folder: RunFolder | None, asked: Recipe, workers: Workers = ALONE) -> Position:
    """Load the newest checkpoint, or start again if there is none yet; cut from the logs what came after it."""
    paths, stages = folder.checkpoints() if folder else [], asked.stages
    made = workers.numbers(int(paths[-1].stem) if paths else -1)[0][0]
    if made < 0:
        if folder:
            folder.cut(dict.fromkeys(LOGS, 0))
        return Position(0, stages[0].build(workers))
    stage = next((n for n in range(len(stages)) if made <= first_update(asked, n + 1)), len(stages) - 1)
    path = paths[-1] if paths else Path(f"{made:06d}.safetensors")
    return Position(stage, *restored(folder, path, stages[stage].build(workers)))


def restored(folder: RunFolder | None, path: Path, training: Training) -> tuple[Training, float]:
    """Load a checkpoint into a training, and return it with the best objective so far."""
    notes = load_training_run(path, training)
    best = -float("inf") if notes["best"] is None else float(notes["best"])
    if folder is None:
        return training, best
    if not isinstance(notes.get("logs"), dict) or not set(OLDEST_LOGS) <= notes["logs"].keys() <= set(LOGS):
        raise FileError(f"{path} is damaged: it does not say how long the logs were")
    folder.cut(notes["logs"])
    start = {"never": None} | notes.get("start", folder.start())
    if start != folder.start():
        folder.write_start(**start)
    return training, best


@contextmanager
def warnings_once() -> Iterator[None]:
    """Show every warning once, as one line, however many times and wherever it is raised."""
    with warnings.catch_warnings():
        show, said = warnings.showwarning, set[str]()

        def once(message: Warning | str, *arguments: Any, **named: Any) -> None:
            if str(message) not in said:
                said.add(str(message))
                show(message, *arguments, **named)

        warnings.showwarning = once
        yield
