"""Kill workers at random moments, resume, and see whether the run ends as one that nobody has disturbed.

Each round kills a worker, the first worker or the launcher by SIGKILL, also while a checkpoint is being written, and
goes on with `esper resume`. The run must end with the same weights and the same logs as an undisturbed one.

python benchmark/kill_workers.py [--kills 20] [--workers 2] [--recipe smoke_workers]
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
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
RUN = ["--learn.collect.horizon", "2", "--learn.updates", "12", "--checkpoint-every", "2", "--exam", "0"]


def esper(*arguments: str, slow: Path | None = None) -> subprocess.Popen[bytes]:
    """Run the command line in a process of its own."""
    path = f"{slow}{os.pathsep}{os.environ.get('PYTHONPATH', '')}" if slow else os.environ.get("PYTHONPATH", "")
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "esper", *arguments], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def children(process: int) -> list[int]:
    """Return the processes that a process has started, oldest first."""
    found = subprocess.run(["pgrep", "-P", str(process)], capture_output=True, text=True, check=False)
    return [int(number) for number in found.stdout.split()]


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


def killed(process: subprocess.Popen[bytes], folder: Path, random_: random.Random, target: str) -> str | None:
    """Kill a part of a run at a random moment, and return when; None if the run ended before."""
    begun, workers = time.time(), list[int]()
    while process.poll() is None and not (workers := children(process.pid)):
        time.sleep(0.01)
    in_checkpoint = random_.random() < 0.5
    until = begun + (30 if in_checkpoint else random_.uniform(2.0, 9.0))
    while process.poll() is None and time.time() < until and not (in_checkpoint and is_saving(folder, begun)):
        time.sleep(0.005)
    if process.poll() is not None or not workers:
        return None
    when = "while a checkpoint was being written" if is_saving(folder, begun) else "between checkpoints"
    with suppress(ProcessLookupError):
        os.kill({"worker": workers[-1], "first worker": workers[0], "launcher": process.pid}[target], signal.SIGKILL)
    process.wait()
    while any(map(is_alive, workers)):
        time.sleep(0.01)
    return when if process.returncode else None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--recipe", default="smoke_workers")
    asked = parser.parse_args()
    random_, done, counts = random.Random(7), 0, dict[str, int]()
    with tempfile.TemporaryDirectory() as base:
        whole, folder, slow = (Path(base) / name for name in ("whole", "killed", "slow"))
        slow.mkdir()
        (slow / "sitecustomize.py").write_text(SLOW.format(seconds=0.2))
        begin = ["train", asked.recipe, "--workers", str(asked.workers), *SMALL, *RUN, "--run-dir"]
        assert esper(*begin, str(whole)).wait() == 0
        while done < asked.kills:
            begun = (folder / "config.json").exists()
            process = esper(*(["resume", str(folder)] if begun else [*begin, str(folder)]), slow=slow)
            target = TARGETS[done % len(TARGETS)]
            if when := killed(process, folder, random_, target):
                done += 1
                counts[when] = counts.get(when, 0) + 1
                print(f"{done}: killed the {target} {when}", flush=True)
            elif process.wait():
                sys.exit((process.stderr.read() if process.stderr else b"").decode())
            elif (folder / "controller.safetensors").exists():
                assert same(whole, folder), "it ended differently"
                print("ended the same; once more", flush=True)
                folder = folder.with_name(f"{folder.name}-")
        if (folder / "config.json").exists():
            assert esper("resume", str(folder)).wait() == 0
            assert same(whole, folder), "it ended differently"
        print(f"{done} kills {counts}: every run ended as if nothing had happened")


if __name__ == "__main__":
    main()
