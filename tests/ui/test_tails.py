"""A log is read on from where reading ended: every line once, in bounded memory, whatever happens to the file."""

import os
import time
import tracemalloc
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.ui import tails
from esper.ui.folders import Folder
from esper.ui.tails import Log

LATER = float("inf")
BYTES = st.lists(st.sampled_from([b"\n", b"1", b"22", b'"a"', b"{", b"\xff", b"\x00", b"x" * 40]), max_size=30)


def new_log() -> Log:
    return Log("log", list, lambda made, at, line: made.append((at, line)))


def read(log: Log, folder: Path, until: float = LATER) -> list:
    fd = os.open(folder, os.O_RDONLY)
    try:
        log.advance(Folder(fd), until)
    finally:
        os.close(fd)
    return log.made


def values(log: Log, folder: Path) -> list:
    return [line for _, line in read(log, folder)]


@given(BYTES, st.lists(st.integers(0, 200)), st.sampled_from([2, 7, 1 << 18]))
def test_a_log_read_in_parts_is_the_log_read_at_once(tmp_path_factory, pieces, cuts, size):
    """However its writer and its reader take turns, and however small the slices are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tails, "SLICE", size)
        patch.setattr(tails, "LONGEST", 30)
        folder, text = tmp_path_factory.mktemp("log"), b"".join(pieces)
        bounds = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
        log = new_log()
        for begin, end in pairwise(bounds):
            with open(folder / "log", "ab") as file:
                file.write(text[begin:end])
            for _ in range(3):
                read(log, folder, until=0)  # one slice
        read(log, folder)
        whole, at = [], 0
        for line in text.split(b"\n")[:-1]:
            whole.append((at, len(line) > 30))
            at += len(line) + 1
        if len(text) - at > 30:
            whole.append((at, True))
        assert [at for at, _ in log.made] == [at for at, _ in whole]
        assert all(line is None for (_, line), (_, is_long) in zip(log.made, whole, strict=True) if is_long)


def test_a_half_written_line_waits(tmp_path):
    log = new_log()
    (tmp_path / "log").write_text('{"a": 1}\n{"b"')
    assert values(log, tmp_path) == [{"a": 1}]
    assert log.tail.reading == 1.0
    assert values(log, tmp_path) == [{"a": 1}]
    with open(tmp_path / "log", "a") as file:
        file.write(": 2}\n")
    assert values(log, tmp_path) == [{"a": 1}, {"b": 2}]


def test_damaged_lines_are_told_as_none(tmp_path):
    (tmp_path / "log").write_bytes(
        b'1\n\nnot json\n\xff\xfe\n"\xff"\n' + b"[" * 100_000 + b"\n" + b"9" * 5000 + b"\n2\n"
    )
    assert values(new_log(), tmp_path) == [1, None, None, None, None, None, None, 2]


@pytest.mark.parametrize("after", ["", "4\n", "4\n5\n6\n7\n", "4\n5\n"], ids=["cut", "less", "more", "as much"])
def test_a_log_that_was_cut_and_written_on_is_read_anew(tmp_path, after):
    log = new_log()
    (tmp_path / "log").write_text("1\n2\n3\n")
    assert values(log, tmp_path) == [1, 2, 3]
    with open(tmp_path / "log", "r+") as file:
        file.truncate(2)
        file.seek(2)
        file.write(after)
    assert values(log, tmp_path) == [1, *map(int, after.split())]


def test_a_log_that_was_replaced_or_removed_is_read_anew(tmp_path):
    log, same = new_log(), "2\n" * 2000
    (tmp_path / "log").write_text("1\n" + same)
    values(log, tmp_path)
    (tmp_path / "other").write_text("3\n" + same + "4\n")
    (tmp_path / "other").replace(tmp_path / "log")
    assert values(log, tmp_path) == [3, *[2] * 2000, 4]
    (tmp_path / "log").unlink()
    assert values(log, tmp_path) == []
    (tmp_path / "log").write_text("5\n")
    assert values(log, tmp_path) == [5]


def test_nothing_is_read_twice(tmp_path):
    log = new_log()
    (tmp_path / "log").write_text("1\n2\n")
    values(log, tmp_path)
    log.made.clear()
    with open(tmp_path / "log", "a") as file:
        file.write("3\n")
    assert read(log, tmp_path) == [(4, 3)]


def test_a_line_that_is_too_long_is_left_out_once(tmp_path, monkeypatch):
    monkeypatch.setattr(tails, "SLICE", 64)
    monkeypatch.setattr(tails, "LONGEST", 1000)
    (tmp_path / "log").write_text("1\n" + '"' + "x" * 998 + '"\n' + "x" * 1001 + "\n" + "x" * 9999 + "\n2\n")
    assert values(new_log(), tmp_path) == [1, "x" * 998, None, None, 2]


def test_a_sparse_file_of_two_gigabytes_needs_little_memory(tmp_path):
    with open(tmp_path / "log", "wb") as file:
        file.write(b"1\n")
        file.seek(2 << 30)
        file.write(b"\n2\n")
    log = new_log()
    tracemalloc.start()
    try:
        read(log, tmp_path, until=time.monotonic() + 0.02)
        assert 0 < log.tail.reading < 1
        shares = [log.tail.reading]
        while not log.tail.is_done and len(shares) < 4000:
            read(log, tmp_path, until=time.monotonic() + 0.1)
            shares.append(log.tail.reading)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
    assert shares == sorted(shares)
    assert [line for _, line in log.made] == [1, None, 2]
    assert log.tail.reading == 1.0
