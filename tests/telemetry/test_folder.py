"""A run's folder: whatever is broken in it, one sentence says what, and nothing is lost."""

import fcntl
import json
import math
import os
import pickle
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace

import pytest

from esper.cli import main
from esper.cli.exam import Exam
from esper.cli.report import Report
from esper.cli.train import Resume, Train
from esper.leyline.errors import EsperError, FileError
from esper.telemetry import RunFolder, lock
from esper.telemetry.folder import environment
from esper.telemetry.lock import PATIENCE
from telemetry_toys import MAIN, SMALL, arm, exam, garden, life, lives, report, small_run


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create(tmp_path / "run", {"name": "x"}, environment("cpu", 1))


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    return small_run(tmp_path_factory.getbasetemp(), tmp_path_factory.mktemp("runs") / "run")


def test_reports_and_lives_are_lines_that_anyone_can_read(folder):
    folder.append(report(0, objective=math.nan))
    folder.append(report(1, objective=0.5))
    lines = (folder.path / "reports.jsonl").read_text().splitlines()
    assert [json.loads(line, parse_constant=pytest.fail)["objective"] for line in lines] == [None, 0.5]
    assert [(r.update, r.lives) for r in folder.reports()] == [(0, ()), (1, ())]
    assert folder.episodes() == [*lives(0), *lives(1)], "a line each, in a log of their own"


def test_gardens_are_a_log_of_their_own(folder):
    """One line per update that anyone can read, in this layout; elsewhere a report is brief."""
    for told in (report(0), report(1, garden=()), report(2, garden=(garden(), replace(garden(), fleet=1)))):
        folder.append(told)
    first, last = (json.loads(line) for line in (folder.path / "garden.jsonl").read_text().splitlines())
    assert first == {
        "update": 0,
        "fleets": [
            {
                "fleet": 0,
                "label": "toy, gpt 8",
                "slots": ["s0"],
                "hosts": 2,
                "cells": ["D0D0", "b4D0"],
                "ops": ["GW", "WW"],
                "scores": [[0.1, 0.2], [0.3, 0.4]],
                "born": [[0, 1], []],
            }
        ],
    }
    assert (last["update"], [fleet["fleet"] for fleet in last["fleets"]]) == (2, [0, 1])
    assert [(r.garden, r.planted) for r in folder.reports()] == [((), {"twin": 1})] * 3
    assert "D0D0" not in (folder.path / "reports.jsonl").read_text()


def test_files_of_older_versions_are_read(folder):
    """They know no gardens, no planted seeds, no legal ops, no probabilities, and not how hosts do that never grow."""
    folder.append(report(0))
    old = json.loads((folder.path / "reports.jsonl").read_text())
    del old["planted"], old["garden"]
    (folder.path / "reports.jsonl").write_text(json.dumps(old) + "\n")
    assert [(r.update, r.planted, r.garden) for r in folder.reports()] == [(0, {}, ())]
    told = asdict(life("WAIT"))
    for epoch in told["epochs"]:
        del epoch["legal"], epoch["probabilities"]
    (folder.path / "lives.jsonl").write_text(json.dumps(told) + "\n")
    assert folder.lives() == [life("WAIT")]
    assert folder.lives()[0].epochs[0].legal == ()
    assert folder.start() == {"lives": 0, "decisions": 0, "seconds": 0.0, "never": None}
    (folder.path / "start.json").write_text('{"lives": 1, "decisions": 2, "seconds": 3.0}')
    assert folder.start() == {"lives": 1, "decisions": 2, "seconds": 3.0, "never": None}


def test_what_is_known_of_hosts_that_never_grow_is_kept(folder):
    for never in (0.25, None, math.nan):
        folder.write_start(lives=1, decisions=2, seconds=3.0, never=never)
        known = None if never is None or math.isnan(never) else never
        assert folder.start() == {"lives": 1, "decisions": 2, "seconds": 3.0, "never": known}
    (folder.path / "start.json").write_text('{"lives": 1, "decisions": 2, "seconds": 3.0, "never": "a lot"}')
    with pytest.raises(FileError, match=r"start\.json is damaged"):
        folder.start()


def test_lives_with_what_was_legal_and_likely_are_read_as_they_were_written(folder):
    (epoch,) = life("WAIT").epochs
    told = replace(epoch, legal=("WAIT", "GERMINATE"), probabilities={"op": {"WAIT": 0.25, "GERMINATE": 0.75}})
    folder.write_exam([exam(arm("learned"))], [replace(life("WAIT"), epochs=(told,))])
    assert folder.lives()[0].epochs == (told,)


