"""Law 9 for whole runs: killed at any moment and resumed, a run ends as if nothing had happened."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from esper.cli import main
from telemetry_toys import MAIN, SMALL, reports_of, same_runs

RUN = [
    "train",
    "smoke",
    *SMALL,
    "--learn.updates",
    "8",
    "--fleets.0.hosts",
    "4",
    "--checkpoint-every",
    "1",
    "--run-dir",
]
KILLER = """
import os, random, signal, sys, time
sys.modules["matplotlib"] = None
import torch
torch.set_num_threads(1)
from esper.cli import main
import esper.cli.commands

folder, kills = sys.argv[1], int(sys.argv[2])
random.seed(7)
fsync = os.fsync

def slow(file):
    # Writing takes a while, so that many of the kills hit a checkpoint that is being written.
    fsync(file)
    time.sleep(0.1)

def child(arguments):
    number = os.fork()
    if number == 0:
        sys.stdout = sys.stderr = open(os.devnull, "w")
        os.fsync = slow
        code = 1
        try:
            main(arguments)
            code = 0
        finally:
            os._exit(code)
    return number

done = 0
while True:
    begun = os.path.exists(folder + "/config.json")
    number = child(["resume", folder] if begun else sys.argv[3:] + [folder])
    if done < kills:
        time.sleep(random.uniform(0.05, 0.9))
        os.kill(number, signal.SIGKILL)
    _, status = os.waitpid(number, 0)
    if os.WIFSIGNALED(status):
        done += 1
    elif status == 0:
        break
    else:
        sys.exit(f"a child failed after {done} kills")
print(done)
"""


def run(code: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    main([*RUN, str(folder)])
    return folder


@pytest.mark.slow
def test_killed_25_times_and_resumed_it_ends_the_same(whole, tmp_path):
    folder = tmp_path / "killed"
    kills = int(run(KILLER, str(folder), "25", *RUN))
    assert kills >= 10, "most kills must hit a run that was still going on"
    same_runs(whole, folder, "checkpoints/best.safetensors")


def test_a_signal_ends_a_run_with_a_checkpoint(whole, tmp_path):
    """Though the next one would be written much later."""
    folder = tmp_path / "stopped"
    arguments = [*RUN[:-1], "--checkpoint-every", "99", "--run-dir", str(folder)]
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not (folder / "reports.jsonl").exists():
        time.sleep(0.02)
        assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert "esper resume" in out
    assert 0 < len(reports_of(folder)) < 8
    assert not (folder / "controller.safetensors").exists()
    assert [path.stem for path in (folder / "checkpoints").glob("0*")] == [f"{len(reports_of(folder)):06d}"]
    main(["resume", str(folder)])
    same_runs(whole, folder)
