"""Train with the workers of Ray Train, which begins again from the last checkpoint when it has lost one."""

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Annotated, Any
from uuid import uuid4

import torch

from esper.cli.cluster import Cluster
from esper.cli.console import literal_console
from esper.cli.desk import PLAIN
from esper.cli.flags import optional
from esper.cli.workers import notice_lost_machines
from esper.jobs.ray_tasks import connect, require_ray
from esper.leyline.errors import EsperError, FileError
from esper.leyline.json_records import jsonable
from esper.recipes import Recipe
from esper.simic.workers import WorkerLost, Workers
from esper.telemetry import Board, RunFolder
from esper.telemetry.setting import setting_of

PATIENCE = 60.0
"""Seconds to wait until workers that were lost have ended and freed the run folder."""
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
    from ray.train.v2.api.exceptions import TrainingFailedError

    if writer := RunFolder(path).writer():
        raise FileError(f"{path} is being written by {writer}: wait or stop it")
    refused = path / "ray" / f"refused-{uuid4().hex[:8]}.txt"
    try:
        refused.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot start a run in {path}: {error.strerror or error}") from error
    is_ours = connect(max(workers, os.cpu_count() or 1), address)
    config = {"arguments": list(arguments), "folder": str(path), "refused": str(refused), "cwd": os.getcwd()}
    try:
        with followed(path, "--json" in arguments):
            trainer(asked, workers, recipe.engine.device.startswith("cuda"), path, config).fit()
    except TrainingFailedError as error:
        if not refused.exists():
            reason = next(iter(getattr(error, "worker_failures", {}).values()), error)
            said = str(reason).strip().rpartition("\n")[2]
            raise EsperError(f"Ray gave up ({said}): go on with `esper resume {path}`") from None
    finally:
        if is_ours:
            ray.shutdown()
    if refused.exists():
        raise EsperError(_taken(refused))


def trainer(asked: OnRay, workers: int, uses_gpus: bool, path: Path, config: dict[str, Any]) -> Any:
    """Return what starts the workers, and starts them again when some are lost."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray.train.v2.api.config import LoggingConfig

    count: Any = (asked.least, workers) if asked.least is not None and asked.least < workers else workers
    return TorchTrainer(
        work,
        train_loop_config=config,
        torch_config=TorchConfig(backend="gloo", timeout_s=EXCHANGE),
        scaling_config=ScalingConfig(num_workers=count, use_gpu=uses_gpus),
        run_config=RunConfig(
            name="ray",
            storage_path=str(path),
            failure_config=FailureConfig(max_failures=asked.failures),
            logging_config=LoggingConfig(log_level="ERROR"),
        ),
    )


def _taken(path: Path) -> str:
    """Return the text of a file, and remove it."""
    text = path.read_text(encoding="utf-8")
    path.unlink()
    return text


def work(config: dict[str, Any]) -> None:
    """Take part in a run as one of the workers of Ray Train: begin it, or go on if it has been begun."""
    from ray.train import get_context
    from ray.train.torch import get_device

    context, refused = get_context(), Path(config["refused"])
    if refused.exists():
        return
    if Path(config["cwd"]).is_dir():
        os.chdir(config["cwd"])  # relative paths in a recipe are those of the command
    if (device := get_device()).type == "cuda":
        torch.cuda.set_device(device)
    try:
        notice_lost_machines()
        workers = Workers(context.get_world_rank(), context.get_world_size())
        if workers.is_first:
            wait_until_free(Path(config["folder"]))
        take_part(config["arguments"], workers)
    except WorkerLost:
        raise
    except EsperError as error:  # once more, it would be the same
        refused.write_text(str(error), encoding="utf-8")
        raise


def wait_until_free(folder: Path) -> None:
    """Wait until workers that were lost have ended, and so freed a run folder."""
    until = time.monotonic() + PATIENCE
    while folder.exists() and RunFolder(folder).writer() and time.monotonic() < until:
        time.sleep(0.1)


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
def followed(path: Path, as_json: bool = False) -> Iterator[None]:
    """Print every update that the workers write into a run folder, as a line or as JSON."""
    over, known = Event(), len(RunFolder(path).reports())
    thread = Thread(target=_follow, args=(path, over, known, as_json), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=10)


def _follow(path: Path, over: Event, known: int, as_json: bool) -> None:
    folder, console, ended = RunFolder(path), literal_console(stderr=as_json), False
    while not ended:
        ended = over.wait(0.5)
        with suppress(EsperError):  # there is nothing yet
            setting = setting_of(folder.config(), folder.environment())
            for report in folder.reports()[known:]:
                known += 1
                if as_json:
                    print(json.dumps(jsonable(asdict(report))), flush=True)
                else:
                    board = Board(str(path), setting.updates, [report], setting=setting)
                    board.start(folder.start())
                    console.print(board.line(), **PLAIN)
    if folder.done:
        console.print(f"done: {path}", **PLAIN)
