"""Law 9 for several workers: whichever of them is killed, a resumed run ends as if nothing had happened."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from esper.cli.train import Resume
from esper.leyline.errors import FileError
from esper.telemetry import RunFolder
from jobs_toys import QUICK_RAY
from telemetry_toys import same_runs

UPDATES = 12
SMALL = [
    word
    for n in range(4)
    for flag, value in (("hosts", 2), ("env.group", 1), ("env.episode", 3), ("options.examples", 200))
    for word in (f"--fleets.{n}.{flag}", str(value))
]
RUN = ["train", "smoke_workers", *SMALL, "--learn.collect.horizon", "2", "--learn.updates", str(UPDATES)]
RUN += ["--checkpoint-every", "2", "--exam", "0"]
SLOW = """
import os, time
flush = os.fsync
def slow(file):
    flush(file)
    if "/checkpoints/" in os.readlink(f"/proc/self/fd/{file}"):
        time.sleep(0.15)
os.fsync = slow
"""
"""Writing a checkpoint takes a while, so that a kill can hit one that is being written."""
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
MARK = "ESPER_TEST"
"""Set in the environment of all processes that a test has started, however indirectly."""
TORCHRUN += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]


@pytest.fixture(scope="module", autouse=True)
def slow(tmp_path_factory):
    """Let all processes that the tests start write slowly."""
    folder = tmp_path_factory.mktemp("slow")
    (folder / "sitecustomize.py").write_text(SLOW)
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        changed.setenv("OMP_NUM_THREADS", "1")
        for name, value in QUICK_RAY.items():
            changed.setenv(name, value)
        changed.setenv(MARK, str(os.getpid()))
        yield


@pytest.fixture(scope="module")
def esper(slow):
    """A function that starts the command line in a process of its own."""

    def started(*arguments: str, program: list[str] = [sys.executable]) -> subprocess.Popen[str]:  # noqa: B006
        command = [*program, "-m", "esper", *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        processes.append(subprocess.Popen(command, text=True, **pipes))
        return processes[-1]

    processes: list[subprocess.Popen[str]] = []
    yield started
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def whole(tmp_path_factory, esper) -> Path:
    """A run of torchrun's that nobody has disturbed."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    finished(esper(*RUN, "--run-dir", str(folder), program=TORCHRUN))
    assert RunFolder(folder).environment()["workers"] == 2
    return folder


def workers_of(launcher: subprocess.Popen[str]) -> list[int]:
    """The processes that a launcher has started, in order of rank."""
    found = subprocess.run(["pgrep", "-P", str(launcher.pid)], capture_output=True, text=True, check=False)
    return [int(number) for number in found.stdout.split()]


def wait_for(what, launcher: subprocess.Popen[str]) -> None:
    while not what():
        time.sleep(0.005)
        assert launcher.poll() is None, launcher.communicate()


def made(folder: Path) -> int:
    """Number of updates that a run has logged."""
    path = folder / "reports.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def is_saving(folder: Path) -> bool:
    return any((folder / "checkpoints").glob(".*.partial"))


def finished(launcher: subprocess.Popen[str]) -> tuple[str, str]:
    said = launcher.communicate(timeout=120)
    assert launcher.returncode == 0, said
    return said


@pytest.mark.slow
def test_stopped_and_killed_workers_leave_a_run_that_ends_as_that_of_torchrun_does(whole, tmp_path, esper):
    """SIGTERM of a worker; SIGKILL of the first while it saves, and of the launcher. The benchmark kills more often."""
    folder = tmp_path / "killed"
    run = esper(*RUN, "--workers", "2", "--run-dir", str(folder))
    wait_for(lambda: made(folder) >= 1, run)
    os.kill(workers_of(run)[1], signal.SIGTERM)
    out, _ = finished(run)
    assert f"go on with `esper resume {folder}`" in out, "all have stopped with the one that was asked to"
    assert [int(path.stem) for path in RunFolder(folder).checkpoints()][-1] == made(folder) < UPDATES

    run = esper("resume", str(folder))
    begun = made(folder)
    wait_for(lambda: made(folder) > begun, run)
    with pytest.raises(FileError, match=f"{folder} is being written by"):
        Resume(run_dir=folder, workers=1).run()
    wait_for(lambda: is_saving(folder), run)
    os.kill(workers_of(run)[0], signal.SIGKILL)
    _, errors = run.communicate(timeout=60)
    assert errors == f"esper: worker 0 of 2 was killed by SIGKILL: go on with `esper resume {folder}`\n"

    run = esper("resume", str(folder))
    wait_for(lambda: RunFolder(folder).writer() is not None and is_saving(folder), run)
    workers = workers_of(run)
    run.kill()
    run.communicate(timeout=60)
    wait_for_end(workers)
    assert not RunFolder(folder).done
    finished(esper("resume", str(folder)))
    same_runs(whole, folder, "checkpoints/best.safetensors")


def is_alive(process: int) -> bool:
    """Whether a process runs; one that has ended may still be listed."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for_end(processes: list[int]) -> None:
    """Wait until processes have ended, which nobody tells but the end of their launcher."""
    until = time.monotonic() + 20
    while any(map(is_alive, processes)):
        assert time.monotonic() < until, "a worker has outlived its launcher"
        time.sleep(0.01)


@pytest.mark.slow
def test_ray_replaces_workers_and_what_its_driver_leaves_is_resumed_without_it(whole, tmp_path, esper):
    """SIGKILL of the first while it saves, and of the driver. The benchmark kills other workers, too."""
    pytest.importorskip("ray")
    folder = tmp_path / "ray"
    run = esper(*RUN, "--ray", "--workers", "2", "--run-dir", str(folder))
    wait_for(lambda: is_saving(folder), run)
    os.kill(first := writer_of(folder), signal.SIGKILL)
    wait_for(lambda: writer_of(folder) not in (None, first), run)
    begun = made(folder)
    wait_for(lambda: made(folder) > begun, run)
    workers = ray_workers()
    run.kill()
    run.communicate(timeout=60)
    wait_for_end(workers)
    finished(esper("resume", str(folder)))
    same_runs(whole, folder, "checkpoints/best.safetensors")


def writer_of(folder: Path) -> int | None:
    """The process that writes to a run folder."""
    try:
        return json.loads((folder / ".lock").read_text())["process"]
    except (FileNotFoundError, ValueError):
        return None


def ray_workers() -> list[int]:
    """The workers of Ray Train that this process has caused."""
    mark, found = f"{MARK}={os.getpid()}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_worker = (process / "cmdline").read_bytes().startswith(b"ray::RayTrainWorker")
            if is_worker and mark in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found
