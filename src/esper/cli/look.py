"""`esper exam`, `esper watch` and `esper report`: what became of a run."""

import hashlib
import json as json_module
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text
from tyro.conf import OmitArgPrefixes

from esper.cli.sizes import Size, size_in_bytes
from esper.leyline.errors import EsperError, FileError
from esper.leyline.json_records import jsonable
from esper.leyline.reports import ExamReport, Life
from esper.recipes import FleetConfig, Recipe
from esper.recipes.exam import QUICK, ExamConfig, Once, Tell, afresh, held_one_by_one
from esper.recipes.suite import HELD_OUT, chosen
from esper.tamiyo.controller_files import SHIPPED, load_controller
from esper.tamiyo.policies import FixedPlan, LearnedPolicy, PlanStep, Policy
from esper.telemetry import Board, RunFolder
from esper.telemetry.folder import CONTROLLER, environment
from esper.tolaria import Engine

WIDE = 136
"""Columns of a terminal in which an exam's costs have room."""
COSTS = ("parameters", "FLOPs", "time")
COLUMNS = ("metric", "IQM", "growth", *COSTS, "J", "ahead", "P(better)")
RunDir = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]


@dataclass(frozen=True, kw_only=True)
class Exam:
    """Put a controller against every simple alternative on fresh hosts, scored on test data.

    Several runs are several trainings of one policy. The first one's recipe says what is examined, and its folder keeps
    the report; controllers in files are examined with --tasks, --images or --text.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RUN ...]")] = ()
    """Folders of runs that are done, or files of controllers. None: the controller that comes with Esper,
    where it has learned nothing."""
    exam: OmitArgPrefixes[ExamConfig] = ExamConfig()
    tasks: tuple[str, ...] = ()
    """Settings to examine in instead of those that were learned from: mnist1d (or only mnist1d-4, -8, -16), spirals,
    planted, digits (or only digits-4, -6); or all."""
    images: Path | None = None
    """Examine with images of yours, besides --tasks or instead of what was learned from: an .npz file or a folder."""
    text: Path | None = None
    """Likewise with a text of yours, character by character."""
    plan: tuple[Path, ...] = ()
    """Plans that take part: files with a JSON list of lines like {"decision": 0, "op": "GERMINATE", "slot": "s0"}."""
    quick: bool = False
    """Only never, random and the heuristic, at the recipe's learning rate, in at most six of the settings that were
    learned from; on other hosts than final exams, and scored on validation data, so that one may look as often as one
    likes."""
    device: str | None = None
    """Where; if not given as the recipe says, and with Esper's own controller on the CPU."""
    memory_budget: Size = None
    """Memory that a fleet may use, such as 20GB: batches are split until they fit. Default: a third of a GPU's."""
    out: Path | None = None
    """A folder of its own for this exam; if not given, the first run's. Controllers in files have no other."""
    json: bool = False
    """Print one JSON object for every task."""
    given: tyro.conf.Suppress[tuple[str, ...]] = ()
    """All of this, as it was written."""

    def run(self) -> None:
        fleets, runs = self.settings(), self.runs or (SHIPPED,)
        if not self.runs and not SHIPPED.exists():
            raise EsperError("this Esper brings no controller along: name a RUN")
        folders = [RunFolder.open(path) for path in runs if not path.is_file()]
        for folder in folders:
            if not folder.done:
                raise FileError(f"{folder.path} is not done: resume it first")
        asked = self.asked(folders, fleets)
        files = [path if path.is_file() else path / CONTROLLER for path in runs]
        different(files)
        policies = [LearnedPolicy(load_controller(path).to(asked.engine.place())) for path in files]
        known = {**cost(folders), "held": self.held(asked)}
        place = self.place(folders, asked)
        if place is None:
            self.hold(asked, policies, known)
        else:
            with place.alone():
                choices = place.choices(self.question(asked, files))
                self.hold(asked, policies, known, place, choices.once)
                choices.forget()
                report = write_report(place)
            if report and not self.json:
                print(f"report: {report}")

    def hold(
        self,
        asked: Recipe,
        policies: Sequence[Policy],
        known: Mapping[str, Any],
        place: RunFolder | None = None,
        once: Once = afresh,
    ) -> None:
        """All exams, each told of and kept as soon as it has ended."""
        guests, tell = [read_plan(path) for path in self.plan], Console(stderr=True, log_path=False).log
        fleets = self.examined(asked, tell)
        config = self.quickly(len(fleets)) if self.quick else self.exam
        exams, lives = [], []
        for exam, told in held_one_by_one(asked, policies, config, guests, fleets, tell, once):
            exams.append(replace(exam, **known))
            lives += told
            if place:
                self.keep(place, exams, lives)
            if self.json:
                print(json_module.dumps(jsonable(asdict(exams[-1]))))
            else:
                show_exam(exams[-1], Console())
        if place is None and config.final:
            tell("a final exam was held, and is kept nowhere: add --out next time")

    def examined(self, asked: Recipe, tell: Tell) -> list[FleetConfig]:
        """The settings that are examined in. A quick exam takes a few of many that were learned from, and says so."""
        fleets = self.settings()
        if fleets or not self.quick:
            return fleets or list(asked.fleets)
        fleets = few(asked.fleets)
        if len(fleets) < len(asked.fleets):
            tell(f"{len(fleets)} of the {len(asked.fleets)} settings of {asked.name}: --tasks names others")
        return fleets

    def question(self, asked: Recipe, files: Sequence[Path]) -> str:
        """The same for exams in which the same is chosen: of the same command, on such a machine, with such files."""
        where = {name: value for name, value in self.environment(asked).items() if name != "id"}
        read = [path for path in (*files, *self.plan, self.images, self.text) if path and path.exists()]
        return hashlib.sha256(b"".join([json_module.dumps(where).encode(), *map(digest, read)])).hexdigest()

    def keep(self, place: RunFolder, exams: Sequence[ExamReport], lives: Sequence[Life]) -> None:
        """As far as it has come. A final exam takes the place of any other, a preliminary one only of its like."""
        if exams[-1].final:
            place.log_exam(exams[-1], [str(path) for path in self.runs or (SHIPPED,)])
        if exams[-1].final or not any(kept.final for kept in place.exams()):
            place.write_exam(exams, lives)

    def quickly(self, settings: int) -> ExamConfig:
        """A coarse answer, the coarser the more settings."""
        return replace(QUICK, hosts=min(self.exam.hosts, QUICK.hosts, max(64 // settings, 2)))

    def held(self, asked: Recipe) -> str:
        """Where an exam comes from."""
        where = self.environment(asked)
        commit = f"commit {where['git'][:7]}{'+' * where['git'].endswith('+')}" if where["git"] else where["esper"]
        return f"Held on {datetime.now(UTC):%Y-%m-%d} with {commit} on {where['device']}: {where['command']}"

    def environment(self, asked: Recipe) -> dict[str, Any]:
        return environment(asked.engine.device_name, torch.get_num_threads(), shlex.join(["esper", *self.given]))

    def place(self, folders: Sequence[RunFolder], asked: Recipe) -> RunFolder | None:
        """Where the exam is kept. A new folder is begun before anything is played."""
        if self.out is None:
            return folders[0] if self.runs and folders else None
        if (self.out / "config.json").exists():
            return RunFolder.open(self.out)
        return RunFolder.create(self.out, asked.plain(), self.environment(asked))

    def settings(self) -> list[FleetConfig]:
        """What is asked for; of Esper's own controller, if nothing is, what it has not learned from."""
        asked = chosen(self.tasks, self.images, self.text)
        return asked or ([] if self.runs else chosen(HELD_OUT))

    def asked(self, folders: Sequence[RunFolder], fleets: Sequence[FleetConfig]) -> Recipe:
        """The first run's recipe; of a controller alone nothing is known but what it is to be examined in."""
        if not folders and not fleets:
            raise EsperError("a controller in a file is examined in settings: add --tasks, --images or --text")
        found = Recipe.revived(folders[0].config()) if folders else Recipe(name="exam", fleets=tuple(fleets))
        if self.device is not None:
            found = replace(found, engine=Engine.on(self.device))
        elif not self.runs:
            found = replace(found, engine=Engine())
        if self.memory_budget is not None:
            found = replace(found, engine=replace(found.engine, memory_budget=size_in_bytes(self.memory_budget)))
        return found


def few(fleets: Sequence[FleetConfig], most: int = 6) -> list[FleetConfig]:
    """As many as there is time for when an answer may be coarse, evenly spread."""
    count = min(len(fleets), most)
    return [fleets[n * len(fleets) // count] for n in range(count)]


def different(files: Sequence[Path]) -> None:
    """Refuse a training that is named twice: it would count as two."""
    seen: dict[bytes, Path] = {}
    for path in files:
        content = digest(path)
        if content in seen:
            raise EsperError(f"{seen[content]} and {path} are the same controller: name every training once")
        seen[content] = path


def digest(path: Path) -> bytes:
    """Of a file, or of all files in a folder."""
    found = hashlib.sha256()
    try:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if not file.is_dir():
                found.update(str(file.relative_to(path)).encode() + file.read_bytes())
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from None
    return found.digest()


def cost(folders: Sequence[RunFolder]) -> dict[str, Any]:
    """What an exam says of what the trainings took, which no other arm had: their head starts, too, and the runs that
    they go on from."""
    every, starts = [r for folder in folders for r in folder.reports()], [folder.start() for folder in folders]
    return {
        "settings": len(Recipe.revived(folders[0].config()).learned_from) if folders else 0,
        "lives": sum(report.episodes for report in every) + sum(start["lives"] for start in starts),
        "decisions": sum(report.decisions for report in every) + sum(start["decisions"] for start in starts),
        "seconds": sum(sum(report.seconds.values()) for report in every) + sum(start["seconds"] for start in starts),
    }


def read_plan(path: Path) -> FixedPlan:
    """A plan that someone has written."""
    try:
        lines = json_module.loads(path.read_text(encoding="utf-8"))
        if not isinstance(lines, list):
            raise TypeError(lines)
        return FixedPlan([PlanStep(int(line.pop("decision")), line) for line in lines], name=path.stem)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise FileError(f"{path} is no list of lines with a decision and an op: {error!r}") from None


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Look at a run while it goes on, from another terminal."""

    run_dir: RunDir
    """The run's folder."""
    once: bool = False
    """Draw it once, as it is now."""
    every: float = 1.0
    """Seconds between two looks."""

    def run(self) -> None:
        if not self.every > 0:
            raise EsperError(f"every must be positive, not {self.every}")
        folder = RunFolder.open(self.run_dir)
        board = Board(str(folder.path), Recipe.revived(folder.config()).learn.updates, folder.reports())
        console = Console()
        if self.once:
            console.print(board)
            return
        with Live(board, console=console, auto_refresh=False) as live, suppress(KeyboardInterrupt):
            while not folder.done:
                time.sleep(self.every)
                board.reports = folder.reports()  # from the beginning: a resumed run cuts its logs back
                live.refresh()


@dataclass(frozen=True, kw_only=True)
class Report:
    """Write a run's report: one HTML file that needs nothing else, and its pictures."""

    run_dir: RunDir
    """The run's folder."""

    def run(self) -> None:
        path = write_report(RunFolder.open(self.run_dir))
        if path is None:
            raise EsperError("a report needs the package matplotlib: pip install 'esper-nn[plot]'")
        print(path)


def write_report(folder: RunFolder) -> Path | None:
    """The report of a run as far as it has come; None if there is nothing to draw it with."""
    if find_spec("matplotlib") is None:
        return None
    from esper.dashboard.report import Story, draw, html

    story = Story(
        name=folder.path.resolve().name,
        config=folder.config(),
        environment=folder.environment(),
        reports=folder.reports(),
        exams=folder.exams(),
        lives=folder.lives(),
    )
    pictures = folder.path / "pictures"
    try:
        pictures.mkdir(exist_ok=True)
        folder.write("report.html", html(story, draw(story, pictures)))
    except OSError as error:
        raise FileError(f"cannot write {pictures}: {error.strerror or error}") from error
    return folder.path / "report.html"


def show_exam(exam: ExamReport, console: Console) -> None:
    """The table of an exam; in a narrow terminal without what it costs."""
    if not console.is_terminal:
        console.width = max(console.width, WIDE)
    console.print(exam_table(exam, narrow=console.width < WIDE))


def exam_table(exam: ExamReport, narrow: bool = False) -> Table:
    title = f"{exam.setting}: {exam.hosts} fresh hosts, {exam.data} data"
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1))
    table.caption, table.caption_justify = exam.about or None, "left"
    table.add_column("policy", no_wrap=True)
    columns = [column for column in COLUMNS if not (narrow and column in COSTS)]
    for name in exam.headings(columns):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for arm in exam.arms:
        color = {"better": "green", "worse": "red", "level": ""}[arm.verdict]
        cells = (Text(arm.cells[column], color if column == "ahead" else "") for column in columns)
        table.add_row(arm.name, *cells, Text(arm.verdict if arm.difference else "", color))
    return table
