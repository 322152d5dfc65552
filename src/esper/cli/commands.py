"""The commands of `esper`; the module of a command, and with it torch, is imported only when that command runs."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib import import_module
from inspect import getdoc
from textwrap import fill
from typing import Annotated, Any, NoReturn, Protocol, Union, runtime_checkable

from esper import __version__
from esper.leyline.errors import EsperError, unknown


@runtime_checkable
class Runnable(Protocol):
    """A parsed command."""

    def run(self) -> None: ...


@dataclass(frozen=True)
class Command:
    """A command: the module and class that parse and run it, and the first sentence of that class's docstring."""

    module: str
    name: str
    summary: str

    def load(self) -> Any:
        """Import the command's class."""
        return getattr(import_module(f"esper.cli.{self.module}"), self.name)


@dataclass(frozen=True)
class Group:
    """Commands that share their first word."""

    summary: str
    commands: "Mapping[str, Command | Group]"


DESCRIPTION = "Train neural networks that start small and grow while they train."
COMMANDS: dict[str, Command | Group] = {
    "train": Command("train", "Train", "Train a controller with a recipe, and write a run folder."),
    "resume": Command("train", "Resume", "Continue a run from its last checkpoint."),
    "tune": Command("tune", "Tune", "Search for the best values of fields by successive halving."),
    "watch": Command("watch", "Watch", "Show the progress of a run from another terminal."),
    "ui": Command("ui", "Ui", "Show runs and growth logs as a live page in the browser."),
    "report": Command("report", "Report", "Write the report of a run as one HTML file."),
    "exam": Command("exam", "Exam", "Compare a controller with baseline policies on fresh hosts."),
    "recipes": Command("lists", "Recipes", "List the recipes of `esper train`, or show one in full."),
    "tasks": Command("lists", "Tasks", "List the tasks that hosts can be trained on."),
    "blueprints": Command("lists", "Blueprints", "List the blueprints, the kinds of seeds, of each stream."),
    "bench": Group(
        "Measure the speed of this machine.",
        {
            "fleet": Command("bench", "BenchFleet", "Measure how fast hosts train, one by one and as a fleet."),
            "profile": Command("bench", "BenchProfile", "Measure where the time of a fleet goes."),
            "ppo": Command("bench", "BenchPPO", "Measure one PPO update beside those of sb3-contrib."),
            "precision": Command("bench", "BenchPrecision", "Compare bf16 with fp32 on equal hosts; needs a GPU."),
            "grow": Command("bench", "BenchGrow", "Measure what growth costs a training step while nothing grows."),
        },
    ),
}
WIDTH = 80
"""Columns of help texts."""
HELP = ("-h", "--help")
FLAGS = {
    "--help": "Show this help; after a command, the help of that command.",
    "--version": "Print the version.",
    "--debug": "Show the traceback of an error; may stand anywhere.",
}
WITH_RECIPE = ("esper train", "esper tune")
"""Commands whose flags are also those of a recipe."""
COMPLETION = ("--tyro-print-completion", "--tyro-write-completion")
"""Flags of tyro that write completions for a shell, which need the flags of all commands."""


def parse(arguments: Sequence[str]) -> Runnable:
    """Return the command that the arguments ask for, or print help or the version and exit."""
    if arguments and arguments[0] in COMPLETION:
        return _parse_all(arguments)
    if arguments and arguments[0] == "--version":
        _print_and_exit(f"esper {__version__}")
    command, words, rest = Group(DESCRIPTION, COMMANDS), ["esper"], list(arguments)  # pyright: ignore
    while isinstance(command, Group):
        if not rest or rest[0] in HELP:
            _print_and_exit(overview(command, " ".join(words)), code=0 if rest else 2)
        if rest[0] not in command.commands:
            raise misspelt(rest[0], command.commands, " ".join(words))
        words.append(rest.pop(0))
        command = command.commands[words[-1]]
    return _parse_one(command.load(), " ".join(words), rest, arguments)


def _print_and_exit(text: str, code: int = 0) -> NoReturn:
    print(text, file=sys.stderr if code else sys.stdout)
    raise SystemExit(code)


def misspelt(word: str, commands: Mapping[str, object], before: str) -> EsperError:
    """Return the error for a word that is neither a command nor a flag, with a suggestion."""
    is_flag = word.startswith("-")
    if is_flag and not get_close_matches(word, FLAGS):
        return EsperError(f"unknown flag {word!r}: flags of a command stand after it, as in `{before} COMMAND {word}`.")
    return unknown("flag" if is_flag else "command", word, FLAGS if is_flag else commands)


def overview(group: Group, prog: str) -> str:
    """Return the help of a group of commands, at most 80 columns wide."""
    flags = FLAGS if prog == "esper" else {"--help": FLAGS["--help"]}
    width = max(map(len, [*group.commands, *flags])) + 2

    def listed(title: str, rows: Mapping[str, str]) -> str:
        return "\n".join([f"{title}:", *(f"  {name:{width}}{summary}" for name, summary in rows.items())])

    parts = [
        f"usage: {prog} COMMAND ...",
        fill(group.summary, WIDTH),
        listed("commands", {name: command.summary for name, command in group.commands.items()}),
        listed("flags", flags),
        f"`{prog} COMMAND --help` shows the flags of a command.",
    ]
    return "\n\n".join(parts)


def _parse_one(kind: Any, prog: str, rest: Sequence[str], arguments: Sequence[str]) -> Runnable:
    """Parse the flags of one command; unknown flags of `train` and `tune` are left for their recipe."""
    import tyro

    summary, *details = (getdoc(kind) or "").split("\n\n")
    details = [fill(text, WIDTH, initial_indent="  ", subsequent_indent="  ") for text in details]
    options: dict[str, Any] = {"prog": prog, "description": "\n".join([summary, *details])}
    options["config"] = (tyro.conf.OmitArgPrefixes,)
    if prog in WITH_RECIPE:
        names = [argument for argument in rest if not argument.startswith("-")]
        if prog == "esper train" and names and {*HELP} & {*rest}:
            from esper.cli.train import print_recipe_help

            print_recipe_help(names[0])
            raise SystemExit(0)
        command, changes = tyro.cli(kind, args=list(rest), return_unknown_args=True, **options)
        return replace(command, changes=tuple(changes))
    command = tyro.cli(kind, args=list(rest), **options)
    return replace(command, given=tuple(arguments)) if prog == "esper exam" else command


def _parse_all(arguments: Sequence[str]) -> Runnable:
    """Let tyro see all commands at once, which imports all of their modules."""
    import tyro

    def union(commands: Mapping[str, Command | Group]) -> Any:
        kinds = (union(c.commands) if isinstance(c, Group) else c.load() for c in commands.values())
        named = [Annotated[kind, tyro.conf.subcommand(name)] for kind, name in zip(kinds, commands, strict=True)]
        return Union[tuple(named)]  # noqa: UP007

    return tyro.cli(union(COMMANDS), args=list(arguments), prog="esper", config=(tyro.conf.OmitArgPrefixes,))
