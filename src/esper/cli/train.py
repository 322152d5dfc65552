"""`esper train` and `esper resume`."""

import json as json_module
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from tyro.conf import OmitArgPrefixes

from esper.cli.cluster import Cluster
from esper.cli.console import literal_console
from esper.cli.desk import Logging
from esper.cli.flags import optional
from esper.cli.loop import Position, complete, go_on, pick_up
from esper.cli.many import Many
from esper.cli.ray_train import PATIENCE, OnRay, train_on_ray
from esper.cli.workers import asks_for_workers, is_worker, launch, together, were_restarted
from esper.leyline.errors import EsperError, FileError
from esper.recipes import Recipe, recipe
from esper.recipes.warm_start import folder_of
from esper.simic.messages import from_first
from esper.simic.workers import ALONE, Workers
from esper.tamiyo.controller_files import load_controller
from esper.tamiyo.features import HIDEABLE
from esper.tasks import load_task
from esper.telemetry import RunFolder
from esper.telemetry.folder import environment
from esper.tolaria import Engine


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train a controller with a recipe, and write a run folder.

    A run can be stopped and resumed at any time. Every field of a recipe is a flag, such as `--learn.updates 10`:
    `esper train RECIPE --help` explains them, and `esper recipes RECIPE` shows their values.
    """

    recipe: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")]
    """Name of a recipe; `esper recipes` lists them."""
    run_dir: Annotated[Path | None, optional("FOLDER", "a new folder under runs/")] = None
    """Folder of the run."""
    rng_seed: Annotated[int | None, optional("N", "the recipe's")] = None
    """Random seed of the controller, its learning and its hosts."""
    device: Annotated[str | None, optional("DEVICE", "the recipe's")] = None
    """Device to run on, with its usual precision: cpu (fp32) or cuda (bf16)."""
    workers: Annotated[int | None, optional("N", "1")] = None
    """Processes on this machine that train the controller together, each on its share of the recipe's fleets."""
    on_ray: OmitArgPrefixes[OnRay] = OnRay()
    trainings: Annotated[int | None, optional("N", "one training, into the folder itself")] = None
    """Independent trainings, with random seeds 1 to N, into the folders 1 to N of the run's folder."""
    many: OmitArgPrefixes[Many] = Many()
    logging: OmitArgPrefixes[Logging] = Logging()
    changes: tyro.conf.Suppress[tuple[str, ...]] = field(default=())
    """Flags of the recipe."""

    def run(self) -> None:
        if self.trainings is not None:
            from esper.cli.trainings import train_all

            return train_all(self, self.trainings, self.many)
        self.many.require_unused("--trainings")
        size, cluster = self.workers or 1, self.many.cluster
        self.on_ray.check(cluster, size)
        if not (asks_for_workers(self.workers) or cluster.ray):
            return together(self.again if were_restarted() else self.train, "--debug" in sys.argv)
        asked = self.asked()
        self.logging.check()
        require_fleets(asked, size)
        path = self.folder(asked)
        if (path / "config.json").exists():
            raise FileError(f"{path} holds a run already: resume it, or choose another run_dir")
        start_workers(self.on_ray, cluster, asked, self.arguments(path.resolve() if cluster.ray else path), size, path)

    def folder(self, asked: Recipe) -> Path:
        """Return the folder of the run."""
        return self.run_dir or Path("runs") / f"{asked.name}-{datetime.now():%Y%m%d-%H%M%S}"

    def train(self, workers: Workers) -> None:
        """Begin a run, as one of these workers; the first one writes it down."""
        with warnings_once(), ExitStack() as held:
            asked = agreed(workers, self.asked)
            require_fleets(asked, workers.size)
            self.logging.check()
            training = asked.stages[0].build(workers)
            for stage in asked.stages[1:]:
                for fleet in workers.share(stage.fleets):
                    load_task(fleet.task, **fleet.options)  # what cannot be loaded is refused before training begins
            folder = None
            if workers.is_first:
                device, command = asked.engine.device_name, self.command(workers.size)
                known = environment(device, torch.get_num_threads(), command, workers.size)
                path = self.folder(asked)
                held.enter_context(RunFolder(path).alone())
                folder = RunFolder.create(path, asked.plain(), known)
            go_on(folder, asked, self.logging, Position(0, training), workers)

    def again(self, workers: Workers) -> None:
        """Begin a run, or go on with it, as workers do that were started again after some were lost."""
        path, is_begun = self.run_dir, False
        if workers.is_first and path is not None and (path / "config.json").exists():
            is_begun = True
            RunFolder(path).wait_until_free(PATIENCE)
        if workers.any(is_begun):
            Resume(run_dir=path or Path(), logging=self.logging).resume(workers)
        else:
            self.train(workers)

    def arguments(self, path: Path) -> list[str]:
        """Return the arguments of `esper` for a worker of this run."""
        own = ["--run-dir", str(path), *self._plain_flags(), *self.logging.arguments()]
        return ["train", self.recipe, *own, *self.changes]

    def _plain_flags(self) -> list[str]:
        seed = () if self.rng_seed is None else ("--rng-seed", str(self.rng_seed))
        return [*seed, *(() if self.device is None else ("--device", self.device))]

    def command(self, workers: int = 1) -> str:
        """Return the command that makes this run again."""
        several = () if workers == 1 else ("--workers", str(workers))
        return shlex.join(["esper", "train", self.recipe, *self._plain_flags(), *several, *self.changes])

    def asked(self) -> Recipe:
        """Return the recipe with its flags applied."""
        plain = recipe(self.recipe)
        self._suggest(plain)
        if self.device is not None:
            usual = Engine.on(self.device)
            plain = replace(plain, engine=replace(plain.engine, device=usual.device, precision=usual.precision))
        changed = tyro.cli(Recipe, default=plain, args=list(self.changes), prog=f"esper train {self.recipe}")
        if changed.warm_start.run:
            changed = continued(changed, plain)
        return changed if self.rng_seed is None else changed.seeded(self.rng_seed)

    def _suggest(self, plain: Recipe) -> None:
        """Refuse a misspelt flag of `train` itself, which the parser of the recipe's flags cannot know."""
        own = ("--run-dir", "--rng-seed", "--device", "--workers", "--log", "--json", "--heads")
        own = (*own, "--ray", "--address", "--least", "--failures", "--trainings", "--at-once", "--threads")
        for flag in (change.partition("=")[0] for change in self.changes if change.startswith("--")):
            close = get_close_matches(flag.replace("_", "-"), own, n=1, cutoff=0.75)
            if close and flag.removeprefix("--").partition(".")[0] not in plain.plain():
                raise EsperError(f"unknown flag {flag}: did you mean {close[0]}?")


