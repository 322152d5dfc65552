"""Carry out jobs as tasks of Ray, on this machine or on a cluster."""

import logging
import os
import signal
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from esper.jobs.records import Ending, Job
from esper.jobs.worker import perform
from esper.leyline.errors import EsperError

QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""Settings of Ray that are made before it is imported, unless the user has made them: nothing is sent anywhere."""
OBJECTS = 80 * 2**20
"""Bytes of a local Ray's object store, its least: jobs hand over nothing but a few words."""


def require_ray() -> Any:
    """Import Ray, and return it.

    Raises:
        EsperError: It is not installed.
    """
    if find_spec("ray") is None:
        raise EsperError("ray is not installed: pip install 'esper-nn[ray]', or leave out --ray")
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    import ray

    return ray


def connect(cpus: int | None = None, address: str | None = None) -> bool:
    """Connect to Ray, if this process has not; return whether it has now been done.

    Args:
        cpus: CPUs of a Ray that is started on this machine; None: as many as there are.
        address: Address of a cluster; None: the cluster of RAY_ADDRESS, or else a new one on this machine.
    """
    ray = require_ray()
    if ray.is_initialized():
        return False
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    local = {"address": "local", "num_cpus": cpus, "include_dashboard": False, "object_store_memory": OBJECTS}
    address = address or os.environ.get("RAY_ADDRESS")
    try:
        ray.init(**({"address": address} if address else local), **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise EsperError(f"cannot connect to Ray{f' at {address}' if address else ''}: {error}") from error
    return True


def interruptible(asked: Mapping[str, Any]) -> str:
    """Do a job as `perform` does, also where what started Ray ignores Ctrl-C, as shells have it in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return perform(asked)


class RayTasks:
    """Tasks of Ray, one for each job, each with its CPUs and its share of a GPU.

    Folders of jobs must be on a disk that all machines of a cluster share, and Esper must be installed on all.

    Args:
        at_once: Number of tasks.
        threads: Threads, and CPUs, of each.
        uses_gpus: Whether the tasks share all GPUs that Ray has.
        address: Address of a cluster; None: the cluster of RAY_ADDRESS, or else a new one on this machine.
    """

    def __init__(self, at_once: int, threads: int = 1, uses_gpus: bool = False, address: str | None = None) -> None:
        self.at_once, self.threads = at_once, threads
        self.ray = require_ray()
        self.is_ours = connect(at_once * threads, address)
        self.running: dict[Any, Job] = {}
        share = self._share() if uses_gpus else 0.0
        self._require_room()
        # Lost workers are replaced by run_jobs, which counts them and says so.
        self.task = self.ray.remote(interruptible).options(num_cpus=threads, num_gpus=share, max_retries=0)

    def _share(self) -> float:
        """Return the share of a GPU that each task gets: at most one GPU."""
        gpus = self.ray.cluster_resources().get("GPU", 0.0)
        if not gpus:
            raise EsperError("Ray has no GPU: choose --device cpu")
        return min(1.0, int(1e4 * gpus / self.at_once) / 1e4)

    def _require_room(self) -> None:
        """Refuse tasks that no machine has the CPUs for: they would wait forever."""
        most = max((node["Resources"].get("CPU", 0.0) for node in self.ray.nodes() if node["Alive"]), default=0.0)
        if most < self.threads:
            raise EsperError(f"threads must be at most {most:g}, the CPUs of Ray's largest machine, not {self.threads}")

    def start(self, job: Job) -> None:
        """Begin a job, as soon as Ray has room for it."""
        asked = {"job": job.plain(), "threads": self.threads, "cwd": os.getcwd()}
        self.running[self.task.remote(asked)] = job

    def ended(self, seconds: float) -> list[Ending]:
        """Return the attempts that have ended since the last call; wait for one at most so many seconds."""
        ready, _ = self.ray.wait(list(self.running), num_returns=1, timeout=seconds)
        return [self._ending(task, self.running.pop(task)) for task in ready]

    def _ending(self, task: Any, job: Job) -> Ending:
        errors = self.ray.exceptions
        try:
            return Ending(job, self.ray.get(task))
        except errors.RayTaskError as error:  # perform itself has failed: a full disk, say
            return Ending(job, str(error).strip().rpartition("\n")[2])
        except errors.TaskCancelledError:
            return Ending(job, "cancelled")
        except errors.RayError as error:  # a lost worker, machine, or memory
            return Ending(job, f"its task was ended ({type(error).__name__})", killed=True)

    def interrupt(self) -> None:
        """Ask all tasks to stop: trainings end after the update at hand, with a checkpoint."""
        for task in self.running:
            self.ray.cancel(task, force=False)

    def close(self) -> None:
        """End all tasks, and Ray itself if it was started here."""
        for task in self.running:
            self.ray.cancel(task, force=True)
        self.running.clear()
        if self.is_ours:
            self.ray.shutdown()
