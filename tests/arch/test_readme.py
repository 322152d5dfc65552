"""The code people copy works as it stands."""

import re
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]


def test_the_readmes_five_lines(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert sum("esper" in line or "growth." in line for line in code.splitlines()) <= 7
    with torch.random.fork_rng():
        torch.manual_seed(0)
        names: dict[str, object] = {}
        exec(compile(code, "README.md", "exec"), names)
    assert "{'1': 8}" in capsys.readouterr().out, "two blocks became eight"
    assert float(names["loss"].detach()) < 0.1
