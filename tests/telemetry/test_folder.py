"""A run's folder: whatever is broken in it, one sentence says what, and nothing is lost."""

import json
import math
import pickle
import shutil

import pytest

from esper.cli import main
from esper.cli.look import Report
from esper.cli.train import Resume, Train
from esper.leyline.errors import EsperError, FileError
from esper.telemetry import RunFolder
from esper.telemetry.folder import environment
from telemetry_toys import SMALL, report


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create(tmp_path / "run", {"name": "x"}, environment("cpu", 1))


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    Train(recipe="smoke", run_dir=path, changes=SMALL).run()
    return path


def test_reports_are_lines_that_anyone_can_read(folder):
    folder.append(report(0, objective=math.nan))
    folder.append(report(1, objective=0.5))
    lines = (folder.path / "reports.jsonl").read_text().splitlines()
    assert [json.loads(line, parse_constant=pytest.fail)["objective"] for line in lines] == [None, 0.5]
    assert [r.update for r in folder.reports()] == [0, 1]


def test_a_line_that_is_being_written_is_not_read(folder):
    folder.append(report(0))
    with open((folder.path / "reports.jsonl"), "a") as file:
        file.write('{"update": 1, "obj')
    assert [r.update for r in folder.reports()] == [0]


def test_cutting_forgets_what_came_later(folder):
    folder.append(report(0))
    offsets = folder.offsets()
    folder.append(report(1))
    folder.cut(offsets)
    assert [r.update for r in folder.reports()] == [0]
    assert [life.update for life in folder.episodes()] == [0, 0]
    for name in offsets:
        with pytest.raises(FileError, match=f"{name} is shorter"):
            folder.cut(offsets | {name: offsets[name] + 1})


def test_a_run_is_never_overwritten(done):
    with pytest.raises(FileError, match="holds a run already"):
        Train(recipe="smoke", run_dir=done, changes=SMALL).run()
    with pytest.raises(FileError, match="holds no run"):
        Resume(run_dir=done / "nowhere").run()


def test_the_folder_holds_everything(done):
    assert {path.name for path in done.iterdir()} == {
        "config.json",
        "environment.json",
        "reports.jsonl",
        "episodes.jsonl",
        "checkpoints",
        "controller.safetensors",
        "exam.json",
        "lives.jsonl",
        "report.html",
        "pictures",
    }
    assert len(RunFolder.open(done).reports()) == 2
    assert (done / "checkpoints/best.safetensors").exists()
    assert RunFolder.open(done).environment().keys() >= {"esper", "torch", "device", "threads", "git"}


FILES = ("config.json", "environment.json", "reports.jsonl", "episodes.jsonl", "checkpoints/000002.safetensors")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", ["truncated", "garbled", "pickled", "missing"])
def test_what_is_broken_is_named_and_nothing_else_is_touched(name, how, done, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(done, copy)
    path = copy / name
    content = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        wrong = {"truncated": content[: len(content) // 2], "garbled": b"\xff" * 40, "pickled": pickle.dumps(print)}
        path.write_bytes(wrong[how])
    others = {p: p.read_bytes() for p in copy.rglob("*.*") if p.is_file() and p != path}
    if (name, how) == ("checkpoints/000002.safetensors", "missing"):
        Resume(run_dir=copy).run()  # goes on from the one before
        return
    with pytest.raises(EsperError, match=str(copy)):
        Resume(run_dir=copy).run()
    for other, before in others.items():
        assert other.read_bytes() == before


@pytest.mark.parametrize("name", ["reports.jsonl", "episodes.jsonl", "exam.json", "lives.jsonl", "environment.json"])
@pytest.mark.parametrize(
    "content", [b"{}\n", b"[1]\n", b"\xff\xfe\n", b'{"update": "x"}\n', pickle.dumps(print) + b"\n"]
)
def test_a_report_on_broken_files_names_them(name, content, done, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(done, copy)
    (copy / name).write_bytes(content)
    if name == "environment.json" and content.startswith(b"{"):
        Report(run_dir=copy).run()  # little is known of where it ran, which is no error
    elif name == "episodes.jsonl":
        with pytest.raises(FileError, match=name):
            RunFolder.open(copy).episodes()
    else:
        with pytest.raises(EsperError, match=name):
            Report(run_dir=copy).run()


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot begin a run in"):
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
