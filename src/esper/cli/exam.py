"""`esper exam`: compare a controller with baseline policies."""

import hashlib
import json as json_module
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
from tyro.conf import OmitArgPrefixes, Positional, Suppress

from esper.cli.console import literal_console, show_exam
from esper.cli.exam_parts import Question, forget, held_in_parts, without_flags
from esper.cli.flags import Flag, optional
from esper.cli.many import Many
from esper.cli.report import write_report
from esper.cli.sizes import Size, size_in_bytes
from esper.exam.config import ExamConfig, quick
from esper.exam.files import digest, read_plan, require_different
from esper.exam.holding import held_one_by_one
from esper.exam.records import Background, ExamReport, Life
from esper.exam.tuning import Tell
from esper.leyline.errors import EsperError, FileError
from esper.leyline.json_records import jsonable
from esper.recipes import FleetConfig, Recipe
from esper.recipes.suite import BUDGETED, HELD_OUT, QUICK_BUDGETED, budgeted, budgeted_text, chosen
from esper.tamiyo.controller_files import SHIPPED, load_controller
from esper.tamiyo.policies import LearnedPolicy
from esper.telemetry import RunFolder
from esper.telemetry.folder import CONTROLLER, PARTS, environment
from esper.tolaria import Engine


@dataclass(frozen=True, kw_only=True)
class Exam:
    """Compare a controller with baseline policies on fresh hosts.

    Scores are those on test data. Several runs count as several trainings of one policy: the recipe of the first says
    what is examined, and its folder keeps the report. Controller files need --tasks, --images or --text.
    """

    runs: Annotated[tuple[Path, ...], Positional, optional("[RUN ...]", "the shipped controller, on new tasks")] = ()
    """Folders of finished runs, or controller files."""
    exam: OmitArgPrefixes[ExamConfig] = ExamConfig()
    tasks: Annotated[tuple[str, ...], optional("NAME ...", "those of the recipe")] = ()
    """Settings to examine on: mnist1d (or mnist1d-4, -8, -16 alone), spirals, planted, digits (or -4, -6), or all."""
    images: Annotated[Path | None, optional("PATH", "none")] = None
    """Images to examine on, alone or with --tasks: an .npz file or a folder."""
    text: Annotated[Path | None, optional("FILE", "none")] = None
    """Text to examine on, character by character, alone or with --tasks."""
    plan: Annotated[tuple[Path, ...], optional("FILE ...", "none")] = ()
    """Growth plans that take part, each a JSON list such as [{"decision": 0, "op": "GERMINATE", "slot": "s0"}]."""
    budgeted: Flag = False
    """Examine at equal compute, also against fixed sizes; --tasks then names settings like phrases-16 or glyphs-8."""
    quick: Flag = False
    """Give a coarse answer: three baselines, one learning rate, at most six settings, validation data."""
    device: Annotated[str | None, optional("DEVICE", "the recipe's; cpu for the shipped controller")] = None
    """Device to run on: cpu or cuda."""
    memory_budget: Annotated[Size, optional("SIZE", "a third of the GPU's memory")] = None
    """Memory that a fleet may use, such as 20GB; batches are split until they fit."""
    out: Annotated[Path | None, optional("FOLDER", "that of the first run")] = None
    """Folder that stores this exam; without it, exams of controller files are stored nowhere."""
    many: OmitArgPrefixes[Many] = Many()
    json: Flag = False
    """Print one JSON object per setting."""
    shipped: Suppress[Path] = SHIPPED
    """Folder of the controller that is examined by default."""
    given: Suppress[tuple[str, ...]] = ()
    """The arguments as typed."""

    def run(self) -> None:
        self.many.cluster.check()
        if not self.many.is_asked_for:
            self.many.require_unused("--at-once")
        fleets, runs = self.settings(), self.runs or (self.shipped,)
        if not self.runs and not self.shipped.exists():
            raise EsperError("this installation has no shipped controller: name a RUN")
        folders = [RunFolder.open(path) for path in runs if not path.is_file()]
        for folder in folders:
            if not folder.done:
                raise FileError(f"{folder.path} is not done: finish it with `esper resume` first")
        asked = self.asked(folders, fleets)
        files = [path if path.is_file() else path / CONTROLLER for path in runs]
        require_different(files)
        for path in files:
            load_controller(path)  # what cannot be used is refused before a folder is made
        background = replace(cost(folders), held=self.held(asked))
        place = self.place(folders, asked)
        hold = self.hold_in_parts if self.many.is_asked_for else self.hold
        if place is None:
            hold(asked, files, background)
        else:
            with place.alone():
                hold(asked, files, background, place)
                report = write_report(place)
            if report and not self.json:
                print(f"report: {report}")

    def hold(
        self, asked: Recipe, files: Sequence[Path], background: Background, place: RunFolder | None = None
    ) -> None:
        """Run all exams in this process; what an interrupted one had chosen is kept."""
        guests, tell = [read_plan(path) for path in self.plan], literal_console(stderr=True).log
        fleets = self.examined(asked, tell)
        config = self.config(len(fleets))
        policies = [LearnedPolicy(load_controller(path).to(asked.engine.place())) for path in files]
        choices = None if place is None else place.choices(self.question(asked, files))
        self.keep(held_one_by_one(asked, policies, config, guests, fleets, tell, choices, background), place)
        if choices is not None:
            choices.forget()

    def hold_in_parts(
        self, asked: Recipe, files: Sequence[Path], background: Background, place: RunFolder | None = None
    ) -> None:
        """Run all exams part by part, in many processes; what was played before an interruption is kept."""
        fleets = self.examined(asked, literal_console(stderr=True).log)
        question = Question(
            recipe=asked,
            fleets=tuple(fleets),
            config=self.config(len(fleets)),
            controllers=tuple(files),
            plans=self.plan,
        )
        with TemporaryDirectory() as nowhere:
            name = replace(self, given=tuple(without_flags(self.given))).question(asked, files)[:16]
            folder = Path(nowhere) if place is None else place.path / PARTS / name
            self.keep(held_in_parts(question, background, folder, self.many), place)
            forget(folder)

    def keep(self, held: Iterable[tuple[ExamReport, list[Life]]], place: RunFolder | None) -> None:
        """Show and store each exam as soon as it ends."""
        exams, lives, runs = [], [], [str(path) for path in self.runs or (self.shipped,)]
        for exam, episodes in held:
            exams.append(exam)
            lives += episodes
            if place:
                place.keep_exam(exams, lives, runs)
            if self.json:
                print(json_module.dumps(jsonable(plain_exam(exams[-1]))))
            else:
                show_exam(exams[-1], literal_console())
        if place is None and any(exam.final for exam in exams):
            literal_console(stderr=True).log("the result of this final exam is stored nowhere: add --out next time")

    def examined(self, asked: Recipe, tell: Tell) -> list[FleetConfig]:
        """Return the settings to examine on; a quick exam takes a few of the recipe's and reports how many."""
        fleets = self.settings()
        if fleets or not self.quick:
            return fleets or list(asked.fleets)
        fleets = few(asked.fleets)
        if len(fleets) < len(asked.fleets):
            tell(f"{len(fleets)} of the {len(asked.fleets)} settings of {asked.name}; choose others with --tasks")
        return fleets

    def config(self, settings: int) -> ExamConfig:
        """Return how thorough the exam is, given the number of its settings."""
        return quick(self.exam, settings) if self.quick else self.exam

    def question(self, asked: Recipe, files: Sequence[Path]) -> str:
        """Return a hash of the command, the machine and the content of all files: equal where choices can be reused."""
        where = {name: value for name, value in self.environment(asked).items() if name != "id"}
        read = [path for path in (*files, *self.plan, self.images, self.text) if path and path.exists()]
        return hashlib.sha256(b"".join([json_module.dumps(where).encode(), *map(digest, read)])).hexdigest()

    def held(self, asked: Recipe) -> str:
        """Return the line that says when, where and how an exam was held."""
        where = self.environment(asked)
        commit = f"commit {where['git'][:7]}{'+' * where['git'].endswith('+')}" if where["git"] else where["esper"]
        return f"Held on {datetime.now(UTC):%Y-%m-%d} with {commit} on {where['device']}: {where['command']}"

    def environment(self, asked: Recipe) -> dict[str, Any]:
        return environment(asked.engine.device_name, torch.get_num_threads(), shlex.join(["esper", *self.given]))

    def place(self, folders: Sequence[RunFolder], asked: Recipe) -> RunFolder | None:
        """Return the folder that stores the exam, if any; a new one is created before the exam begins."""
        if self.out is None:
            return folders[0] if self.runs and folders else None
        if (self.out / "config.json").exists():
            return RunFolder.open(self.out)
        return RunFolder.create(self.out, asked.plain(), self.environment(asked))

    def settings(self) -> list[FleetConfig]:
        """Return the settings asked for; by default those that the shipped controller was not trained on."""
        if self.budgeted:
            return self.on_a_budget()
        asked = chosen(self.tasks, self.images, self.text)
        return asked or ([] if self.runs else chosen(HELD_OUT))

    def on_a_budget(self) -> list[FleetConfig]:
        """Return the settings with a budget that are asked for; by default a few small ones."""
        if self.images is not None:
            raise EsperError("--images does not work with --budgeted: examine on --text or --tasks")
        own = [] if self.text is None else [budgeted_text(self.text)]
        names = self.tasks or (() if own else QUICK_BUDGETED if self.quick else (*BUDGETED,))
        return [*(budgeted(*names) if names else ()), *own]

    def asked(self, folders: Sequence[RunFolder], fleets: Sequence[FleetConfig]) -> Recipe:
        """Return the recipe to examine under: the first run's, or one made of the settings for controller files."""
        if not folders and not fleets:
            raise EsperError("a controller file names no settings to examine it on: add --tasks, --images or --text")
        found = Recipe.revived(folders[0].config()) if folders else Recipe(name="exam", fleets=tuple(fleets))
        if self.device is not None:
            found = replace(found, engine=Engine.on(self.device))
        elif not self.runs:
            found = replace(found, engine=Engine())
        if self.memory_budget is not None:
            found = replace(found, engine=replace(found.engine, memory_budget=size_in_bytes(self.memory_budget)))
        return found


def plain_exam(exam: ExamReport) -> dict[str, Any]:
    """Return an exam as plain data. Every arm has its mean score, and `vs`: the policy's J minus the arm's."""
    plain = asdict(exam)
    for arm, told in zip(exam.arms, plain["arms"], strict=True):
        told |= {"score": sum(arm.scores) / len(arm.scores), "vs": told["difference"]}
    return plain


def few(fleets: Sequence[FleetConfig], most: int = 6) -> list[FleetConfig]:
    """Return at most `most` of the fleets, evenly spread."""
    count = min(len(fleets), most)
    return [fleets[n * len(fleets) // count] for n in range(count)]


def cost(folders: Sequence[RunFolder]) -> Background:
    """Return what the trainings cost, warm starts and the runs they continue included: no other arm had that."""
    every, starts = [r for folder in folders for r in folder.reports()], [folder.start() for folder in folders]
    return Background(
        settings=len(Recipe.revived(folders[0].config()).learned_from) if folders else 0,
        lives=sum(report.episodes for report in every) + sum(start["lives"] for start in starts),
        decisions=sum(report.decisions for report in every) + sum(start["decisions"] for start in starts),
        seconds=sum(sum(report.seconds.values()) for report in every) + sum(start["seconds"] for start in starts),
    )
