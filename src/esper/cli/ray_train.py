"""Train with the workers of Ray Train, which begins again from the last checkpoint when it has lost one."""

import json
import os
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
from esper.cli.stopping import asked_by, stopping
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
FAILURES = 3
"""Default number of times that lost workers are replaced."""
EXCHANGE = 12 * 60 * 60
"""Seconds that an exchange waits for the other workers: warm starts take hours."""


@dataclass(frozen=True, kw_only=True)
class OnRay:
    """What Ray Train does when it loses some of the workers that train one controller together."""

    least: Annotated[int | None, optional("N", "as many as --workers")] = None
    """Fewest workers to go on with if Ray cannot replace those that were lost; the fleets are dealt again."""
    failures: Annotated[int | None, optional("N", str(FAILURES))] = None
    """How often lost workers are replaced before the run ends; it can be resumed even then."""

    def check(self, cluster: Cluster, workers: int) -> None:
        """Raise an error if these settings do not fit together, or Ray is asked for and not installed."""
        cluster.check()
        if not cluster.ray:
            self.require_unused("is for the workers of Ray: add --ray")
        if self.least is not None and not 1 <= self.least <= workers:
            raise EsperError(f"least must be from 1 to the number of workers ({workers}), not {self.least}")
        if self.failures is not None and self.failures < 0:
            raise EsperError(f"failures must not be negative, not {self.failures}")

    def require_unused(self, why: str) -> None:
        """Raise an error if any of these flags is given where it would do nothing."""
        for flag, value in (("--least", self.least), ("--failures", self.failures)):
            if value is not None:
                raise EsperError(f"{flag} {why}")


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
    refused, stop = (path / "ray" / f"{name}-{uuid4().hex[:8]}.txt" for name in ("refused", "stop"))
    try:
        refused.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot start a run in {path}: {error.strerror or error}") from error
    is_ours = connect(max(workers, os.cpu_count() or 1), address)
    files = {"folder": str(path), "refused": str(refused), "stop": str(stop), "cwd": os.getcwd()}
    config = {"arguments": list(arguments), **files}
    try:
        with followed(path, stop, "--json" in arguments):
            fit(trainer(asked, workers, recipe.engine.device.startswith("cuda"), path, config), stop)
    except TrainingFailedError as error:
        if not refused.exists():
            reason = next(iter(getattr(error, "worker_failures", {}).values()), error)
            said = str(reason).strip().rpartition("\n")[2]
            raise EsperError(f"Ray gave up ({said}): go on with `esper resume {path}`") from None
    finally:
        if is_ours:
            ray.shutdown()
        stop.unlink(missing_ok=True)
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
            failure_config=FailureConfig(max_failures=FAILURES if asked.failures is None else asked.failures),
            logging_config=LoggingConfig(log_level="ERROR"),
        ),
    )


def fit(trainer: Any, file: Path) -> None:
    """Run a trainer to its end; at Ctrl-C or SIGTERM, write a file that asks its workers to stop.

    Ray itself would end the workers in the middle of an update, so the trainer runs where it hears no signals.
    """
    failed: list[BaseException] = []

    def run() -> None:
        try:
            trainer.fit()
        except BaseException as error:
            failed.append(error)

    thread = Thread(target=run, daemon=True)
    with stopping() as stop:
        thread.start()
        while thread.is_alive():
            if stop():
                file.touch()
            thread.join(0.2)
    if failed:
        raise failed[0]


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
            RunFolder(Path(config["folder"])).wait_until_free(PATIENCE)
        with asked_by(Path(config["stop"]).exists):
            take_part(config["arguments"], workers)
    except WorkerLost:
        raise
    except EsperError as error:  # once more, it would be the same
        refused.write_text(str(error), encoding="utf-8")
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
def followed(path: Path, stop: Path, as_json: bool = False) -> Iterator[None]:
    """Print every update that the workers write into a run folder, as a line or as JSON, and how the run ended.

    The file `stop` is there if the workers were asked to stop.
    """
    over, known = Event(), len(RunFolder(path).reports())
    thread = Thread(target=_follow, args=(path, stop, over, known, as_json), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=10)


def _follow(path: Path, asked_to_stop: Path, over: Event, known: int, as_json: bool) -> None:
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
    elif asked_to_stop.exists():
        console.print(f"stopped after update {known}: go on with `esper resume {path}`", **PLAIN)
