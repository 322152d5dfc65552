"""The demo runs, compares fairly, and says plainly who won."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def demo(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import demo

    return demo


@pytest.mark.slow
def test_a_quick_demo_spends_the_same_compute_on_every_arm_and_writes_its_report(tmp_path):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "demo.py"), "--quick"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    runs = json.loads((tmp_path / "runs/demo/runs.json").read_text())
    assert [run["arm"]["name"] for run in runs] == ["grown 1-2-4", "fixed 1", "fixed 2", "fixed 3", "fixed 4"]
    grown, one, *_, four = runs
    for run in runs:
        assert abs(run["flops"] - one["flops"]) <= max(run["step_cost"], one["step_cost"])
        assert f"{run['loss']:.3f}" in done.stdout
    assert [sum(birth["depth"].values()) for birth in grown["births"]] == [2, 4]
    assert grown["parameters"] == four["parameters"] > one["parameters"]
    assert not any(run["births"] for run in runs[1:])
    report = (tmp_path / "runs/demo/report.html").read_text()
    assert "<svg" in report
    assert "4 blocks" in report
    assert not re.search(r"(src|href)=\"(?!#)|@import|url\((?!#)", report)


@pytest.mark.parametrize(("loss", "says"), [(1.4, "Growing won: "), (1.6, "Growing lost: "), (1.5, "Level: ")])
def test_the_verdict_compares_with_the_best_fixed_depth(demo, loss, says):
    fixed = [demo.Run(arm, loss=1.5 + 0.1 * i) for i, arm in enumerate(reversed(demo.FIXED))]
    sentence = demo.verdict([demo.Run(demo.GROWN, loss=loss), *fixed])
    assert sentence.startswith(says)
    assert "(4, known only in hindsight: 1.500)" in sentence
    assert sentence.count(".") == len(re.findall(r"\d\.\d", sentence)) + 1


@pytest.mark.parametrize("sign", [1, -1])
def test_a_difference_within_the_noise_between_seeds_is_level(demo, sign):
    rival = demo.Run(demo.FIXED[0], loss=1.5)
    near = demo.Run(demo.GROWN, loss=1.5 + 0.99 * sign * demo.NOISE)
    assert demo.verdict([near, rival]).startswith("Level: ")
    assert not demo.verdict([replace(near, loss=1.5 + 1.01 * sign * demo.NOISE), rival]).startswith("Level: ")
