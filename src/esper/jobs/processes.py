"""Carry out jobs in processes of this machine."""

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import esper
from esper.jobs.records import Ending, Job

PLACE = Path(esper.__file__).parents[1]
"""Where workers import Esper from: the same place as this process."""


class Worker:
    """A process that does one job after the other, and ends with the process that started it."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "esper.jobs.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | environment,
            start_new_session=True,  # Ctrl-C in a terminal reaches the driver alone, which then asks its workers
        )
        self.job: Job | None = None

    @property
    def answers(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def give(self, job: Job, threads: int) -> None:
        """Give the worker a job; if it has died, that shows when its answer is read."""
        assert self.process.stdin is not None
        self.job = job
        line = json.dumps({"job": job.plain(), "threads": threads, "cwd": os.getcwd()}) + "\n"
        with suppress(BrokenPipeError):
            self.process.stdin.write(line.encode())
            self.process.stdin.flush()

    def answer(self) -> Ending:
        """Return how the job ended; blocks until there is an answer, or the worker has died."""
        job, self.job = self.job, None
        assert job is not None
        line = self.answers.readline()
        if line.endswith(b"\n"):
            return Ending(job, json.loads(line))
        code = self.process.wait()
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return Ending(job, f"its process was ended {how}", killed=True)

    def close(self) -> None:
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        self.process.wait()


class Processes:
    """Worker processes of this machine, each with its number of threads and its GPU.

    Args:
        at_once: Number of processes.
        threads: Threads of each.
        gpus: GPUs as CUDA_VISIBLE_DEVICES names them, which the processes share; none: they compute on the CPU. With
            GPUs, every job has a fresh process, which begins with all of its memory free.
    """

    def __init__(self, at_once: int, threads: int = 1, gpus: Sequence[str] = ()) -> None:
        self.at_once, self.threads, self.gpus = at_once, threads, gpus
        self.workers: list[Worker | None] = [None] * at_once
        self.selector = selectors.DefaultSelector()

    def start(self, job: Job) -> None:
        """Begin a job in a worker that has none."""
        place = next(n for n, worker in enumerate(self.workers) if worker is None or worker.job is None)
        worker = self.workers[place]
        if worker is None:
            worker = self.workers[place] = Worker(self._environment(place))
            self.selector.register(worker.answers, selectors.EVENT_READ, place)
        worker.give(job, self.threads)

    def _environment(self, place: int) -> dict[str, str]:
        path = os.pathsep.join(filter(None, [str(PLACE), os.environ.get("PYTHONPATH")]))
        own = {"OMP_NUM_THREADS": str(self.threads), "PYTHONPATH": path}
        return own | ({"CUDA_VISIBLE_DEVICES": self.gpus[place % len(self.gpus)]} if self.gpus else {})

    def ended(self, seconds: float) -> list[Ending]:
        """Return the attempts that have ended since the last call; wait for one at most so many seconds."""
        found = []
        for key, _ in self.selector.select(seconds):
            worker = self.workers[key.data]
            assert worker is not None
            if worker.job is None:  # it died between two jobs: the next one gets another
                self._end(key.data)
                continue
            ending = worker.answer()
            found.append(ending)
            if ending.killed or self.gpus:
                self._end(key.data)
        return found

    def _end(self, place: int) -> None:
        worker, self.workers[place] = self.workers[place], None
        if worker is not None:
            self.selector.unregister(worker.answers)
            worker.close()

    def interrupt(self) -> None:
        """Ask all workers to stop: trainings end after the update at hand, with a checkpoint."""
        for worker in self.workers:
            if worker is not None and worker.job is not None:
                worker.process.terminate()

    def close(self) -> None:
        """End all workers, and with them what they are doing."""
        for place in range(self.at_once):
            self._end(place)
        self.selector.close()
