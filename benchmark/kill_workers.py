"""Kill workers at random moments, resume, and see whether the run ends as one that nobody has disturbed.

Each round kills a worker, the first worker or the launcher by SIGKILL, also while a checkpoint is being written, and
goes on with `esper resume`; with --ray, Ray replaces workers by itself, and the launcher is its driver. Every run must
end with the same weights and the same logs as an undisturbed one.

python benchmark/kill_workers.py [--kills 21] [--workers 2] [--recipe smoke_workers] [--ray]
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from esper.leyline.tensor_files import read
from esper.tamiyo.controller_files import CONTROLLER_FORMAT

SLOW = """
import os, time
fsync = os.fsync
def slow(file):
    fsync(file)
    time.sleep({seconds})
os.fsync = slow
"""
"""Makes writing a file take a while, so that some of the kills hit a checkpoint that is being written."""
SMALL = [
    word
    for n in range(4)
    for flag, value in (("hosts", 2), ("env.group", 1), ("env.episode", 3), ("options.examples", 200))
    for word in (f"--fleets.{n}.{flag}", str(value))
]
TARGETS = ("worker", "first worker", "launcher")
RUN = ["--learn.collect.horizon", "2", "--learn.updates", "16", "--checkpoint-every", "2", "--exam", "0"]
MARK = "ESPER_KILLED"
"""Set in the environment of all processes that are started here, however indirectly."""


@dataclass(frozen=True)
class Asked:
    """What to kill, and how often."""

    kills: int
    workers: int
    recipe: str
    ray: bool

    @property
    def several(self) -> list[str]:
        """Flags of `esper` for this many workers."""
        replaced = ["--ray", "--failures", str(self.kills)] if self.ray else []
        return ["--workers", str(self.workers), *replaced]

    def begin(self, folder: Path, several: list[str]) -> list[str]:
        """Return the command that begins a run."""
        return ["train", self.recipe, *several, *SMALL, *RUN, "--run-dir", str(folder)]


def esper(*arguments: str, slow: Path | None = None) -> subprocess.Popen[bytes]:
    """Run the command line in a process of its own."""
    path = f"{slow}{os.pathsep}{os.environ.get('PYTHONPATH', '')}" if slow else os.environ.get("PYTHONPATH", "")
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", MARK: str(os.getpid())}
    return subprocess.Popen(
        [sys.executable, "-m", "esper", *arguments], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def children(process: int) -> list[int]:
    """Return the processes that a process has started, oldest first."""
    found = subprocess.run(["pgrep", "-P", str(process)], capture_output=True, text=True, check=False)
    return [int(number) for number in found.stdout.split()]


def workers_of_ray(folder: Path) -> list[int]:
    """Return the workers of Ray Train that were caused here, the one that writes first; none before it writes."""
    mark, found = f"{MARK}={os.getpid()}".encode(), set[int]()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_worker = (process / "cmdline").read_bytes().startswith(b"ray::RayTrainWorker")
            if is_worker and mark in (process / "environ").read_bytes().split(b"\0"):
                found.add(int(process.name))
    with suppress(OSError, ValueError):
        first = json.loads((folder / ".lock").read_text())["process"]
        return [first, *sorted(found - {first})] if first in found else []
    return []


def is_alive(process: int) -> bool:
    """Return whether a process runs; one that has ended may still be listed."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def logs(folder: Path) -> list[str]:
    """Return what a run has logged, without times."""
    reports = [json.loads(line) | {"seconds": None} for line in (folder / "reports.jsonl").read_text().splitlines()]
    return [json.dumps(reports), *((folder / name).read_text() for name in ("episodes.jsonl", "garden.jsonl"))]


def same(one: Path, other: Path) -> bool:
    """Return whether two runs have ended with the same weights and logs."""
    weights, others = (read(folder / "controller.safetensors", CONTROLLER_FORMAT)[0] for folder in (one, other))
    return all(weights[name].equal(others[name]) for name in weights) and logs(one) == logs(other)


def is_saving(folder: Path, since: float) -> bool:
    """Return whether a checkpoint is being written, by a process that was started at this time."""
    partial = (path for path in (folder / "checkpoints").glob(".*.partial"))
    with suppress(FileNotFoundError):
        return any(path.stat().st_mtime > since for path in partial)
    return False


def is_done(folder: Path) -> bool:
    return (folder / "controller.safetensors").exists()


def killed(
    process: subprocess.Popen[bytes], folder: Path, random_: random.Random, target: str, asked: Asked
) -> str | None:
    """Kill a part of a run at a random moment, and return when; None if the run ended before."""
    begun, workers = time.time(), list[int]()
    while process.poll() is None and len(workers) < asked.workers:
        time.sleep(0.01)
        workers = workers_of_ray(folder) if asked.ray else children(process.pid)
    in_checkpoint = random_.random() < 0.5
    latest = 30.0 if in_checkpoint else random_.uniform(0.0, 4.0) if asked.ray else random_.uniform(2.0, 9.0)
    until = time.time() + latest
    while process.poll() is None and time.time() < until and not (in_checkpoint and is_saving(folder, begun)):
        time.sleep(0.005)
    if process.poll() is not None or is_done(folder):
        return None
    when = "while a checkpoint was being written" if is_saving(folder, begun) else "between checkpoints"
    victim = {"worker": workers[-1], "first worker": workers[0], "launcher": process.pid}[target]
    with suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL)
    if target == "launcher" or not asked.ray:
        process.wait()
    while any(map(is_alive, workers)):
        time.sleep(0.01)
    return when if process.poll() != 0 else None


def kill_and_compare(asked: Asked, base: Path) -> tuple[Counter[str], int]:
    """Kill as often as asked; return how often what was killed when, and the number of runs, which all ended well."""
    random_, counts, runs = random.Random(7), Counter[str](), 0
    whole, slow = base / "whole", base / "slow"
    slow.mkdir()
    (slow / "sitecustomize.py").write_text(SLOW.format(seconds=0.2))
    assert esper(*asked.begin(whole, ["--workers", str(asked.workers)])).wait() == 0
    while counts.total() < asked.kills:
        folder = base / f"killed-{runs}"
        while not is_done(folder):
            begun = (folder / "config.json").exists()
            command = ["resume", str(folder), *asked.several] if begun else asked.begin(folder, asked.several)
            process = esper(*command, slow=slow)
            while process.poll() is None and counts.total() < asked.kills:
                target = TARGETS[counts.total() % len(TARGETS)]
                if not (when := killed(process, folder, random_, target, asked)):
                    break
                counts[f"{target} {when}"] += 1
                print(f"{counts.total()}: killed the {target} {when}", flush=True)
            errors = process.communicate()[1].decode()
            if process.returncode > 0 and (asked.ray or "was killed by SIGKILL" not in errors):
                sys.exit(f"{folder}: {errors}")
        assert same(whole, folder), f"{folder} ended differently"
        runs += 1
        print("ended the same; once more", flush=True)
    return counts, runs


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=21)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--recipe", default="smoke_workers")
    parser.add_argument("--ray", action="store_true")
    asked = Asked(**vars(parser.parse_args()))
    base = Path(tempfile.mkdtemp())  # left behind if something fails
    counts, runs = kill_and_compare(asked, base)
    for what, count in sorted(counts.items()):
        print(f"{count:3} {what}")
    print(f"{counts.total()} kills: all {runs} runs ended as if nothing had happened")
    shutil.rmtree(base)


if __name__ == "__main__":
    main()
