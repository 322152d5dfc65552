"""`esper tune --ray`: asynchronous successive halving with Ray Tune."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from esper.cli.console import literal_console
from esper.cli.trials import Search
from esper.jobs import Job, run_jobs
from esper.jobs.processes import Processes
from esper.jobs.ray_tasks import connect, require_ray
from esper.jobs.running import ATTEMPTS
from esper.leyline.errors import EsperError

ENDED = "ended"
"""File in the folder of a trial that goes no further."""
QUIET = {"TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1", "RAY_CHDIR_TO_TRIAL_DIR": "0"}
"""Settings of Ray Tune: results are in the folders of the trials, and nowhere else."""


class Room(NamedTuple):
    """What trials may use."""

    at_once: int
    """Number of trials at the same time."""
    threads: int
    """Threads, and CPUs, of each."""
    gpus: float = 0.0
    """Share of a GPU of each."""


def asynchronously(search: Search, folder: Path, room: Room, address: str | None = None) -> None:
    """Let Ray Tune's ASHA (arXiv:1810.05934) decide which trials go on, each as soon as it reaches a rung.

    Every trial computes in a process of its own, which ends with it. What earlier calls have done is told to ASHA
    again, and is not done again; trials that it had stopped stay stopped.

    Args:
        search: The trials and their rungs.
        folder: Folder of the search.
        room: What the trials may use.
        address: Address of a cluster; None: that of RAY_ADDRESS, or else a new one on this machine.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    is_ours, state = connect(room.at_once * room.threads, address), folder.absolute() / ".ray"
    shutil.rmtree(state, ignore_errors=True)  # of a call that was killed; nothing in it is read
    with closed(state, is_ours), open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        results = tuner(search, state, room).fit()
        if results.errors:
            reason = str(results.errors[0]).strip().rpartition("\n")[2]
            raise EsperError(f"{len(results.errors)} of {len(search.trials)} trials failed: {reason}")


@contextmanager
def closed(state: Path, is_ours: bool) -> Iterator[None]:
    """Remove the files of Ray Tune in the end, and end Ray itself if it was started here."""
    try:
        yield
    finally:
        shutil.rmtree(state, ignore_errors=True)
        if is_ours:
            require_ray().shutdown()


def tuner(search: Search, state: Path, room: Room) -> Any:
    """Return what runs all trials, as far as ASHA lets them go."""
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler

    jobs = [[trial.job(search, n).plain() for n in range(len(search.rungs))] for trial in search.trials]
    given = {"jobs": tune.grid_search(jobs), "rungs": list(search.rungs), "threads": room.threads, "cwd": os.getcwd()}
    scheduler = ASHAScheduler(
        time_attr="updates", max_t=search.rungs[-1], grace_period=search.rungs[0], reduction_factor=search.factor
    )
    return tune.Tuner(
        tune.with_resources(trial, {"cpu": room.threads, "gpu": room.gpus}),
        param_space=given,
        tune_config=tune.TuneConfig(
            metric="j", mode="max", scheduler=scheduler, max_concurrent_trials=room.at_once, reuse_actors=False
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(state),
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=ATTEMPTS - 1),
            callbacks=[heard(tune.Callback)],
        ),
    )


def trial(config: Mapping[str, Any]) -> None:
    """Train rung by rung in a process of its own, and report J at each rung, until the trial is stopped."""
    from ray import tune

    os.chdir(config["cwd"])
    for until, plain in zip(config["rungs"], config["jobs"], strict=True):
        job = Job.revived(plain)
        if not job.is_done and (job.done.parent / ENDED).exists():
            return
        list(run_jobs([job], Processes(1, config["threads"])))
        tune.report({"j": json.loads(job.done.read_text(encoding="utf-8"))["j"], "updates": until})


def heard(base: type) -> Any:
    """Return a callback of Ray Tune that prints results, and notes which trials have ended: they never go on."""

    def done_of(trial: Any) -> Path:
        return Path(trial.config["jobs"][0]["done"])

    class Heard(base):
        def on_trial_result(self, iteration: int, trials: Sequence[Any], trial: Any, result: Any, **info: Any) -> None:
            said = f"trial {done_of(trial).parent.name}: J {result['j']:.4f} after {result['updates']} updates"
            literal_console(stderr=True).log(said)  # Ray Tune keeps a copy of this callback, which can hold no console

        def on_trial_complete(self, iteration: int, trials: Sequence[Any], trial: Any, **info: Any) -> None:
            (done_of(trial).parent / ENDED).write_text("")

    return Heard()
