"""Do jobs: in a process that is told of them line by line, or wherever `perform` is called."""

import json
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from esper.jobs.records import Job
from esper.leyline.errors import EsperError
from esper.telemetry.lock import locked, wait_until_free

PATIENCE = 20.0
"""Seconds to wait for an earlier attempt at a job, whose process may be about to end."""
STOPPED = "stopped before the end"


def perform(asked: Mapping[str, Any]) -> str:
    """Do a job, unless it has been done, and return why it is not done; empty if it is.

    Args:
        asked: The `job` as plain data, the number of `threads`, and the working directory (`cwd`).
    """
    job = Job.revived(asked["job"])
    os.chdir(asked["cwd"])
    use_threads(asked["threads"])
    try:
        with printing_to(job.log), alone(job):
            return "" if job.is_done else _attempt(job)
    except EsperError as error:  # another process does this job
        return str(error)


def _attempt(job: Job) -> str:
    try:
        module, _, name = job.function.partition(":")
        getattr(import_module(module), name)(**job.given)
    except EsperError as error:
        print(f"esper: {error}", file=sys.stderr)
        return str(error)
    except KeyboardInterrupt:
        return STOPPED
    except Exception as error:
        traceback.print_exc()
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return "" if job.is_done else STOPPED


def use_threads(threads: int) -> None:
    """Let torch use so many threads, whether it has been imported or not."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


@contextmanager
def alone(job: Job) -> Iterator[None]:
    """Keep other processes from doing the same job; wait a little for one whose driver was killed."""
    wait_until_free(job.lock, PATIENCE)
    with locked(job.lock, job.log.parent):
        yield


@contextmanager
def printing_to(log: Path) -> Iterator[None]:
    """Append what this process prints to a file, what is printed below Python included."""
    log.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
    sys.stdout.flush()
    sys.stderr.flush()
    before = [os.dup(1), os.dup(2)]
    streams = sys.stdout, sys.stderr
    os.dup2(file, 1)
    os.dup2(file, 2)
    out, err = (open(fd, "w", buffering=1, encoding="utf-8", closefd=False) for fd in (1, 2))  # noqa: SIM115
    sys.stdout, sys.stderr = out, err
    try:
        yield
    finally:
        out.flush()
        err.flush()
        sys.stdout, sys.stderr = streams
        for fd, old in enumerate(before, 1):
            os.dup2(old, fd)
            os.close(old)
        os.close(file)


def main() -> None:
    """Do the jobs that are written to standard input, one a line; answer each with one line.

    The process ends itself at once when standard input is closed: the driver that started it has ended.
    """
    answers = os.dup(1)
    os.dup2(2, 1)  # what is printed between two jobs is no answer
    asked: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(asked,), daemon=True).start()
    while True:
        why = perform(json.loads(asked.get()))
        os.write(answers, (json.dumps(why) + "\n").encode())


def _listen(asked: "queue.Queue[str]") -> None:
    for line in sys.stdin:
        asked.put(line)
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))


if __name__ == "__main__":
    main()
