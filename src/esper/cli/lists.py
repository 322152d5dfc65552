"""`esper recipes`, `esper tasks` and `esper blueprints`: list what can be named in other commands."""

import json as json_module
from dataclasses import dataclass
from inspect import getdoc
from typing import Annotated

from tyro.conf import Positional

from esper.cli.console import print_table
from esper.cli.flags import Flag, optional


@dataclass(frozen=True, kw_only=True)
class Recipes:
    """List the recipes of `esper train`, or show one in full."""

    name: Annotated[str | None, Positional, optional("[NAME]", "list all")] = None
    """Recipe to show in full."""
    json: Flag = False
    """Print one JSON object."""

    def run(self) -> None:
        from esper.recipes import RECIPES, recipe

        if self.name is not None:
            print(json_module.dumps(recipe(self.name).plain(), indent=None if self.json else 2))
            return
        rows = [(name, *summary_and_time(getdoc(make) or "", make().engine.device)) for name, make in RECIPES.items()]
        if self.json:
            print(json_module.dumps({name: {"summary": summary, "takes": time} for name, summary, time in rows}))
        else:
            print_table(("recipe", "takes", "trains on"), [(name, time, summary) for name, summary, time in rows])


def summary_and_time(doc: str, device: str) -> tuple[str, str]:
    """Split a recipe's docstring, such as "Spirals with tiny hosts; 5 minutes on 2 CPU cores.", at its semicolon."""
    summary, _, time = doc.partition("\n\n")[0].replace("\n", " ").rstrip(".").rpartition("; ")
    if not summary:
        return time, "for a GPU" if device.startswith("cuda") else "for the CPU"
    return summary, time


@dataclass(frozen=True, kw_only=True)
class Tasks:
    """List the tasks that hosts can be trained on."""

    json: Flag = False
    """Print one JSON array."""

    def run(self) -> None:
        from esper.tasks.registry import task_names, task_summary

        rows = [(name, task_summary(name)) for name in task_names()]
        if self.json:
            print(json_module.dumps([{"name": name, "summary": summary} for name, summary in rows]))
        else:
            print_table(("task", "what it is"), rows)


@dataclass(frozen=True, kw_only=True)
class Blueprints:
    """List the blueprints, the kinds of seeds, of each stream."""

    json: Flag = False
    """Print one JSON array."""

    def run(self) -> None:
        from esper.kasmina import blueprint, blueprint_names
        from esper.leyline.specs import Stream

        specs = [blueprint(name, stream).spec for stream in Stream for name in blueprint_names(stream)]
        if self.json:
            print(json_module.dumps([{"stream": s.stream, "name": s.name, "summary": s.summary} for s in specs]))
        else:
            print_table(("stream", "blueprint", "what it is"), [(s.stream, s.name, s.summary) for s in specs])
