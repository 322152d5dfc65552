"""The examples run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples/offline.py"


@pytest.mark.slow
def test_learning_offline_beats_never_growing(tmp_path):
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), str(tmp_path / "episodes.safetensors")],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 4
    never, learned = map(float, re.findall(r"J (\d\.\d+)", done.stdout))
    assert learned > never + 0.02
    assert (tmp_path / "episodes.safetensors").exists()
