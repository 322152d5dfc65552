"""The examples of growing one's own model train, grow, and leave ordinary models."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


@pytest.mark.slow
def test_a_residual_network_grows_in_both_stages_and_loads_into_its_constructor():
    done = run("residual_cnn", "--epochs", 4)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^stage1 +chain +1 Block +64×16×8×8 ", done.stdout, re.MULTILINE)
    last = re.fullmatch(r"4 \+ 4 blocks, test accuracy (0\.\d+|1\.0+)", done.stdout.splitlines()[-1])
    assert last, done.stdout
    assert float(last[1]) > 0.3, "chance is 0.1"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")
def test_a_vision_transformer_grows_and_loads_with_equal_logits(tmp_path, monkeypatch):
    done = run("vit", "--steps", 120, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "logits of the loaded model: equal, bit for bit" in done.stdout
    said = re.search(r"^8 layers, test accuracy (\d\.\d+)", done.stdout, re.MULTILINE)
    assert said, done.stdout
    monkeypatch.syspath_prepend(str(EXAMPLES))
    vit = importlib.import_module("vit")
    model = vit.ViTForImageClassification.from_pretrained(tmp_path / "out")
    _, (x, y) = vit.digits()
    accuracy = (vit.logits(model, x).argmax(1) == y).float().mean().item()
    assert said[1] == f"{accuracy:.4f}"
    assert accuracy > 0.2, "chance is 0.1"


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["heuristic", "learned"])
def test_an_mlp_with_seeds_becomes_plain_and_is_exported(tmp_path, policy):
    done = run("seeds_in_mlp", "--policy", policy, "--steps", 400, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    said = re.search(r"^test accuracy (\S+), exported (\S+);", done.stdout, re.MULTILINE)
    assert said, done.stdout
    assert said[1] == said[2]
    if policy == "heuristic":
        assert "plant      fc1: mlp" in done.stdout
        assert "(1): Seed(" in done.stdout
    exported = torch.export.load(tmp_path / "out/mlp.pt2").module()
    assert exported(torch.zeros(1000, 2)).shape == (1000, 3)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("residual_cnn", ["--epochs", 0]), ("vit", ["--steps", 0]), ("seeds_in_mlp", ["--steps", 0])],
)
def test_a_budget_of_nothing_is_refused_in_one_sentence(name, arguments):
    done = run(name, *arguments)
    assert done.returncode == 2
    assert re.search(r"--\w+ must be (positive|at least 1), not 0", done.stderr.splitlines()[-1])
