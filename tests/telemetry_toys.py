"""Reports for tests of what leaves a run."""

import dataclasses
import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

from esper.exam.records import ArmReport, ExamReport, Interval, Life
from esper.leyline.reports import EpochReport, GardenReport, HeadReport, LifeReport, UpdateReport
from esper.leyline.tensor_files import read
from esper.tamiyo.controller_files import CONTROLLER_FORMAT
from esper.telemetry import RunFolder


def lives(update: int) -> tuple[LifeReport, ...]:
    return tuple(LifeReport(update, host, 0.5, 0.6, 1.5, sick=host > 0) for host in range(2))


def garden() -> GardenReport:
    """Two decisions of a fleet of two hosts with one slot; in the first host a twin is heard after it was planted."""
    return GardenReport(
        0, "toy, gpt 8", ("s0",), 2, ("D0D0", "b4D0"), ("GW", "WW"), ((0.1, 0.2), (0.3, 0.4)), ((0, 1), ())
    )


def needed_fields(kind: type) -> list[dataclasses.Field[Any]]:
    """The fields of a report that have no default."""
    fields, missing = dataclasses.fields(kind), dataclasses.MISSING
    return [field for field in fields if field.default is missing and field.default_factory is missing]


def report(update: int, **values: Any) -> UpdateReport:
    numbers: dict[str, Any] = {f.name: 1 if f.type is int else 0.5 for f in needed_fields(UpdateReport)}
    head = HeadReport("op", 1, None, None, None, None, None, 0.1, 0.1)
    known = {"update": update, "heads": (head,), "ops": {}, "seconds": {}, "stopped": None, "lives": lives(update)}
    known |= {"garden": (garden(),), "planted": {"twin": 1}}
    return UpdateReport(**(numbers | known | values))


def arm(name: str, *vs: float) -> ArmReport:
    """An arm of an exam; with how far the policy under test is above it, if it is another."""
    known = (Interval(*vs), 0.5, 0.01) if vs else (None, None, None)
    return ArmReport(name, 0.5, 0.5, Interval(0.5, 0.4, 0.6), 0.5, 100, 1.0, 1e9, 0.0, 0.01, 12, 0, *known)


def exam(*arms: ArmReport) -> ExamReport:
    return ExamReport("digits", "cnn2d 8-8", "accuracy", 30, 1, "test", 12, 0.02, "learned", arms)


def life(*ops: str) -> Life:
    """A life of that exam under the policy under test, in which this was done."""
    epochs = (EpochReport(n, op, False, 1.0, 1.1, 0.5, 0.5, 100, 0.0, 1000, ()) for n, op in enumerate(ops))
    return Life("digits", "cnn2d 8-8", "learned", 0, tuple(epochs))


def timeless_exams(folder: Path) -> list[ExamReport]:
    """A run's exams, apart from how long everything took."""
    replace = dataclasses.replace
    return [
        replace(exam, seconds=0.0, arms=tuple(replace(arm, seconds=0.0) for arm in exam.arms))
        for exam in RunFolder.open(folder).exams()
    ]


SMALL = ("--learn.updates", "3", "--fleets.0.hosts", "2", "--fleets.0.env.group", "1", "--fleets.0.env.episode", "3")
SMALL += (
    "--learn.collect.horizon",
    "2",
    "--fleets.0.options.examples",
    "200",
    "--exam",
    "2",
    "--checkpoint-every",
    "2",
)
"""Flags that make a recipe as small as can be. Rollouts end in the middle of lives."""

MAIN = "import sys; sys.modules['matplotlib'] = None; import torch; torch.set_num_threads(1); "
MAIN += "from esper.cli import main; main(sys.argv[1:])"
"""The command line in a process of its own, where nothing can be drawn."""


def small_run(base: Path, copy: Path) -> Path:
    """A copy of a run that is done. The run is made once in a process, under `base`."""
    shutil.copytree(_small_run(base), copy)
    return copy


@cache
def _small_run(base: Path) -> Path:
    from esper.cli.train import Train

    Train(recipe="smoke", run_dir=base / "small", changes=SMALL).run()
    return base / "small"


def reports_of(folder: Path) -> list[dict[str, Any]]:
    """The updates in a run's log, apart from how long they took."""
    lines = (folder / "reports.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def same_runs(one: Path, other: Path, *controllers: str) -> None:
    """Assert that two runs have logged the same and ended with the same controller, and with these ones."""
    assert reports_of(one) == reports_of(other)
    assert timeless_exams(one) == timeless_exams(other)
    for name in ("episodes.jsonl", "garden.jsonl", "lives.jsonl"):
        contents = [path.read_bytes() if path.exists() else None for path in (one / name, other / name)]
        assert contents[0] == contents[1], name
    for file in ("controller.safetensors", *controllers):
        weights, others = (read(folder / file, CONTROLLER_FORMAT)[0] for folder in (one, other))
        assert weights.keys() == others.keys()
        for name, tensor in weights.items():
            assert tensor.equal(others[name]), name
