"""Births and rollbacks happen at the same step on all processes, and weights stay identical."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).parent / "ddp_worker.py"


@pytest.mark.parametrize("order", ["first", "last"])
def test_two_processes_with_two_births_keep_identical_weights(tmp_path, order):
    """DDP wraps the model before it is grown, or after."""
    env = os.environ | {"PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{WORKER.parents[1]}"}
    command = [sys.executable, str(WORKER)]
    workers = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "rendezvous"), order],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    ended = [(*worker.communicate(timeout=240), worker.returncode) for worker in workers]
    for rank, (out, errors, code) in enumerate(ended):
        assert code == 0, errors
        said = out.strip().splitlines()[-1]
        births, checks = (json.loads(part.lower()) for part in re.findall(r"\[.*?\]", said))
        assert said.startswith(f"{rank} ["), said
        assert len(births) == 2, said
        assert checks == [True] * 6, said
