"""`esper exam --at-once K` and `--ray`: an exam held in parts, each played by a process of its own."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from esper.cli.many import Many
from esper.exam.arms import admitted
from esper.exam.config import ExamConfig
from esper.exam.files import read_plan
from esper.exam.holding import within_memory
from esper.exam.parts import KeptChoices, Part, SettingParts
from esper.exam.records import Background, ExamReport, Life
from esper.exam.sitting import Sitting
from esper.exam.tuning import Choices, Tell
from esper.jobs import Job
from esper.leyline.atomic import replace_file
from esper.leyline.errors import EsperError
from esper.leyline.json_records import from_json
from esper.recipes import FleetConfig, Recipe
from esper.tamiyo.controller_files import load_controller
from esper.tamiyo.policies import LearnedPolicy

ASKED = "asked.json"


@dataclass(frozen=True, kw_only=True)
class Question:
    """Everything that the result of an exam depends on, as a process needs it to play a part."""

    recipe: Recipe
    fleets: tuple[FleetConfig, ...]
    config: ExamConfig
    controllers: tuple[Path, ...]
    plans: tuple[Path, ...] = ()

    def plain(self) -> dict[str, Any]:
        """Return this question as JSON can hold it; its paths are absolute."""
        return {
            "recipe": self.recipe.plain(),
            "fleets": replace(self.recipe, fleets=self.fleets).plain(),
            "config": asdict(self.config),
            "controllers": [str(path.absolute()) for path in self.controllers],
            "plans": [str(path.absolute()) for path in self.plans],
        }

    @classmethod
    def revived(cls, plain: Mapping[str, Any]) -> "Question":
        """Return the question that `plain` described."""
        return cls(
            recipe=Recipe.revived(plain["recipe"]),
            fleets=Recipe.revived(plain["fleets"]).fleets,
            config=from_json(ExamConfig, plain["config"], "exam"),
            controllers=tuple(map(Path, plain["controllers"])),
            plans=tuple(map(Path, plain["plans"])),
        )

    def setting(self, n: int, folder: Path, part: str = "", tell: Tell = lambda said: None) -> SettingParts:
        """Return the parts of the exam of the n-th setting; choices that one of them makes are kept in the folder."""
        place = self.recipe.engine.place()
        policies = [LearnedPolicy(load_controller(path).to(place)) for path in self.controllers]
        own = folder / str(n)
        choices: Choices = KeptChoices(own, part)
        sitting = Sitting(self.recipe, self.fleets[n], self.config, tell, choices)
        guests = [read_plan(path) for path in self.plans]
        return SettingParts(sitting, policies, admitted(sitting, policies[0].name, guests), own)


def play(folder: str, setting: int, part: str) -> None:
    """Play one part of the exam whose question is in a folder, and write its result there."""
    asked = Question.revived(json.loads((Path(folder) / ASKED).read_text(encoding="utf-8"))["question"])
    asked.setting(setting, Path(folder), part, lambda said: print(said, flush=True)).play(part)


def held_in_parts(
    asked: Question, background: Background, folder: Path, many: Many
) -> Iterator[tuple[ExamReport, list[Life]]]:
    """Yield the exam of each setting as soon as all of its parts have been played, in the order of the settings.

    Args:
        asked: The exam.
        background: What its reports say besides; that of the first call, if the exam was interrupted.
        folder: Folder of the parts' results: those that are there are not played again.
        many: How the parts are played.

    Raises:
        EsperError: An arm cannot take part, a part has failed, or a signal has stopped the exam.
    """
    settings = [asked.setting(n, folder) for n in range(len(asked.fleets))]
    jobs = [[job_of(folder, n, part) for part in parts.parts] for n, parts in enumerate(settings)]
    count, device = sum(map(len, jobs)), asked.recipe.engine.device
    engine = within_memory(asked.recipe.engine, many.sharing(count, device))
    background = begun(folder, replace(asked, recipe=replace(asked.recipe, engine=engine)), background)
    next_one = 0
    for _ in many.done([job for own in jobs for job in own], device):
        while next_one < len(jobs) and all(job.is_done for job in jobs[next_one]):
            yield settings[next_one].report(background)
            next_one += 1
    if next_one < len(jobs):
        raise EsperError("stopped: the same command goes on with what is left")


def begun(folder: Path, asked: Question, background: Background) -> Background:
    """Write down what is asked, and return the background; if both were written by an earlier call, that one."""
    path = folder / ASKED
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))
        return from_json(Background, found["background"], "background")
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps({"question": asked.plain(), "background": asdict(background)}))
    return background


def job_of(folder: Path, n: int, part: Part) -> Job:
    """Return the job that plays a part of the n-th setting."""
    own = folder.absolute() / str(n)
    return Job(
        name=f"setting {n + 1}, {part.name}",
        function="esper.cli.exam_parts:play",
        given={"folder": str(folder.absolute()), "setting": n, "part": part.name},
        done=part.path(own),
        log=part.path(own).with_suffix(".log"),
        after=tuple(f"setting {n + 1}, {name}" for name in part.after),
    )


def forget(folder: Path) -> None:
    """Remove the results of the parts of an exam that has ended."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # others are there
        folder.parent.rmdir()


def without_flags(given: Sequence[str]) -> list[str]:
    """Return the arguments of a command without those that only say how its jobs are done."""
    kept, words = list[str](), iter(given)
    for word in words:
        name = word.partition("=")[0].replace("_", "-")
        if name in ("--at-once", "--threads", "--address"):
            if "=" not in word:
                next(words, None)
        elif word != "--ray":
            kept.append(word)
    return kept
