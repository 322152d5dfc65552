"""A long run needs no more memory than a short one."""

import json
import subprocess
import sys

import pytest

LONG = """
import gc, json, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from esper.recipes import recipe
from esper.simic import CollectConfig, LearnConfig
from esper.simic.checkpoint import save_training_run
from esper.simic.train import Training
from esper.telemetry import Board, RunFolder
from esper.telemetry.folder import environment
sys.path.insert(0, sys.argv[2])
from small_fleets import controller_for, make_env

folder = RunFolder.create(Path(sys.argv[1]), recipe("smoke").plain(), environment("cpu", 1))
config = LearnConfig(updates=500, collect=CollectConfig(horizon=2))
training = Training([make_env("mlp", 2, episode=3, staggered=True)], controller_for(), config)
board, seen = Board("x", 500), []
for update in range(500):
    report = training.step()
    folder.append(report)
    board.hear(report)
    if update % 50 == 49:
        save_training_run(folder.checkpoint_path(update), training, {})
        folder.keep(2)
        gc.collect()
        seen.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20)
assert len(folder.reports()) == 500
print(json.dumps(seen))
"""


@pytest.mark.slow
def test_five_hundred_updates_leave_nothing_behind(tmp_path, pytestconfig):
    tests = str(pytestconfig.rootpath / "tests")
    done = subprocess.run(
        [sys.executable, "-c", LONG, str(tmp_path / "run"), tests], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    megabytes = json.loads(done.stdout)
    assert megabytes[-1] - megabytes[1] < 5, f"it grew: {megabytes}"
