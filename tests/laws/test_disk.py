"""A disk that is full or read-only ends a run with one sentence, and what was there before stays whole."""

import subprocess
import sys
from pathlib import Path

import pytest

from esper.telemetry import RunFolder
from telemetry_toys import timeless_exams

MAIN = "import torch; torch.set_num_threads(1); from esper.cli import main; import sys; main(sys.argv[1:])"
RUN = ["train", "smoke", "--learn.updates", "6", "--fleets.0.hosts", "4", "--exam", "2", "--run-dir"]


def esper(*arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", before + MAIN, *arguments], capture_output=True, text=True, check=False
    )


def one_sentence(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 2, done.stderr
    said = [line for line in done.stderr.splitlines() if line]
    assert len(said) == 1, done.stderr
    assert said[0].startswith("esper: cannot write")
    assert any(word in said[0] for word in words), said[0]


def in_order(folder: Path) -> int:
    """How many checkpoints there are; each of them, and all that is said of the run, can be read."""
    assert not list(folder.rglob("*.partial*"))
    run = RunFolder.open(folder)
    assert len(run.reports()) >= len(run.checkpoints()) > 0
    return len(run.checkpoints())


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert esper(*RUN, str(folder)).returncode == 0
    return folder


LIMIT = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0})); "


def test_a_checkpoint_that_does_not_fit_leaves_the_one_before(whole, tmp_path):
    """The largest file that may be written is just smaller than the last checkpoints."""
    folder = tmp_path / "run"
    size = (whole / "checkpoints/000006.safetensors").stat().st_size
    done = esper(*RUN, str(folder), before=LIMIT.format(size - 1000))
    one_sentence(done, "File too large")
    assert not (folder / "controller.safetensors").exists()
    assert esper("resume", str(folder)).returncode == 0
    assert timeless_exams(folder) == timeless_exams(whole)


def mounted(mount: str, then: str) -> subprocess.CompletedProcess[str]:
    """Run something where this is mounted, for it alone."""
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here; a limit on sizes stands in, above")
    script = f"{mount} && {then}"
    return subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, check=False)


def test_a_full_disk_loses_nothing_that_was_written(whole, tmp_path):
    """A disk that has room for two checkpoints."""
    size = (whole / "checkpoints/000006.safetensors").stat().st_size
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    room = (2 * size + 120_000) // 1024
    run = f"{sys.executable} -c '{MAIN}' {' '.join(RUN)} {disk}/run; code=$?; cp -r {disk}/run {kept}; exit $code"
    done = mounted(f"mount -t tmpfs -o size={room}k tmpfs {disk}", run)
    one_sentence(done, "No space left on device")
    assert in_order(kept) >= 1
    assert esper("resume", str(kept)).returncode == 0
    assert timeless_exams(kept) == timeless_exams(whole)


@pytest.mark.parametrize("command", ["report {0}", "exam {0}", "train smoke --run-dir {0}/new"])
def test_a_folder_that_may_only_be_read_is_named_and_left_as_it_is(command, whole):
    before = {path: path.read_bytes() for path in whole.rglob("*.*") if path.is_file()}
    only_read = f"mount --bind {whole} {whole} && mount -o remount,ro,bind {whole}"
    done = mounted(only_read, f"{sys.executable} -c '{MAIN}' {command.format(whole)}")
    assert done.returncode == 2, done.stderr
    assert "Read-only file system" in done.stderr
    assert str(whole) in done.stderr
    assert {path: path.read_bytes() for path in whole.rglob("*.*") if path.is_file()} == before
