"""What `esper` can do, one record each."""

import json as json_module
from collections.abc import Sequence
from dataclasses import dataclass, replace
from inspect import getdoc
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table
from tyro.conf import OmitArgPrefixes, OmitSubcommandPrefixes, subcommand

from esper.cli.bench_fleet import BenchFleet
from esper.cli.bench_ppo import BenchPPO
from esper.cli.bench_precision import BenchPrecision
from esper.cli.look import Exam, Report, Watch
from esper.cli.train import Recipes, Resume, Train, print_recipe_help
from esper.kasmina import blueprint, blueprint_names
from esper.leyline.specs import Stream
from esper.tasks import task_names


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Measure this machine."""

    what: (
        Annotated[BenchFleet, subcommand("fleet", description=getdoc(BenchFleet))]
        | Annotated[BenchPPO, subcommand("ppo", description=getdoc(BenchPPO))]
        | Annotated[BenchPrecision, subcommand("precision", description=getdoc(BenchPrecision))]
    )

    def run(self) -> None:
        self.what.run()


@dataclass(frozen=True, kw_only=True)
class Tasks:
    """The tasks that hosts can be trained on."""

    json: bool = False
    """Print one JSON array."""

    def run(self) -> None:
        print(json_module.dumps(task_names()) if self.json else "\n".join(task_names()))


@dataclass(frozen=True, kw_only=True)
class Blueprints:
    """The kinds of seeds, by the stream they can live in."""

    json: bool = False
    """Print one JSON array."""

    def run(self) -> None:
        specs = [blueprint(name, stream).spec for stream in Stream for name in blueprint_names(stream)]
        if self.json:
            print(json_module.dumps([{"stream": s.stream, "name": s.name, "summary": s.summary} for s in specs]))
            return
        table = Table("stream", "blueprint", "what it is")
        for spec in specs:
            table.add_row(spec.stream, spec.name, spec.summary)
        Console().print(table)


Command = (
    Annotated[Train, subcommand("train", description=getdoc(Train))]
    | Annotated[Resume, subcommand("resume", description=getdoc(Resume))]
    | Annotated[Watch, subcommand("watch", description=getdoc(Watch))]
    | Annotated[Report, subcommand("report", description=getdoc(Report))]
    | Annotated[Exam, subcommand("exam", description=getdoc(Exam))]
    | Annotated[Recipes, subcommand("recipes", description=getdoc(Recipes))]
    | Annotated[Bench, subcommand("bench", description=getdoc(Bench))]
    | Annotated[Tasks, subcommand("tasks", description=getdoc(Tasks))]
    | Annotated[Blueprints, subcommand("blueprints", description=getdoc(Blueprints))]
)
AnyCommand = Train | Resume | Watch | Report | Exam | Recipes | Bench | Tasks | Blueprints


def parse(arguments: Sequence[str]) -> AnyCommand:
    """The command; what `train` does not know itself are flags of its recipe."""
    options = {
        "prog": "esper",
        "description": "Neural networks that start small and grow themselves while they train, only where growth pays.",
        "config": (OmitArgPrefixes, OmitSubcommandPrefixes),
    }
    if "train" in arguments[:1]:
        named = [argument for argument in arguments[1:] if not argument.startswith("-")][:1]
        if named and {"-h", "--help"} & set(arguments):
            print_recipe_help(named[0])
            raise SystemExit(0)
        known, rest = tyro.cli(Command, args=list(arguments), return_unknown_args=True, **options)  # pyright: ignore
        return replace(known, changes=tuple(rest))
    found = tyro.cli(Command, args=list(arguments), **options)  # pyright: ignore[reportCallIssue]
    return replace(found, given=tuple(arguments)) if isinstance(found, Exam) else found