def test_a_line_that_is_being_written_is_not_read(folder):
    folder.append(report(0))
    with open((folder.path / "reports.jsonl"), "a") as file:
        file.write('{"update": 1, "obj')
    assert [r.update for r in folder.reports()] == [0]


def test_cutting_forgets_what_came_later(folder):
    folder.append(report(0))
    offsets = folder.offsets()
    folder.append(report(1))
    for name in offsets:  # one that has lost lines; nothing is cut of either
        with pytest.raises(FileError, match=f"{name} is shorter"):
            folder.cut(offsets | {name: 10**6})
        assert [r.update for r in folder.reports()] == [0, 1]
        assert len(folder.episodes()) == 4
    folder.cut(offsets)
    assert [r.update for r in folder.reports()] == [0]
    assert [life.update for life in folder.episodes()] == [0, 0]
    assert [json.loads(line)["update"] for line in (folder.path / "garden.jsonl").read_text().splitlines()] == [0]
    del offsets["garden.jsonl"]  # as in checkpoints of versions that knew no gardens
    folder.cut(offsets)
    assert (folder.path / "garden.jsonl").read_text() == ""
    assert len(folder.reports()) == 1
    (folder.path / "garden.jsonl").unlink()
    folder.cut(offsets)


def test_a_damaged_line_is_named(folder):
    folder.append(report(0))
    with open(folder.path / "reports.jsonl", "a") as file:
        file.write("half a li\n")
    folder.append(report(1))
    with pytest.raises(FileError, match=r"reports\.jsonl is damaged after line 1"):
        folder.reports()


def test_a_folder_of_a_newer_version_is_refused(folder):
    assert folder.config() == {"name": "x"}
    (folder.path / "config.json").write_text('{"version": 2, "recipe": {}}')
    with pytest.raises(FileError, match=r"newer Esper \(version 2, this one reads up to 1\)"):
        folder.config()


