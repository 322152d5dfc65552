"""What `esper` can do, one record each."""

import json as json_module
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table
from tyro.conf import OmitArgPrefixes, OmitSubcommandPrefixes, subcommand

from esper.cli.bench_fleet import BenchFleet
from esper.cli.bench_ppo import BenchPPO
from esper.cli.bench_precision import BenchPrecision
from esper.kasmina import blueprint, blueprint_names
from esper.leyline.specs import Stream
from esper.tasks import task_names


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Measure this machine."""

    what: (
        Annotated[BenchFleet, subcommand("fleet", description=BenchFleet.__doc__)]
        | Annotated[BenchPPO, subcommand("ppo", description=BenchPPO.__doc__)]
        | Annotated[BenchPrecision, subcommand("precision", description=BenchPrecision.__doc__)]
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
    Annotated[Bench, subcommand("bench", description=Bench.__doc__)]
    | Annotated[Tasks, subcommand("tasks", description=Tasks.__doc__)]
    | Annotated[Blueprints, subcommand("blueprints", description=Blueprints.__doc__)]
)


def parse(arguments: Sequence[str]) -> Bench | Tasks | Blueprints:
    return tyro.cli(
        Command,  # pyright: ignore[reportArgumentType]
        prog="esper",
        description="Neural networks that start small and grow themselves while they train, only where growth pays.",
        args=list(arguments),
        config=(OmitArgPrefixes, OmitSubcommandPrefixes),
    )
