"""Train through the stages of a recipe, from wherever a run stands, with checkpoints that it is resumed from."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn
from rich.progress import Progress as Bars

from esper.cli.console import literal_console, show_exam
from esper.cli.desk import PLAIN, Desk, Logging
from esper.cli.exam import cost
from esper.cli.report import REPORT, write_report
from esper.cli.stopping import Stop, stopping
from esper.exam.arms import ARMS, always
from esper.exam.config import QUICK
from esper.exam.holding import held_one_by_one
from esper.exam.records import ExamReport, Life
from esper.leyline.errors import FileError
from esper.leyline.reports import UpdateReport
from esper.recipes import Recipe
from esper.recipes.warm_start import Progress, begin, folder_of
from esper.simic.checkpoint import load_training_run, save_training_run
from esper.simic.train import Training
from esper.simic.workers import ALONE, WorkerLost, Workers
from esper.tamiyo import Controller
from esper.tamiyo.controller_files import save_controller
from esper.tamiyo.policies import LearnedPolicy
from esper.telemetry import RunFolder
from esper.telemetry.board import duration
from esper.telemetry.folder import LOGS, OLDEST_LOGS


@dataclass
class Position:
    """Where a run stands: a stage, its training once that is built, and the best objective in it so far."""

    stage: int
    training: Training | None = None
    best: float = -float("inf")
    before: Controller | None = None
    """The controller of the stage before."""


def go_on(
    folder: RunFolder | None,
    asked: Recipe,
    logging: Logging,
    at: Position,
    workers: Workers = ALONE,
    until: int | None = None,
) -> None:
    """Train through all stages to the end, or until a signal asks to stop; either way nothing is lost.

    Only the first worker has the run's folder; all stop together, whichever of them was asked to. A number of updates
    (`until`) after which to stop is such a signal, unless it is that of all updates.
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
                stopped = improved(desk, asked, at, training, stop, until)
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


def improved(desk: Desk | None, asked: Recipe, at: Position, training: Training, stop: Stop, until: int | None) -> bool:
    """Make the updates of a stage that are left, and return whether the run is to stop."""
    stage, stopped = asked.stages[at.stage], False
    while training.update < stage.learn.updates and not stopped:
        report = numbered(training.step(), first_update(asked, at.stage))
        if desk:
            desk.hear(report)
        stop.asked |= report.update + 1 == until != asked.updates
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
