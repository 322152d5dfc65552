"""Flags of commands that do many jobs, and how those are shown."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text
from tyro.conf import OmitArgPrefixes

from esper.cli.cluster import Cluster
from esper.cli.console import literal_console
from esper.cli.flags import optional
from esper.cli.stopping import stopping
from esper.jobs import Executor, Job, run_jobs
from esper.leyline.errors import EsperError


@dataclass(frozen=True, kw_only=True)
class Many:
    """How many jobs are done at once, and where."""

    at_once: Annotated[int | None, optional("K", "as many as there are cores, or all on a GPU")] = None
    """Jobs that are done at the same time, each in a process of its own."""
    threads: Annotated[int | None, optional("T", "the cores divided by K")] = None
    """Threads of each job."""
    cluster: OmitArgPrefixes[Cluster] = Cluster()

    def __post_init__(self) -> None:
        for name in ("at_once", "threads"):
            if (number := getattr(self, name)) is not None and number < 1:
                raise EsperError(f"{name} must be at least 1, not {number}")

    @property
    def is_asked_for(self) -> bool:
        """Whether a command that can also do its work in one process is to use jobs."""
        return self.cluster.ray or self.at_once is not None

    def require_unused(self, needed: str) -> None:
        """Raise an error if any of these flags is given without the one that they are for."""
        for flag, value in (("--at-once", self.at_once), ("--threads", self.threads)):
            if value:
                raise EsperError(f"{flag} is for many jobs: add {needed}")

    def executor(self, count: int, device: str) -> Executor:
        """Return what carries out so many jobs on a device."""
        at_once, threads = self.shares(count, device)
        if self.cluster.ray:
            from esper.jobs.ray_tasks import RayTasks

            return RayTasks(at_once, threads, device == "cuda", self.cluster.address)
        from esper.jobs.processes import Processes

        return Processes(at_once, threads, visible_gpus() if device == "cuda" else ())

    def shares(self, count: int, device: str) -> tuple[int, int]:
        """Return how many of so many jobs are done at once, and the threads of each."""
        if self.cluster.ray and device.startswith("cuda") and device != "cuda":
            raise EsperError(f"device must be cuda with --ray, which chooses the GPU of each job, not {device}")
        cores = available_cores()
        at_once = min(self.at_once or (count if device.startswith("cuda") else cores), count)
        return at_once, self.threads or max(cores // at_once, 1)

    def done(self, jobs: Sequence[Job], device: str) -> Iterator[Job]:
        """Do all jobs, and yield each as soon as it is done; a signal may stop them before all are."""
        if all(job.is_done for job in jobs):
            yield from jobs
            return
        with stopping() as stop, shown(jobs, literal_console(stderr=True)) as board:
            yield from run_jobs(jobs, self.executor(len(jobs), device), board.tell, stop)

    def sharing(self, count: int, device: str) -> int:
        """Return how many of so many jobs share a GPU."""
        gpus = len(visible_gpus()) if device.startswith("cuda") else 0
        return -(-min(self.at_once or count, count) // max(gpus, 1)) if gpus else 1


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return named or [str(n) for n in range(torch.cuda.device_count())]


@dataclass
class JobBoard:
    """What all jobs are doing: a line for each in a terminal, a line for each event elsewhere."""

    jobs: Sequence[Job]
    console: Console
    every: float = 30.0
    said: dict[str, str] = field(default_factory=dict)
    """What was last said of each job that was begun."""

    def tell(self, job: Job, said: str) -> None:
        """Hear that a job begins, ends, fails or is tried again."""
        self.said[job.name] = said
        if not self.console.is_terminal or said not in ("begins", "done"):
            self.console.print(f"{time.strftime('%H:%M:%S')} {job.name}: {said}", soft_wrap=True)

    def __rich__(self) -> Group:
        done = sum(job.is_done for job in self.jobs)
        rows = [f"{done} of {len(self.jobs)} jobs done"]
        for job in self.jobs:
            if self.said.get(job.name, "done") != "done" and not job.is_done:
                rows.append(f"{job.name}: {last_line(job.log) or self.said[job.name]}")
        return Group(*(Text(row, no_wrap=True, overflow="ellipsis") for row in rows))


@contextmanager
def shown(jobs: Sequence[Job], console: Console) -> Iterator[JobBoard]:
    """Show jobs while they are done."""
    board = JobBoard(jobs, console)
    if console.is_terminal:
        with Live(board, console=console, refresh_per_second=2):
            yield board
    else:
        yield board


def last_line(log: Path, most: int = 4096) -> str:
    """Return the last line of a job's log; empty if there is none."""
    try:
        with open(log, "rb") as file:
            file.seek(max(log.stat().st_size - most, 0))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
