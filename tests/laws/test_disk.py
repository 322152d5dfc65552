"""A disk that is full or read-only ends a run with one sentence, and what was there before stays whole."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from esper.cli import main
from esper.telemetry import RunFolder
from telemetry_toys import MAIN, SMALL, timeless_exams

RUN = ["train", "smoke", *SMALL, "--learn.updates", "4", "--run-dir"]


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


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run of four updates, with a checkpoint after every second."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    main([*RUN, str(folder)])
    return folder


@pytest.fixture
def stopped(whole, tmp_path) -> Path:
    """The same, as if it had been killed in its third update."""
    folder = tmp_path / "stopped"
    shutil.copytree(whole, folder)
    for name in ("checkpoints/000004.safetensors", "controller.safetensors", "exam.json", "lives.jsonl"):
        (folder / name).unlink()
    return folder


def goes_on(folder: Path, before: bytes, whole: Path) -> None:
    """What was written last is as it was, and what could not be written is gone; with room it ends as it should."""
    (newest,) = RunFolder.open(folder).checkpoints()
    assert newest.read_bytes() == before
    assert not list(folder.rglob("*.partial*"))
    main(["resume", str(folder)])
    assert timeless_exams(folder) == timeless_exams(whole)


LIMIT = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0})); "


def test_a_checkpoint_that_does_not_fit_leaves_the_one_before(whole, stopped):
    """The largest file that may be written is half as large."""
    before = (stopped / "checkpoints/000002.safetensors").read_bytes()
    one_sentence(esper("resume", str(stopped), before=LIMIT.format(len(before) // 2)), "File too large")
    goes_on(stopped, before, whole)


def mounted(mount: str, then: str) -> subprocess.CompletedProcess[str]:
    """Run something where this is mounted, for it alone."""
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here; a limit on sizes stands in, above")
    script = f"{mount} && {then}"
    return subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, check=False)


def test_a_full_disk_loses_nothing_that_was_written(whole, stopped, tmp_path):
    """A disk that has room for half a checkpoint more."""
    before = (stopped / "checkpoints/000002.safetensors").read_bytes()
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    room = (sum(path.stat().st_size for path in stopped.rglob("*")) + len(before) // 2) // 1024
    run = f'cp -r {stopped} {disk}/run; {sys.executable} -c "{MAIN}" resume {disk}/run; code=$?'
    done = mounted(f"mount -t tmpfs -o size={room}k tmpfs {disk}", f"{run}; cp -r {disk}/run {kept}; exit $code")
    one_sentence(done, "No space left on device")
    goes_on(kept, before, whole)


THREE = """
import sys
from esper.cli import main

folder = sys.argv[1]
for arguments in (["report", folder], ["exam", folder], ["train", "smoke", "--run-dir", f"{folder}/new"]):
    try:
        main(arguments)
    except SystemExit as exit:
        print(exit.code)
"""


def test_a_folder_that_may_only_be_read_is_named_and_left_as_it_is(whole, tmp_path):
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    (tmp_path / "three.py").write_text(THREE)
    only_read = f"mount --bind {whole} {whole} && mount -o remount,ro,bind {whole}"
    done = mounted(only_read, f"{sys.executable} {tmp_path}/three.py {whole}")
    assert done.stdout.split() == ["2", "2", "2"], done.stderr
    said = [line for line in done.stderr.splitlines() if "Read-only file system" in line]
    assert len(said) == 3
    assert all(str(whole) in line for line in said)
    assert {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()} == before