def print_recipe_help(name: str) -> None:
    """Print the flags of `esper train NAME`: those of the command, then every field of the recipe."""
    plain = recipe(name)
    with suppress(SystemExit):
        tyro.cli(Train, args=["--help"], prog=f"esper train {name}", config=(OmitArgPrefixes,))
    print(f"Fields of the recipe {name}, each of them a flag:\n")
    with suppress(SystemExit):
        tyro.cli(Recipe, default=plain, args=["--help"], prog=f"esper train {name}", description="")


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Continue a run from its last checkpoint.

    The result is that of a run that never stopped.
    """

    run_dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    workers: Annotated[int | None, optional("N", "as it was begun")] = None
    """Processes on this machine that go on together; the fleets are dealt again if there are more or fewer."""
    cluster: OmitArgPrefixes[Cluster] = Cluster()
    on_ray: OmitArgPrefixes[OnRay] = OnRay()
    logging: OmitArgPrefixes[Logging] = Logging()

    def run(self) -> None:
        self.logging.check()
        if is_worker():
            return together(self.resume, "--debug" in sys.argv)
        folder = RunFolder.open(self.run_dir)
        size = self.workers or folder.environment().get("workers", 1)
        asks_for_workers(size)
        self.on_ray.check(self.cluster, size)
        if folder.done or (size == 1 and not self.cluster.ray):
            return self.resume(ALONE)
        asked = Recipe.revived(folder.config())
        require_fleets(asked, size)
        path = self.run_dir.resolve() if self.cluster.ray else self.run_dir
        arguments = ["resume", str(path), *self.logging.arguments()]
        start_workers(self.on_ray, self.cluster, asked, arguments, size, self.run_dir)

    def resume(self, workers: Workers) -> None:
        """Go on with the run, as one of these workers; the first one writes it down."""
        with warnings_once(), ExitStack() as held:
            folder = None
            if workers.is_first:
                folder = RunFolder.open(self.run_dir)
                held.enter_context(folder.alone())
            asked = agreed(workers, lambda: Recipe.revived(RunFolder.open(self.run_dir).config()))
            if workers.any(folder is not None and folder.done):
                if folder is not None:
                    complete(folder, literal_console(stderr=self.logging.json))
                return
            require_fleets(asked, workers.size)
            if folder is not None:
                self._warn(folder, workers.size)
            go_on(folder, asked, self.logging, pick_up(folder, asked, workers), workers)

    def _warn(self, folder: RunFolder, workers: int) -> None:
        known = folder.environment()
        now = {"threads": torch.get_num_threads(), "workers": workers}
        for name, before in (("threads", known.get("threads")), ("workers", known.get("workers", 1))):
            if before != now[name]:
                warnings.warn(f"begun with {before} {name}, gone on with {now[name]}: bits may differ", stacklevel=1)


def require_fleets(asked: Recipe, workers: int) -> None:
    """Raise an error if there are more workers than fleets in a stage of a recipe."""
    for stage in asked.stages:
        Workers(0, workers).share(stage.fleets)


def start_workers(
    on_ray: OnRay, cluster: Cluster, asked: Recipe, arguments: Sequence[str], workers: int, path: Path
) -> None:
    """Run `esper` with these arguments in several processes, of Ray or on this machine, and wait for their end."""
    if cluster.ray:
        train_on_ray(on_ray, cluster.address, asked, arguments, workers, path.resolve())
    else:
        launch(arguments, workers, path)


def agreed(workers: Workers, ask: Callable[[], Recipe]) -> Recipe:
    """Return the recipe that the first worker asks for."""
    if workers.size == 1:
        return ask()
    said = json_module.dumps(ask().plain()).encode() if workers.is_first else b""
    return Recipe.revived(json_module.loads(from_first(workers, said)))


def continued(asked: Recipe, plain: Recipe) -> Recipe:
    """Return the recipe of a run that continues another one, with the controller and the known settings of that one.

    Only which features the controller sees may differ.
    """
    before = RunFolder.open(folder_of(asked.warm_start.run))
    if not before.done:
        raise FileError(f"{before.path} is not done: resume it before another run continues from it")
    visible = {group: getattr(asked.controller, group) for group in HIDEABLE}
    controller = replace(load_controller(before.controller_path).config, **visible)
    if asked.controller not in (controller, replace(plain.controller, **visible)):
        raise EsperError(f"controller must be left as it is in {before.path}, from which the run continues")
    return replace(asked, known=Recipe.revived(before.config()).learned_from, controller=controller)


@contextmanager
def warnings_once() -> Iterator[None]:
    """Show every warning once, as one line, however many times and wherever it is raised."""
    with warnings.catch_warnings():
        show, said = warnings.showwarning, set[str]()

        def once(message: Warning | str, *arguments: Any, **named: Any) -> None:
            if str(message) not in said:
                said.add(str(message))
                show(message, *arguments, **named)

        warnings.showwarning = once
        yield