def test_a_file_that_cannot_be_written_leaves_the_old_one_and_nothing_else(folder):
    folder.write("note.txt", "old")
    before, (soft, hard) = set(folder.path.iterdir()), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(FileError, match=r"cannot write .*note\.txt: File too large"):
            folder.write("note.txt", "new" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (folder.path / "note.txt").read_text() == "old"
    assert set(folder.path.iterdir()) == before


def test_the_newest_checkpoints_and_the_best_are_kept(folder):
    for path in (*map(folder.checkpoint_path, (9, 10, 11, 100)), folder.best_path):
        path.write_text("")
    folder.keep(2)
    assert folder.checkpoints() == [folder.checkpoint_path(11), folder.checkpoint_path(100)]
    assert folder.best_path.exists()


def test_final_exams_are_logged_one_after_the_other(folder):
    held = exam(replace(arm("learned"), scores=(0.5,), objectives=(0.4,)))
    for task in ("one", "two"):
        folder.log_exam(replace(held, task=task), ["here", "there"])
    logged = [json.loads(line) for line in (folder.path / "exams.jsonl").read_text().splitlines()]
    assert [(line["runs"], line["exam"]["task"]) for line in logged] == [(["here", "there"], t) for t in ("one", "two")]
    assert all(arm["scores"] == arm["objectives"] == [] for arm in logged[0]["exam"]["arms"]), "not every host"


def test_a_quick_exam_takes_the_place_of_its_like_alone(folder):
    final = exam(arm("learned"))
    quick = replace(final, data="validation")
    for held, kept, logged in ((quick, quick, 0), (final, final, 1), (quick, final, 1), (final, final, 2)):
        folder.keep_exam([held], [], ["here"])
        assert [report.data for report in folder.exams()] == [kept.data]
        log = folder.path / "exams.jsonl"
        assert len(log.read_text().splitlines() if log.exists() else []) == logged


def test_what_was_chosen_is_chosen_once_by_each_exam(folder):
    assert folder.choices("a").get("rate") is None
    folder.choices("a")["rate"] = [0.1, 0.2]
    assert folder.choices("a").get("rate") == (0.1, 0.2)
    folder.choices("b")["rate"] = [0.3]
    folder.choices("a")["plan"] = [7, 80]
    assert [folder.choices("a").get(purpose) for purpose in ("rate", "plan")] == [(0.1, 0.2), (7, 80)]
    folder.choices("a").forget()
    assert folder.choices("a").get("rate") is None
    assert folder.choices("b").get("rate") == (0.3,)
    for asked in "ab":
        folder.choices(asked).forget()
    assert not (folder.path / "choices.json").exists(), "all exams have ended"
    (folder.path / "choices.json").write_text('{"a": {"rate": ["a lot"]}}')
    with pytest.raises(FileError, match=r"choices\.json is damaged, remove it"):
        folder.choices("a")


def test_two_runs_of_one_name_are_told_apart(tmp_path):
    one, two = (RunFolder.create(tmp_path / home / "run", {}, environment("cpu", 1)) for home in "ab")
    assert one.identity != two.identity
    assert one.identity.startswith("run-")
    assert one.identity == RunFolder.open(one.path).identity


HOLD = """
import sys
from pathlib import Path
from esper.telemetry import RunFolder

with RunFolder(Path(sys.argv[1])).alone():
    print("held", flush=True)
    sys.stdin.read()
"""


def holding(path) -> subprocess.Popen:
    """Another process that holds a folder."""
    holder = subprocess.Popen([sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    return holder


def test_one_process_writes_to_a_folder_at_a_time(done, tmp_path, capsys):
    """Others are refused before they change anything. Killed, it holds nothing any more."""
    path = tmp_path / "run"
    shutil.copytree(done, path)
    with open(path / "reports.jsonl", "a") as file:
        file.write("what a resumed run would cut")
    commands = [
        Resume(run_dir=path),
        Train(recipe="smoke", run_dir=path, changes=SMALL),
        Exam(runs=(path,), quick=True),
    ]
    with holding(path) as holder:
        before, told = contents(path), rf"process {holder.pid} on \S+ since \d\d:\d\d \(python -c {path}\)"
        for command in commands:
            with pytest.raises(FileError, match=rf"{path} is being written by {told}: wait or stop it$"):
                command.run()
        assert re.fullmatch(told, RunFolder(path).writer())
        assert contents(path) == before
        with RunFolder(tmp_path / "other").alone():
            pass
        holder.kill()
        holder.wait()
        assert b"command" in (path / ".lock").read_bytes(), "what it wrote is still there"
        assert RunFolder(path).writer() is None, "and not believed"
        commands[0].run()
    assert len(RunFolder.open(path).reports()) == 3
    capsys.readouterr()


def resuming(path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, "resume", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_two_processes_that_resume_one_run_do_not_interleave(done, tmp_path, capsys):
    """The second is told of the first. Killed with SIGKILL, the first leaves the run to the next."""
    path = tmp_path / "run"
    shutil.copytree(done, path)
    config = json.loads((path / "config.json").read_text())
    config["recipe"]["learn"]["updates"] = 10**6
    (path / "config.json").write_text(json.dumps(config))
    (path / "controller.safetensors").unlink()
    folder = RunFolder.open(path)
    for ended in (signal.SIGKILL, signal.SIGTERM):
        made = len(folder.reports())
        with resuming(path) as first:
            while len(folder.reports()) <= made + 1 and first.poll() is None:
                time.sleep(0.1)
            with pytest.raises(SystemExit) as refused:
                main(["resume", str(path)])
            message = capsys.readouterr().err
            assert refused.value.code == 2
            assert message.startswith(f"esper: {path} is being written by process {first.pid} on ")
            assert f"(python -c resume {path}): wait or stop it" in message
            assert first.poll() is None
            first.send_signal(ended)
            first.communicate(timeout=300)
        assert folder.writer() is None
        updates = [report.update for report in folder.reports()]
        assert updates == list(range(len(updates)))
        assert len(updates) > made
    assert (path / ".lock").read_bytes() == b"", "who stops in order leaves no name"


def test_a_lock_is_not_lost_to_one_who_only_looks(folder):
    """`watch` asks who writes every second, for which it takes the lock for an instant."""
    with open(folder.path / ".lock", "w") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        timer = threading.Timer(PATIENCE / 4, fcntl.flock, (looking, fcntl.LOCK_UN))
        timer.start()
        try:
            with folder.alone():
                assert f"process {os.getpid()} on " in folder.writer()
        finally:
            timer.join()
    assert folder.writer() is None


def test_without_flock_a_name_is_believed_until_its_process_has_ended(folder, monkeypatch):
    """As on Windows and on some network disks; of a process on another machine, nothing is known."""
    monkeypatch.setattr(lock, "fcntl", None)
    note = folder.path / ".lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, folder.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout.readline() == b"held\n"
        with (
            pytest.raises(FileError, match=rf"process {holder.pid} on .*if it has ended already, remove {note}"),
            folder.alone(),
        ):
            pass
        assert f"process {holder.pid} on " in folder.writer()
        holder.kill()
    assert folder.writer() is None
    with folder.alone():
        assert f"process {os.getpid()} on " in folder.writer()
    assert folder.writer() is None
    note.write_text(json.dumps({"process": 1, "host": "elsewhere", "since": 0.0, "command": "esper train"}))
    with pytest.raises(FileError, match="process 1 on elsewhere since 1970-01-0"), folder.alone():
        pass
    note.write_text("half a na")
    with folder.alone():
        pass


def contents(path):
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_run_is_never_overwritten(folder):
    with pytest.raises(FileError, match="holds a run already: resume it, or choose another run_dir"):
        RunFolder.create(folder.path, {"name": "y"}, {})
    assert folder.config() == {"name": "x"}
    with pytest.raises(FileError, match="holds no run"):
        RunFolder.open(folder.path / "nowhere")


def test_the_folder_holds_everything(done):
    assert {path.name for path in done.iterdir()} == {
        "config.json",
        "environment.json",
        "reports.jsonl",
        "episodes.jsonl",
        "garden.jsonl",
        "start.json",
        "checkpoints",
        "controller.safetensors",
        "exam.json",
        "lives.jsonl",
        "report.html",
        ".lock",
    }
    assert len(RunFolder.open(done).reports()) == 3
    assert len((done / "garden.jsonl").read_text().splitlines()) == 3
    names = [path.stem for path in sorted((done / "checkpoints").iterdir())]
    assert names == ["000002", "000003", "best"], "every second update, and the last"
    assert RunFolder.open(done).environment().keys() >= {"esper", "torch", "device", "threads", "git"}


NEWEST = "checkpoints/000003.safetensors"
FILES = ("config.json", "environment.json", "reports.jsonl", "episodes.jsonl", "garden.jsonl", NEWEST)
BROKEN = [(name, how) for name in FILES for how in ("truncated", "garbled", "missing")]


@pytest.mark.parametrize(("name", "how"), [*BROKEN, (NEWEST, "pickled")])
def test_what_is_broken_is_named_and_nothing_else_is_touched(name, how, done, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(done, copy)
    (copy / "controller.safetensors").unlink()  # as if it had been killed during its exam
    path = copy / name
    content = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        wrong = {"truncated": content[: len(content) // 2], "garbled": b"\xff" * 40, "pickled": pickle.dumps(print)}
        path.write_bytes(wrong[how])
    before = contents(copy)
    if (name, how) == (NEWEST, "missing"):
        Resume(run_dir=copy).run()  # goes on from the one before
        return
    with pytest.raises(EsperError, match=str(copy)):
        Resume(run_dir=copy).run()
    assert contents(copy) == before


CONTENTS = (b"{}\n", b"[1]\n", b"\xff\xfe\n", b'{"update": "x"}\n')
UNREADABLE = [(name, x) for name in ("reports.jsonl", "episodes.jsonl", "exam.json", "lives.jsonl") for x in CONTENTS]


@pytest.mark.parametrize(("name", "content"), [*UNREADABLE, *(("environment.json", x) for x in CONTENTS[1:3])])
def test_a_report_on_broken_files_names_them(name, content, done, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(done, copy)
    (copy / name).write_bytes(content)
    with pytest.raises(EsperError, match=name):
        RunFolder.open(copy).episodes() if name == "episodes.jsonl" else Report(run_dir=copy).run()


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match=r"cannot write .*file/run"):
        Train(recipe="smoke", run_dir=tmp_path / "file" / "run", changes=SMALL).run()


def test_flags_of_a_recipe_reach_it_and_unknown_ones_are_refused(capsys):
    asked = Train(recipe="smoke", rng_seed=7, changes=("--learn.ppo.lr", "0.5")).asked()
    assert asked.learn.ppo.lr == 0.5
    assert asked.learn.rng_seed == 7 == asked.fleets[0].env.rng_seed
    with pytest.raises(SystemExit) as exit:
        main(["train", "smoke", "--learn.upates", "3"])
    assert exit.value.code == 2
    assert "--learn.updates" in capsys.readouterr().err


def test_recipes_are_listed(capsys):
    main(["recipes", "--json"])
    assert "smoke" in json.loads(capsys.readouterr().out)
    main(["recipes", "smoke", "--json"])
    assert json.loads(capsys.readouterr().out)["name"] == "smoke"
