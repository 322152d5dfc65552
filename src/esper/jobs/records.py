"""Define what a job is, and what carries it out."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable


@dataclass(frozen=True, kw_only=True)
class Job:
    """A piece of work for a process of its own: a function of Esper with arguments that JSON can hold.

    Jobs write their results into files, so that nothing is lost with a process. A function that is called again goes on
    where it was, and writes `done` last.
    """

    name: str
    """Name of the job; no two jobs that are run together may have the same."""
    function: str
    """The function, such as `esper.cli.trainings:train`."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the function by name, anything that JSON can hold."""
    done: Path
    """The file that the function writes last. Where it exists, the job has ended and is not done again."""
    log: Path
    """The file that everything the function prints is appended to."""
    after: tuple[str, ...] = ()
    """Names of the jobs that must have ended before this one begins."""

    @property
    def lock(self) -> Path:
        """The file that lets one process at a time do the job."""
        return self.log.with_name(f".{self.log.stem}.lock")

    @property
    def is_done(self) -> bool:
        return self.done.exists()

    def plain(self) -> dict[str, Any]:
        """Return this job as JSON can hold it; its paths are absolute."""
        return asdict(self) | {"done": str(self.done.absolute()), "log": str(self.log.absolute())}

    @classmethod
    def revived(cls, plain: Mapping[str, Any]) -> "Job":
        """Return the job that `plain` described."""
        paths = {name: Path(plain[name]) for name in ("done", "log")}
        return cls(**{**plain, **paths, "after": tuple(plain["after"])})


class Ending(NamedTuple):
    """How an attempt at a job ended."""

    job: Job
    why: str = ""
    """Why the job is not done; empty if it is."""
    killed: bool = False
    """Whether its process was ended by something else, so that another attempt may succeed."""


@runtime_checkable
class Executor(Protocol):
    """What carries out jobs: processes of this machine, or tasks of Ray."""

    at_once: int
    """Number of jobs that are carried out at the same time."""

    def start(self, job: Job) -> None:
        """Begin a job; at most `at_once` of them have been begun and have not ended."""
        ...

    def ended(self, seconds: float) -> list[Ending]:
        """Return the attempts that have ended since the last call; wait for one at most so many seconds."""
        ...

    def interrupt(self) -> None:
        """Ask all jobs that are being done to stop soon."""
        ...

    def close(self) -> None:
        """End all workers, and with them what they are doing."""
        ...
