"""Trials of a search: trainings of one recipe with different values, compared after the same numbers of updates."""

import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from esper.jobs import Job
from esper.leyline.atomic import replace_file
from esper.leyline.errors import EsperError, FileError, unknown
from esper.recipes import Recipe
from esper.telemetry import RunFolder

WORST = -1e30
"""J of a trial in which no episode has ended."""
Value = str | int | float | bool | None


@dataclass(frozen=True)
class Trial:
    """One training of a search."""

    number: int
    """Its number, from 1; its run folder has this name."""
    values: Mapping[str, Value]
    """The values that it tries, by field."""
    recipe: Recipe
    folder: Path

    def rung_path(self, until: int) -> Path:
        """Return the file of the trial's result after so many updates."""
        return self.folder / f"rung-{until:06d}.json"

    def result(self, until: int) -> float | None:
        """Return the mean J of the updates since the rung before; None if the trial has not come so far."""
        path = self.rung_path(until)
        if not path.exists():
            return None
        try:
            return float(json.loads(path.read_text(encoding="utf-8"))["j"])
        except (ValueError, TypeError, KeyError) as error:
            raise FileError(f"{path} is damaged, remove it: {error!r}") from None

    def job(self, search: "Search", n: int) -> Job:
        """Return the job that trains until the n-th rung."""
        rungs = search.rungs
        given = {
            "folder": str(self.folder.absolute()),
            "recipe": self.recipe.plain(),
            "between": [rungs[n - 1] if n else 0, rungs[n]],
            "command": search.command,
        }
        return Job(
            name=f"trial {self.number} until update {rungs[n]}",
            function="esper.cli.trials:train_until",
            given=given,
            done=self.rung_path(rungs[n]),
            log=self.folder.with_name(f"{self.number}.log"),
        )


def train_until(folder: str, recipe: Mapping[str, Any], between: Sequence[int], command: str) -> None:
    """Train into a run folder until a number of updates, or go on with it, and write the trial's result there."""
    import torch

    from esper.cli.desk import Logging
    from esper.cli.loop import go_on, pick_up
    from esper.cli.train import warnings_once
    from esper.telemetry.folder import environment

    run, asked, (start, until) = RunFolder(Path(folder)), Recipe.revived(recipe), between
    with run.alone(), warnings_once():
        if not (run.path / "config.json").exists():
            known = environment(asked.engine.device_name, torch.get_num_threads(), command)
            RunFolder.create(run.path, asked.plain(), known)
        if len(run.reports()) < until or (until == asked.updates and not run.done):
            go_on(run, asked, Logging(), pick_up(run, asked), until=until)
        reports = run.reports()[start:until]
    if start + len(reports) == until and (until < asked.updates or run.done):
        found = [report.objective for report in reports if report.objective is not None]
        j = mean(found) if found else WORST
        replace_file(run.path / f"rung-{until:06d}.json", json.dumps({"updates": until, "j": j}))


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search by successive halving (arXiv:1502.07943): after each rung only the best trials go on."""

    trials: Sequence[Trial]
    rungs: Sequence[int]
    """Numbers of updates after which trials are compared; the last is that of all updates."""
    factor: int
    """Of the trials of one rung, one in so many reaches the next."""
    command: str = ""
    """The command that makes the trials."""

    def halved(self, done: Callable[[Sequence[Job]], Sequence[Job]]) -> bool:
        """Train rung by rung, and return whether the search has ended; `done` does jobs and returns those it did."""
        left = list(self.trials)
        for n, until in enumerate(self.rungs):
            jobs = [trial.job(self, n) for trial in left]
            if len(done(jobs)) < len(jobs):
                return False
            left = self.best(left, until)
        return True

    def best(self, trials: Sequence[Trial], until: int) -> list[Trial]:
        """Return the trials that go on after a rung: at least one, and of equally good ones the first."""
        if all(trial.result(until) == WORST for trial in trials):
            raise EsperError(f"no episode has ended in any trial after {until} updates: choose a larger --first")
        ranked = sorted(trials, key=lambda trial: (-self.at(trial, until), trial.number))
        return ranked[: max(len(ranked) // self.factor, 1)]

    def at(self, trial: Trial, until: int) -> float:
        """Return J of a trial at a rung; the worst if it has not come so far."""
        j = trial.result(until)
        return WORST if j is None else j

    def reached(self, trial: Trial) -> tuple[int, float]:
        """Return the last rung that a trial has reached, as a number of updates, and its J there."""
        for until in reversed(self.rungs):
            if (j := trial.result(until)) is not None:
                return until, j
        return 0, WORST

    def ranking(self) -> list[Trial]:
        """Return all trials, those first that came furthest, and of these the best."""
        return sorted(self.trials, key=lambda trial: (*(-x for x in self.reached(trial)), trial.number))


def rungs_of(first: int, factor: int, updates: int) -> list[int]:
    """Return after how many updates trials are compared: `first`, then each time `factor` times as many."""
    found = [first]
    while found[-1] * factor < updates:
        found.append(found[-1] * factor)
    return [*(rung for rung in found if rung < updates), updates]


def parsed(over: Sequence[str], plain: Mapping[str, Any]) -> dict[str, list[Value]]:
    """Return the values to try by field, given flags such as `learn.ppo.lr=1e-4,3e-4`.

    Raises:
        EsperError: A flag is no such assignment, or names no field of the recipe.
    """
    found: dict[str, list[Value]] = {}
    for words in over:
        name, is_given, values = words.partition("=")
        if not is_given or not all(values.split(",")):
            raise EsperError(f"--over must be FIELD=VALUE,VALUE,... such as learn.ppo.lr=1e-4,3e-4, not {words!r}")
        if name in found:
            raise EsperError(f"--over names {name} twice: give all of its values at once")
        if name not in (known := leaves(plain)):
            raise unknown("field", name, known)
        found[name] = [_value(text) for text in values.split(",")]
        if len({*found[name]}) < len(found[name]):
            raise EsperError(f"--over names a value of {name} twice: {values}")
    return found


def _value(text: str) -> Value:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, int | float | bool) or value is None else text


def leaves(plain: Any, prefix: str = "") -> list[str]:
    """Return the names of all single values in nested records and lists, such as `fleets.0.hosts`."""
    if isinstance(plain, Mapping | list | tuple):
        parts = plain.items() if isinstance(plain, Mapping) else enumerate(plain)
        return [leaf for name, part in parts for leaf in leaves(part, f"{prefix}.{name}" if prefix else str(name))]
    return [prefix]


def with_values(recipe: Recipe, values: Mapping[str, Value]) -> Recipe:
    """Return a recipe with other values of some fields.

    Raises:
        EsperError: A value is not one that its field can have.
    """
    plain = deepcopy(recipe.plain())
    for name, value in values.items():
        *path, last = name.split(".")
        at: Any = plain
        for part in path:
            at = at[int(part) if isinstance(at, list) else part]
        at[int(last) if isinstance(at, list) else last] = value
    try:
        return Recipe.revived(plain)
    except EsperError as error:
        tried = ", ".join(f"{name}={value}" for name, value in values.items())
        raise EsperError(f"a trial with {tried} is not possible: {error}") from None


def trials_of(recipe: Recipe, over: Mapping[str, Sequence[Value]], folder: Path) -> list[Trial]:
    """Return one trial for every combination of values."""
    found = []
    for number, chosen in enumerate(product(*over.values()), 1):
        values = dict(zip(over, chosen, strict=True))
        found.append(Trial(number, values, with_values(recipe, values), folder / str(number)))
    return found
