"""What the list says of a run: its state, and J, from samples first and exactly later."""

import json
import math
import os
import time

import pytest

from esper.telemetry import RunFolder
from esper.telemetry.lock import locked
from esper.ui import runs
from esper.ui.runs import NEAR, SPARK, Summary, updates_of
from ui_toys import Asker, append, line, short_line, write_growth, write_run


def state(folder, name: str = "run") -> str:
    return next(row["state"] for row in Asker(folder).listed() if row["name"] == name)


def test_a_run_is_stopped_running_or_done(tmp_path):
    run = write_run(tmp_path / "run", [0.5])
    assert state(tmp_path) == "stopped"
    with locked(run / ".lock", run):
        assert state(tmp_path) == "running"
    assert state(tmp_path) == "stopped", "the lock is there, but nobody holds it"
    with locked(run / ".lock", run):
        (run / "controller.safetensors").touch()
        assert state(tmp_path) == "done", "as RunFolder says it"
    assert RunFolder(run).done


def test_a_folder_that_was_copied_while_its_run_went_on_is_stopped(tmp_path):
    run = write_run(tmp_path / "run", [0.5])
    holder = {"process": 1, "host": "elsewhere", "since": time.time(), "command": "esper train"}
    (run / ".lock").write_text(json.dumps(holder))
    assert state(tmp_path) == "stopped"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (json.dumps({"process": 0, "host": "elsewhere", "since": 0, "command": ""}), True),
        ("", False),
        ("[" * 99_999, False),
        ("x" * (NEAR + 1), False),
    ],
)
def test_where_the_kernel_has_no_locks_the_text_is_believed(tmp_path, monkeypatch, content, said):
    run = write_run(tmp_path / "run", [0.5])
    (run / ".lock").write_text(content)
    monkeypatch.setattr(runs.lock, "_flock", lambda file, shared: None)
    assert state(tmp_path) == ("running" if said else "stopped")


def test_a_lock_that_is_a_pipe_or_a_link_keeps_nobody_waiting(tmp_path):
    os.mkfifo(write_run(tmp_path / "pipe") / ".lock")
    os.symlink("/proc/self/environ", write_run(tmp_path / "link") / ".lock")
    assert state(tmp_path, "pipe") == state(tmp_path, "link") == "stopped"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.json", None, "config.json is missing."),
        ("config.json", "{", "config.json is damaged: it is not JSON."),
        ("config.json", "[]", "config.json is damaged: it has no version and recipe."),
        (
            "config.json",
            '{"version": 99, "recipe": {}}',
            "config.json was written by a newer Esper: upgrade Esper to see this run.",
        ),
        ("start.json", "{", "start.json is damaged: it is not JSON."),
        ("reports.jsonl", 0, "reports.jsonl is not a regular file and is not read."),
    ],
)
def test_a_damaged_run_says_why(tmp_path, name, content, said):
    run = write_run(tmp_path / "run", [0.5])
    (run / name).unlink(missing_ok=True)
    if content == 0:
        (run / name).mkdir()
    elif content is not None:
        (run / name).write_text(content)
    (row,) = Asker(tmp_path).listed()
    assert (row["state"], row["problem"]) == ("damaged", said)


def test_a_short_log_is_read_at_once(tmp_path):
    run = write_run(tmp_path / "run", [0.25, 0.75, None, 0.5])
    (run / "start.json").write_text('{"never": 0.375}')
    (row,) = Asker(tmp_path).listed()
    expected = {"kind": "run", "name": "run", "title": "smoke", "state": "stopped", "updates": 4, "of": 9}
    expected |= {"best": 0.75, "last": 0.5, "never": 0.375, "exact": True, "problem": None}
    assert {name: row[name] for name in expected} == expected
    assert row["spark"] == [0.25, 0.75, None, 0.5]
    assert row["modified"] == pytest.approx(time.time(), abs=60)


def test_a_long_log_is_sampled_and_then_read(tmp_path):
    run = write_run(tmp_path / "run")
    updates = 2 * NEAR // len(short_line(1000, 0.5))
    (run / "reports.jsonl").write_text("".join(short_line(i, i / updates) for i in range(updates)))
    asker = Asker(tmp_path)
    (row,) = asker.listed()
    assert row["exact"] is False
    assert row["updates"] == updates, "the last line is among the samples"
    assert row["last"] == pytest.approx((updates - 1) / updates)
    assert 10 < len(row["spark"]) <= SPARK
    assert row["spark"] == sorted(row["spark"])
    asker.read_all()
    (row,) = asker.listed()
    assert row["exact"] is True
    assert 50 < len(row["spark"]) <= SPARK
    assert row["spark"][0] == pytest.approx(1 / len(row["spark"]) / 2, rel=0.1), "a mean over its updates"
    append(run, short_line(updates, 2.0))
    (row,) = asker.listed()
    assert (row["exact"], row["updates"], row["best"]) == (True, updates + 1, 2.0), "a little more is read at once"


