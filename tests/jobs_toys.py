"""Jobs for tests: each notes that it began, in a file that all of them share."""

import os
import signal
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from esper.jobs import Ending, Job
from esper.leyline.errors import EsperError

TESTS = str(Path(__file__).parent)
QUICK_RAY = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
}
"""Settings with which Ray notices dead workers soon and starts no processes that the tests do not need."""


def job(folder: Path, name: str, function: str = "write", after: tuple[str, ...] = (), **given: Any) -> Job:
    done = folder / name / "done"
    given = {"done": str(done), "begun": str(folder / "begun"), **given}
    return Job(
        name=name, function=f"jobs_toys:{function}", given=given, done=done, log=folder / f"{name}.log", after=after
    )


def begun(folder: Path) -> list[str]:
    """Names of the jobs that have begun, once for each attempt."""
    return (folder / "begun").read_text().split() if (folder / "begun").exists() else []


def _begin(done: str, begun: str) -> Path:
    path = Path(done)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(begun, "a") as file:
        file.write(path.parent.name + "\n")
    print(f"{path.parent.name} begins", flush=True)
    return path


def write(done: str, begun: str, seconds: float = 0.0) -> None:
    """Write what can be known of where the job is done."""
    path = _begin(done, begun)
    for _ in range(round(20 * seconds)):  # one long sleep could not be interrupted by Ray
        time.sleep(0.05)
    path.write_text(f"{os.getcwd()} {os.environ.get('OMP_NUM_THREADS')} {os.environ.get('CUDA_VISIBLE_DEVICES')}")


def die(done: str, begun: str, times: int = 1) -> None:
    """Be killed the first few times."""
    path = _begin(done, begun)
    os.system(f"echo deep in {path.parent.name}")
    deaths = path.with_name("deaths")
    count = len(deaths.read_text()) if deaths.exists() else 0
    if count < times:
        deaths.write_text("x" * (count + 1))
        os.kill(os.getpid(), signal.SIGKILL)
    path.write_text("")


def refuse(done: str, begun: str) -> None:
    _begin(done, begun)
    raise EsperError("lr must be positive, not −1")


def blunder(done: str, begun: str) -> None:
    _begin(done, begun)
    raise ZeroDivisionError("no hosts")


def forget(done: str, begun: str) -> None:
    """End without a result."""
    _begin(done, begun)


class Here:
    """Executor in this process: the jobs are called one after the other, at most `lives` of them."""

    at_once = 1

    def __init__(self, lives: int = 10**6) -> None:
        self.lives = lives
        self.begun: list[str] = []

    def start(self, job: Job) -> None:
        self.job = job
        if len(self.begun) == self.lives:
            raise InterruptedError("the driver is gone")
        self.begun.append(job.name)
        module, _, name = job.function.partition(":")
        getattr(import_module(module), name)(**job.given)

    def ended(self, seconds: float) -> list[Ending]:
        return [Ending(self.job)]

    def interrupt(self) -> None: ...

    def close(self) -> None: ...
