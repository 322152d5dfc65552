"""Run jobs until all are done: in their order, some at a time, again if a worker was killed."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from esper.jobs.records import Ending, Executor, Job
from esper.leyline.errors import EsperError

ATTEMPTS = 4
"""Attempts at a job whose workers are killed: it may need more memory than there is."""
TICK = 0.2
"""Seconds between two looks at whether to stop."""

Tell = Callable[[Job, str], object]
"""Called when a job begins, ends, fails or is tried again."""


class Agenda:
    """Which jobs wait, are being done, are done, or have failed."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        names = Counter(job.name for job in jobs)
        for name, count in names.items():
            if count > 1:
                raise EsperError(f"{count} jobs are called {name!r}: give every job a different name")
        for job in jobs:
            for need in job.after:
                if need not in names:
                    raise EsperError(f"job {job.name!r} comes after {need!r}, which is no job: name one that is")
        self.waiting, self.running = list(jobs), dict[str, Job]()
        self.done, self.failed = list[str](), dict[str, str]()
        self.killed = Counter[str]()

    def found(self) -> list[Job]:
        """Return the jobs that earlier calls have done, which wait no more."""
        found = [job for job in self.waiting if job.is_done]
        self.waiting = [job for job in self.waiting if not job.is_done]
        self.done += [job.name for job in found]
        return found

    def next(self) -> Job | None:
        """Return a job whose predecessors are done, which is then being done; None if there is none."""
        for n, job in enumerate(self.waiting):
            if all(need in self.done for need in job.after):
                self.running[job.name] = self.waiting.pop(n)
                return job
        return None

    def note(self, ending: Ending) -> str:
        """Note how an attempt ended, and return a sentence about it."""
        job = self.running.pop(ending.job.name)
        if not ending.why:
            self.done.append(job.name)
            return "done"
        if ending.killed:
            self.killed[job.name] += 1
            if self.killed[job.name] < ATTEMPTS:
                self.waiting.insert(0, job)
                return f"{ending.why}; it goes on where it was"
        self.failed[job.name] = ending.why
        return f"failed: {ending.why}"

    def require_no_failure(self) -> None:
        """Raise an error that names the first job that failed, and says what is left."""
        if self.failed:
            (name, why), left = next(iter(self.failed.items())), len(self.failed) + len(self.waiting)
            raise EsperError(
                f"{left} of {len(self.done) + left} jobs are not done; the first to fail was {name!r}:"
                f" {why.rstrip('.')};"
                " its log says more, and the same command goes on with what is left"
            )


def run_jobs(
    jobs: Sequence[Job],
    executor: Executor,
    tell: Tell = lambda job, said: None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Job]:
    """Yield every job as soon as it is done, those that earlier calls have done first.

    Args:
        jobs: What to do, each job after those that it names.
        executor: What carries them out; closed in the end.
        tell: Called when a job begins, ends, fails or is tried again.
        stop: Whether to stop. What is being done is then interrupted, and not all jobs are yielded.

    Raises:
        EsperError: A job has failed, or its workers were killed again and again; all others were done before.
    """
    agenda, interrupted = Agenda(jobs), False
    try:
        yield from agenda.found()
        while agenda.running or (agenda.waiting and not stop()):
            if stop() and not interrupted:
                executor.interrupt()
                interrupted = True
            while not stop() and len(agenda.running) < executor.at_once and (job := agenda.next()):
                tell(job, "begins")
                executor.start(job)
            if not agenda.running:
                break
            for ending in executor.ended(TICK):
                said = agenda.note(ending)
                tell(ending.job, "stopped" if ending.why and stop() else said)
                if not ending.why:
                    yield ending.job
    finally:
        executor.close()
    if not stop():
        agenda.require_no_failure()
