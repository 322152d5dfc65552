"""The code people copy works as it stands."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_readmes_ten_lines(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(code.strip().splitlines()) <= 12
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})
    assert (tmp_path / "grown.safetensors").exists()
    epochs = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [epoch[0] for epoch in epochs] == [str(n) for n in range(20)]
    assert any(epoch[1] == "GERMINATE" for epoch in epochs)
    assert float(epochs[-1][2]) > 0.7
    assert int(epochs[-1][3]) > 818, "the host has grown"
