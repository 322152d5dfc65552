"""Train with the workers of Ray Train, which begins again from the last checkpoint when it has lost one."""

import os
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Annotated, Any

import torch

from esper.cli.cluster import Cluster
from esper.cli.console import literal_console
from esper.cli.flags import optional
from esper.cli.workers import notice_lost_machines
from esper.jobs.ray_tasks import connect, require_ray
from esper.leyline.errors import EsperError, FileError
from esper.recipes import Recipe
from esper.simic.workers import WorkerLost, Workers
from esper.telemetry import Board, RunFolder
from esper.telemetry.setting import setting_of

REFUSED = "refused.txt"
"""Why a worker has refused to train, in Ray's part of a run folder."""
EXCHANGE = 12 * 60 * 60
"""Seconds that an exchange waits for the other workers: warm starts take hours."""


@dataclass(frozen=True, kw_only=True)
class OnRay:
    """What Ray Train does when it loses some of the workers that train one controller together."""

    least: Annotated[int | None, optional("N", "as many as --workers")] = None
    """Fewest workers to go on with if Ray cannot replace those that were lost; the fleets are dealt again."""
    failures: int = 3
    """How often lost workers are replaced before the run ends; it can be resumed even then."""

    def check(self, cluster: Cluster, workers: int) -> None:
        """Raise an error if these settings do not fit together, or Ray is asked for and not installed."""
        cluster.check()
        if not cluster.ray and self.least is not None:
            raise EsperError("--least is for the workers of Ray: add --ray")
        if self.least is not None and not 1 <= self.least <= workers:
            raise EsperError(f"least must be from 1 to the number of workers ({workers}), not {self.least}")
        if self.failures < 0:
            raise EsperError(f"failures must not be negative, not {self.failures}")


def train_on_ray(
    asked: OnRay, address: str | None, recipe: Recipe, arguments: Sequence[str], workers: int, path: Path
) -> None:
    """Run `esper` with these arguments in the workers of Ray Train, and show what they do.

    Raises:
        EsperError: A worker has refused, or more workers were lost than `asked` allows.
    """
    os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
    ray = require_ray()
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray.train.v2.api.config import LoggingConfig
    from ray.train.v2.api.exceptions import TrainingFailedError

    is_ours = connect(max(workers, os.cpu_count() or 1), address)
    count: Any = (asked.least, workers) if asked.least is not None and asked.least < workers else workers
    trainer = TorchTrainer(
        work,
        train_loop_config={"arguments": list(arguments), "folder": str(path), "cwd": os.getcwd()},
        torch_config=TorchConfig(backend="gloo", timeout_s=EXCHANGE),
        scaling_config=ScalingConfig(num_workers=count, use_gpu=recipe.engine.device.startswith("cuda")),
        run_config=RunConfig(
            name="ray",
            storage_path=str(path),
            failure_config=FailureConfig(max_failures=asked.failures),
            logging_config=LoggingConfig(log_level="ERROR"),
        ),
    )
    try:
        (path / "ray").mkdir(parents=True, exist_ok=True)
        (path / "ray" / REFUSED).unlink(missing_ok=True)
    except OSError as error:
        raise FileError(f"cannot start a run in {path}: {error.strerror or error}") from error
    try:
        with followed(path):
            trainer.fit()
    except TrainingFailedError as error:
        reason = next(iter(getattr(error, "worker_failures", {}).values()), error)
        said = str(reason).strip().rpartition("\n")[2]
        raise EsperError(f"Ray gave up ({said}): go on with `esper resume {path}`") from None
    finally:
        if is_ours:
            ray.shutdown()
    if (path / "ray" / REFUSED).exists():
        raise EsperError((path / "ray" / REFUSED).read_text())


def work(config: dict[str, Any]) -> None:
    """Take part in a run as one of the workers of Ray Train: begin it, or go on if it has been begun."""
    from ray.train import get_context
    from ray.train.torch import get_device

    context, folder = get_context(), Path(config["folder"])
    if (folder / "ray" / REFUSED).exists():
        return
    if Path(config["cwd"]).is_dir():
        os.chdir(config["cwd"])  # relative paths in a recipe are those of the command
    if (device := get_device()).type == "cuda":
        torch.cuda.set_device(device)
    try:
        notice_lost_machines()
        take_part(config["arguments"], Workers(context.get_world_rank(), context.get_world_size()))
    except WorkerLost:
        raise
    except EsperError as error:  # once more, it would be the same
        (folder / "ray" / REFUSED).write_text(str(error))
        raise


def take_part(arguments: Sequence[str], workers: Workers) -> None:
    """Begin a run, or go on with it."""
    from esper.cli.commands import parse
    from esper.cli.train import Resume, Train

    command = parse(arguments)
    assert isinstance(command, Train | Resume)
    if isinstance(command, Train):
        command.again(workers)
    else:
        command.resume(workers)


@contextmanager
def followed(path: Path) -> Any:
    """Print a line for every update that the workers write into a run folder."""
    over = Event()
    thread = Thread(target=_follow, args=(path, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=10)


def _follow(path: Path, over: Event) -> None:
    folder, console, shown = RunFolder(path), literal_console(), -1
    while True:
        ended = over.wait(0.5)
        if (path / "config.json").exists() and (path / "environment.json").exists():
            setting = setting_of(folder.config(), folder.environment())
            for report in folder.reports():
                if report.update > shown:
                    board = Board(str(path), setting.updates, [report], setting=setting)
                    board.start(folder.start())
                    console.print(board.line(), markup=False, highlight=False, soft_wrap=True)
                    shown = report.update
        if ended:
            break
    if folder.done:
        console.print(f"done: {path}", markup=False, highlight=False, soft_wrap=True)