def test_a_long_log_that_is_read_in_part_is_still_sampled(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "reports.jsonl").write_text("".join(short_line(i) for i in range(100_000)))
    asker = Asker(tmp_path)
    run = asker.run("run")
    run.look(asker.library.tree, 0, far=True)
    assert 0 < run.log.made.updates < 100_000
    assert (run.row(0)["updates"], run.row(0)["exact"]) == (100_000, False)


def test_a_resumed_run_is_told_from_its_cut_log(tmp_path):
    run = write_run(tmp_path / "run", [0.25, 0.5, 1.0])
    asker = Asker(tmp_path)
    assert asker.listed()[0]["best"] == 1.0
    lines = (run / "reports.jsonl").read_bytes().splitlines(keepends=True)
    os.truncate(run / "reports.jsonl", len(lines[0]))
    append(run, line(1, 0.75) + line(2, 0.625) + line(3, 0.5))
    (row,) = asker.listed()
    assert (row["updates"], row["best"], row["spark"]) == (4, 0.75, [0.25, 0.75, 0.625, 0.5])


def test_damaged_lines_do_not_hide_a_run(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "reports.jsonl").write_bytes(
        b"\xff\n" + line(0, 0.5).encode() + b"[]\nhalf\n" + line(1, 0.25).encode() + b"{"
    )
    (row,) = Asker(tmp_path).listed()
    assert (row["state"], row["updates"], row["best"], row["last"]) == ("stopped", 2, 0.5, 0.25)


def test_a_summary_of_many_updates_keeps_its_extremes():
    summary = Summary("run")
    for i in range(10_000):
        summary.add({"update": i, "objective": 9.0 if i == 5000 else 0.5})
    assert (summary.updates, summary.best, summary.last) == (10_000, 9.0, 0.5)
    assert SPARK / 2 <= len(summary.spark()) <= SPARK


def grown(step: int, **values):
    record = {"step": step, "flops": step, "parameters": 1, "loss": 1 / (1 + step), **values}
    return {"event" if "kind" in values else "point": record}


def test_a_growth_is_told_by_its_loss(tmp_path):
    write_growth(tmp_path / "gpt", grown(1), grown(3), grown(2, loss=9.0), grown(3, kind="finish", loss=None))
    (row,) = Asker(tmp_path).listed()
    expected = {"kind": "growth", "name": "gpt", "title": "GPT", "state": "done", "updates": 3, "of": None}
    expected |= {"best": 0.25, "last": 0.25, "never": None, "exact": True, "spark": [0.5, 0.25, None]}
    assert {name: row[name] for name in expected} == expected


def test_a_growth_whose_budget_is_spent_is_done(tmp_path):
    folder = write_growth(tmp_path / "gpt", grown(1))
    assert state(tmp_path, "gpt") == "running"
    append(folder, json.dumps(grown(2, flops=1e9)) + "\n", "growth.jsonl")
    assert state(tmp_path, "gpt") == "done"


def test_a_growth_without_new_lines_has_stopped(tmp_path):
    folder = write_growth(tmp_path / "gpt", grown(1), grown(2))
    assert state(tmp_path, "gpt") == "running"
    long_ago = time.time() - 100
    for name in ("growth.json", "growth.jsonl"):
        os.utime(folder / name, (long_ago, long_ago))
    assert state(tmp_path, "gpt") == "stopped"
    os.utime(folder / "growth.json", (long_ago - 200, long_ago - 200))
    assert state(tmp_path, "gpt") == "running", "it writes a line every 100 seconds"
    append(folder, json.dumps(grown(2, kind="finish")) + "\n", "growth.jsonl")
    assert state(tmp_path, "gpt") == "done"


def test_a_recipe_may_hold_anything(tmp_path):
    for i, recipe in enumerate(
        [{"name": 3}, {"name": "<b>\n"}, {"learn": []}, {"learn": {"updates": -1}}, {"name": math.nan}]
    ):
        write_run(tmp_path / str(i), [0.5], recipe)
    rows = Asker(tmp_path).listed("sort=name")
    assert [row["title"] for row in rows] == ["", "<b> ", "", "", ""]
    assert {row["of"] for row in rows} == {None}
    assert {row["state"] for row in rows} == {"stopped"}


def test_a_run_that_comes_back_is_no_longer_damaged(tmp_path):
    run = write_run(tmp_path / "run", [0.5])
    asker = Asker(tmp_path)
    for away, state in {True: "damaged", False: "stopped"}.items():
        run.rename(tmp_path / "away") if away else (tmp_path / "away").rename(run)
        assert [row["state"] for row in asker.listed()] == [state]


def test_the_updates_of_a_run_are_those_of_all_its_stages():
    def stage(updates: object) -> dict[str, object]:
        return {"learn": {"updates": updates}}

    assert updates_of(stage(9)) == 9
    assert updates_of({"pretrain": [stage(4), stage(5)], **stage(2)}) == 11
    assert updates_of({"pretrain": [stage("x")], **stage(2)}) is None
    assert updates_of({"pretrain": None}) is None
