"""The GPT example trains, grows, and leaves an ordinary model."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def gpt(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import gpt

    return gpt


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / "gpt.py"), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


@pytest.mark.slow
def test_a_gpt_grows_to_four_blocks_and_loads_into_its_constructor(tmp_path, gpt):
    text = tmp_path / "text.txt"
    text.write_text("All work and no play makes Jack a dull boy.\n" * 100)
    done = run(text, "--steps", 60, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    saved = tmp_path / "out/gpt.safetensors"
    model = gpt.GPT(depth=4)
    model.load_state_dict(load_file(saved))
    _, validation = gpt.text_file(text)
    assert f"4 blocks, validation loss {gpt.evaluate(model, validation):.3f}" in done.stdout
    assert "\ndef" in done.stdout
    assert gpt.evaluate(model, validation) < gpt.evaluate(gpt.GPT(depth=4), validation) - 1


@pytest.mark.parametrize(("text", "reason"), [(None, "there is no file"), ("short", "the text is too short")])
def test_a_text_that_cannot_be_used_is_refused_in_one_sentence(tmp_path, text, reason):
    path = tmp_path / "text.txt"
    if text is not None:
        path.write_text(text)
    done = run(path, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert reason in done.stderr.splitlines()[-1]
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_standard_library_is_split_by_file_without_tests(gpt):
    data, validation = gpt.standard_library()
    text, held_out = bytes(data.tolist()), bytes(validation.tolist())
    sources = [path.read_bytes() for path in Path(os.__file__).parent.glob("*.py")]
    assert all((source in text) != (source in held_out) for source in sources if len(source) > 1000)
    assert any(source in held_out for source in sources)
    assert 0.02 < len(held_out) / len(text) < 0.1
    assert b"import unittest\nfrom test import support" not in text + held_out
    assert all(same.equal(once) for same, once in zip(gpt.standard_library(), (data, validation), strict=True))
