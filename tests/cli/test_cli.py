"""The command line says what is wrong in one sentence, and prints what machines can read."""

import io
import json
import math
import shutil
from contextlib import redirect_stdout
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console

from esper.cli import main
from esper.cli.bench_grow import CNN, Subject, Transformer
from esper.cli.commands import parse
from esper.cli.exam import Exam, cost, few
from esper.cli.sizes import size_in_bytes
from esper.exam.records import Background
from esper.leyline.errors import EsperError
from esper.recipes import Recipe, recipe
from esper.recipes.suite import HELD_OUT, setting
from esper.tamiyo import Controller, load_controller
from esper.tamiyo.controller_files import SHIPPED, save_controller
from esper.telemetry import Board, RunFolder
from telemetry_toys import SMALL, report, small_run

FINAL = ("--plans", "0", "--rates", "1.0", "--no-thorough")
"""As little as a final exam can ask."""


def test_bench_fleet_prints_one_json_object(capsys):
    main(["bench", "fleet", "--quick", "--json", "--hosts", "2", "--seeds", "none", "live", "--decisions", "2"])
    found = json.loads(capsys.readouterr().out)
    assert found["device"].startswith("CPU")
    ways = [(row["way"], row["hosts"], row["seeds"]) for row in found["rows"]]
    assert ways == [("loop", 4, "none"), ("fleet", 2, "none"), ("fleet", 2, "live")]
    for row in found["rows"]:
        assert row["workload"] == "mnist1d"
        assert row["samples_per_s"] > 0
        assert row["ratio"] == pytest.approx(row["samples_per_s"] / found["rows"][0]["samples_per_s"], abs=0.01)


def test_bench_ppo_prints_one_json_object(capsys):
    main(["bench", "ppo", "--quick", "--json", "--minibatches", "1", "--hosts", "2", "--decisions", "6"])
    found = json.loads(capsys.readouterr().out)
    assert [row["who"] for row in found["rows"]] == ["esper", "sb3_recurrent", "sb3_maskable"]
    slow = found["rows"][1]["update_ms"]
    for row in found["rows"]:
        assert row["minibatches"] == 1
        assert row["decisions"] == 12
        assert min(row["update_ms"], row["act_ms"]) > 0
        assert row["ratio"] == pytest.approx(slow / row["update_ms"], rel=0.01, abs=0.01)


@pytest.mark.slow
def test_bench_grow_prints_one_json_object(monkeypatch, capsys):
    tiny = {"cnn": Subject(CNN, 4, 2, 2), "transformer": Subject(Transformer, 64, 2, 1, 4)}
    monkeypatch.setattr("esper.cli.bench_grow.SUBJECTS", {"cpu": tiny})
    main(["bench", "grow", "--device", "cpu", "--json", "--pairs", "6"])
    found = json.loads(capsys.readouterr().out)
    assert found["device"].startswith("CPU")
    states = ["attached", "blending", "grown", "finished"]
    assert [row["state"] for row in found["rows"]] == 2 * states
    assert [row["model"] for row in found["rows"]] == 4 * ["cnn"] + 4 * ["transformer"]
    for row in found["rows"]:
        assert row["low"] <= row["ratio"] <= row["high"]
        assert row["milliseconds"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "grow", "--pairs", "5"], "pairs must be at least 6"),
        (["bench", "ppo", "--hosts", "0"], "hosts must be at least 1"),
        (["bench", "ppo", "--minibatches", "9"], "minibatches (9) hold whole episodes, and there are only 8"),
        (["bench", "fleet", "--workload", "nist"], "unknown workload 'nist': did you mean 'mnist1d'?"),
        (["bench", "fleet", "--hosts", "0"], "hosts must be positive"),
        (["bench", "fleet", "--batch", "0"], "batch must be at least 1, not 0"),
        (["bench", "profile", "--hosts", "0"], "hosts must be at least 1, not 0"),
        (["bench", "profile", "--workload", "nist"], "unknown workload 'nist': did you mean 'mnist1d'?"),
        (["bench", "fleet", "--device", "gpu7"], "device 'gpu7' is not supported; use 'cpu' or 'cuda'"),
        (["bench", "fleet", "--quick", "--memory-budget", "lots"], "memory_budget must be a size such as 2GB"),
        (["bench", "fleet", "--quick", "--seeds", "none", "--memory-budget", "50KB"], "hosts would fit"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("esper: ")
    assert message in error


def test_debug_shows_where_an_error_comes_from():
    with pytest.raises(EsperError, match="hosts must be positive"):
        main(["bench", "fleet", "--hosts", "0", "--debug"])


def test_unknown_flags_suggest_the_right_one(capsys):
    with pytest.raises(SystemExit) as exit:
        main(["bench", "fleet", "--hots", "3"])
    assert exit.value.code == 2
    assert "--hosts" in capsys.readouterr().err


def test_lists_are_readable_by_people_and_machines(capsys):
    main(["tasks", "--json"])
    assert {"name", "summary"} == set(json.loads(capsys.readouterr().out)[0])
    main(["blueprints", "--json"])
    assert {"stream", "name", "summary"} == set(json.loads(capsys.readouterr().out)[0])
    main(["blueprints"])
    assert "conv_heavy" in capsys.readouterr().out
    main(["tasks"])
    assert "handwritten digits" in capsys.readouterr().out


@pytest.mark.parametrize(("text", "size"), [("2GB", 2 << 30), ("1.5 mb", 3 << 19), ("100", 100), ("4k", 4096)])
def test_sizes(text, size):
    assert size_in_bytes(text) == size


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return small_run(tmp_path_factory.getbasetemp(), tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def pictures(tmp_path):
    """Three classes of small pictures, as few as can be trained on."""
    pixels = np.random.default_rng(0).integers(0, 255, (352, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "tiny.npz", x_train=pixels, y_train=np.arange(352) % 3)
    return tmp_path / "tiny.npz"


def test_train_prints_every_report_for_machines(capsys):
    logging = parse(["train", "smoke", "--json"]).logging
    with logging.shown(Board("run", 2), Console(stderr=True)) as show:
        show(report(0, objective=math.nan))
        show(report(1))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["update"], line["objective"]) for line in lines] == [(0, None), (1, 0.5)]
    assert lines[0].keys() >= {"heads", "ops", "seconds"}


def test_a_run_goes_on_from_another_and_begins_there_once_more_only_before_its_first_checkpoint(run, tmp_path):
    path = tmp_path / "next"
    changes = [
        *SMALL,
        "--exam",
        "0",
        "--warm-start.run",
        str(run),
        "--fleets.0.widths",
        "5",
        "5",
        "--controller.no-size",
    ]
    main(["train", "smoke", "--run-dir", str(path), *changes])
    before, after = RunFolder.open(run), RunFolder.open(path)
    assert load_controller(run).config == replace(load_controller(path).config, size=True), "but for what it is told"
    assert after.exams() == [], "none was wanted"
    done, took = load_controller(path).state_dict(), after.start()
    lives = sum(report.episodes for report in before.reports())
    assert (took["decisions"], took["lives"]) == (12, lives), "what the other run took counts"
    for lost in (["000003"], ["000002", "000003"]):  # as if it had been killed after a checkpoint, and before any
        for file in (after.controller_path, *(path / f"checkpoints/{name}.safetensors" for name in lost)):
            file.unlink()
        main(["resume", str(path)])
        again = load_controller(path).state_dict()
        assert all(torch.equal(x, again[name]) for name, x in done.items())
        assert {**took, "seconds": 0.0} == {**after.start(), "seconds": 0.0}, "nothing is counted twice"
        assert [report.update for report in after.reports()] == [0, 1, 2]


def test_an_exam_names_every_arm_and_its_difference(run, tmp_path, capsys):
    plan = tmp_path / "mine.json"
    plan.write_text('[{"decision": 0, "op": "GERMINATE", "slot": "s0", "blueprint": "mlp"}]')
    main(["exam", str(run), "--hosts", "3", "--json", "--quick", "--plan", str(plan)])
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert "heuristic on the hosts that count" in " ".join(said.err.split()), "whoever waits hears what for"
    assert found.keys() >= {"task", "metric", "arms"}
    assert found["hosts"] == 3
    assert found["decisions"] == 12
    assert [arm["name"] for arm in found["arms"]] == ["learned", "never", "random", "heuristic", "mine"]
    for other in found["arms"]:
        assert other.keys() >= {"name", "iqm", "mean", "j", "params", "flops", "difference"}
        assert (other["difference"] is None) == (other["name"] == "learned")
    assert found["arms"][1]["difference"].keys() == {"mean", "low", "high"}
    assert found["data"] == "validation"
    assert not (run / "exams.jsonl").exists(), "a quick exam touches nothing final"


def test_a_final_exam_is_never_forgotten(run, tmp_path, capsys):
    other, out = tmp_path / "other.safetensors", tmp_path / "held"
    save_controller(other, Controller(load_controller(run / "controller.safetensors").config, rng_seed=7))
    main(["exam", str(run), str(other), "--hosts", "3", *FINAL, "--out", str(out)])
    said = capsys.readouterr().out
    assert "3 fresh hosts" in said
    assert "2 trainings of learned took 12 decisions" in said
    assert str(out / "report.html") in said
    assert not (run / "exams.jsonl").exists()
    (held,) = [json.loads(line) for line in (out / "exams.jsonl").read_text().splitlines()]
    assert held["runs"] == [str(run), str(other)], "of whom"
    assert "on cpu: esper exam" in held["exam"]["held"]
    assert held["exam"]["held"].endswith(f"--out {out}"), "and how it can be held again"


def test_what_trainings_took_is_all_that_was_done_before_the_exam(tmp_path):
    """Two of them: one with a head start of 30 decisions, which goes on from a run in another setting."""
    fleets = (replace(recipe("smoke").fleets[0], widths=(5, 5)),)
    asked = replace(recipe("smoke"), known=fleets).plain()
    one, two = (RunFolder.create(tmp_path / name, asked, {}) for name in "ab")
    one.write_start(lives=10, decisions=30, seconds=7.0)
    for folder, updates in ((one, 1), (two, 2)):
        for update in range(updates):
            folder.append(report(update, decisions=100, episodes=4, seconds={"collect": 1.0, "learn": 2.0}))
    assert cost([one, two]) == Background(settings=2, lives=22, decisions=330, seconds=16.0)
    assert cost([]) == Background()


def with_fleets(run, path, count):
    """A copy of a run that has learned in so many settings, all alike."""
    shutil.copytree(run, path)
    config = json.loads((path / "config.json").read_text())
    config["recipe"]["fleets"] *= count
    (path / "config.json").write_text(json.dumps(config))
    return path


class Closed(io.StringIO):
    def write(self, text):
        raise BrokenPipeError


def test_an_exam_is_kept_when_it_has_ended_whatever_comes_after(run, tmp_path):
    """Here whoever reads goes away before the second of two."""
    two = with_fleets(run, tmp_path / "two", 2)
    with pytest.raises(SystemExit) as exit, redirect_stdout(Closed()):
        main(["exam", str(two), "--hosts", "2", *FINAL, "--json"])
    assert exit.value.code == 0
    assert len(RunFolder.open(two).exams()) == 1
    assert len((two / "exams.jsonl").read_text().splitlines()) == 1


def test_an_exam_that_was_interrupted_goes_on_with_what_it_has_chosen(run, tmp_path, capsys):
    """Whatever that was: here other rates for the rivals and for the controller."""
    out, rates = tmp_path / "held", (1e-9, 1.0)
    asked = ["exam", str(run), "--hosts", "2", "--plans", "0", "--rates", *map(str, rates), "--no-thorough", "--json"]
    asked += ["--tuned-on", "1", "--out", str(out)]
    command, lr = parse(asked), recipe("smoke").fleets[0].train.lr
    folder = command.place([], Recipe.revived(RunFolder.open(run).config()))
    question = command.question(Recipe.revived(folder.config()), [run / "controller.safetensors"])
    low, high = (rate * lr for rate in rates)
    chosen = {
        "0: spirals, mlp 4-4: learning rates of never, random, heuristic, 3 epochs": [low, high, low],
        "0: spirals, mlp 4-4: learning rates of learned, 3 epochs": [low],
    }
    folder.write_choices({question: chosen, "another": {"purpose": [1.0]}})
    main(asked)
    assert [arm["lr"] for arm in json.loads(capsys.readouterr().out)["arms"]] == [low, low, high, low]
    assert folder.all_choices() == {"another": {"purpose": (1.0,)}}, "it has ended; others may not have"


def test_the_same_question_is_one_of_the_same_command_and_the_same_files(run, tmp_path):
    asked, file = Recipe.revived(RunFolder.open(run).config()), tmp_path / "controller.safetensors"
    shutil.copyfile(run / "controller.safetensors", file)
    one, other = (parse(["exam", str(file), "--tasks", "spirals", *more]) for more in ([], ["--tuned-on", "1"]))
    first = one.question(asked, [file])
    assert one.question(asked, [file]) == first
    assert other.question(asked, [file]) != first
    save_controller(file, Controller(load_controller(file).config, 7))
    assert one.question(asked, [file]) != first


def test_a_plan_that_fits_no_host_is_refused_before_anything_is_played(run, tmp_path, capsys):
    plan = tmp_path / "mine.json"
    plan.write_text('[{"decision": 0, "op": "GERMINATE", "slot": "nosuch", "blueprint": "mlp"}]')
    with pytest.raises(SystemExit):
        main(["exam", str(run), "--plan", str(plan)])
    error = capsys.readouterr().err
    assert "nosuch" in error
    assert "hosts that count" not in error


def test_settings_that_are_none_are_named(run, capsys):
    for arguments, message in {
        (str(run / "controller.safetensors"),): "add --tasks",
        (str(run), "--tasks", "digit-4"): "unknown setting 'digit-4': did you mean 'digits-4'?",
        (str(run), "--images", "none.npz", "--quick"): "none.npz does not exist",
    }.items():
        with pytest.raises(SystemExit):
            main(["exam", *arguments])
        assert message in capsys.readouterr().err


def test_a_quick_exam_takes_a_few_settings_of_many():
    for name, places in {"spirals": [0], "general": [0, 5, 10, 15, 20, 25]}.items():
        fleets = recipe(name).fleets
        assert few(fleets) == [fleets[n] for n in places]
    assert few(recipe("general").fleets, most=30) == list(recipe("general").fleets)


def test_a_quick_exam_says_which_settings_it_leaves_out():
    asked, said = replace(recipe("smoke"), fleets=recipe("smoke").fleets * 8), []
    for more, count in {(): 8, ("--tasks", "spirals"): 1, ("--quick", "--tasks", "spirals"): 1}.items():
        assert len(parse(["exam", "run", *more]).examined(asked, said.append)) == count
    assert said == []
    assert len(parse(["exam", "run", "--quick"]).examined(asked, said.append)) == 6
    assert said == ["6 of the 8 settings of smoke; choose others with --tasks"]


def test_a_training_that_is_named_twice_is_refused(run, tmp_path, capsys):
    twin = tmp_path / "twin.safetensors"
    twin.write_bytes((run / "controller.safetensors").read_bytes())
    with pytest.raises(SystemExit):
        main(["exam", str(run), str(twin)])
    assert "are the same controller: name each training once" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", "{}", "[1]", '[{"op": "WAIT"}]', '[{"decision": "x", "op": "WAIT"}]'])
def test_a_plan_that_is_none_is_named(content, run, tmp_path, capsys):
    plan = tmp_path / "mine.json"
    plan.write_text(content)
    with pytest.raises(SystemExit):
        main(["exam", str(run), "--quick", "--plan", str(plan)])
    assert "mine.json must hold a JSON list of objects with a decision and an op" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("budget", "message"),
    [("1KB", "hosts would fit"), ("0", "memory_budget must be positive"), ("lots", "must be a size such as 2GB")],
)
def test_an_exam_keeps_within_its_memory(budget, message, run, capsys):
    with pytest.raises(SystemExit):
        main(["exam", str(run), "--quick", "--hosts", "2", "--memory-budget", budget])
    assert message in capsys.readouterr().err


def test_without_a_run_the_controller_that_comes_along_is_examined_and_the_exam_is_kept_nowhere(pictures, capsys):
    """It lies in a run's folder of its own, which an exam leaves alone; by default in what it has not learned from."""
    before = {path: path.read_bytes() for path in SHIPPED.iterdir()}
    main(["exam", "--images", str(pictures), "--hosts", "2", *FINAL, "--json"])
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert (found["task"], found["host"], found["data"]) == ("tiny", "cnn2d 8-16-32", "test")
    assert found["unseen"] == "task"
    assert found["decisions"] > 1e6, "what its training took"
    assert "add --out next time" in " ".join(said.err.split())
    assert {path: path.read_bytes() for path in SHIPPED.iterdir()} == before
    assert parse(["exam"]).settings() == [setting(name) for name in HELD_OUT]
    assert parse(["exam", "run"]).settings() == []


def test_where_no_controller_comes_along_a_run_is_asked_for(tmp_path):
    with pytest.raises(EsperError, match="this installation has no shipped controller: name a RUN"):
        Exam(shipped=tmp_path / "none").run()


def test_a_run_says_what_began_it(run):
    command = json.loads((run / "environment.json").read_text())["command"]
    assert command.startswith("esper train smoke --")
    assert "--run-dir" not in command


def test_watch_shows_a_run_and_ends_with_it(run, capsys):
    main(["watch", str(run), "--once"])
    assert "3 of 3" in capsys.readouterr().out
    main(["watch", str(run)])
    assert "3 of 3" in capsys.readouterr().out


def test_report_prints_where_it_is(run, capsys):
    main(["report", str(run)])
    assert capsys.readouterr().out.strip() == str(run / "report.html")


def test_resuming_what_is_done_changes_nothing(run, capsys):
    before = {path: path.read_bytes() for path in run.rglob("*.*") if path.is_file()}
    main(["resume", str(run)])
    assert "done" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in run.rglob("*.*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "smok"], "unknown recipe 'smok': did you mean 'smoke'?"),
        (["train", "smoke", "--fleets.0.task", "spiral"], "unknown task 'spiral': did you mean 'spirals'?"),
        (["train", "smoke", "--fleets.0.options.examples", "1"], "examples"),
        (["train", "smoke", "--exam", "1"], "exam must be at least 2"),
        (["train", "smoke", "--warm-start.run", "nowhere"], "nowhere holds no run"),
        (["train", "smoke", "--engine.device", "cuda:9"], "device 'cuda:9'"),
        (["train", "smoke", "--learn.rent.end", "nan"], "end must not be negative"),
        (["resume", "nowhere"], "nowhere holds no run"),
        (["watch", "nowhere"], "nowhere holds no run"),
        (["report", "nowhere"], "nowhere holds no run"),
        (["exam", "nowhere"], "nowhere holds no run"),
        (["exam", "nowhere", "--hosts", "1"], "hosts must be at least 2"),
    ],
)
def test_bad_runs_are_one_sentence_and_nothing_begins(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 2
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_shells_can_complete(shell, capsys):
    with pytest.raises(SystemExit) as exit:
        main(["--tyro-print-completion", shell])
    assert not exit.value.code
    script = capsys.readouterr().out
    assert "esper" in script
    assert all(command in script for command in ("train", "resume", "watch", "report", "exam", "bench"))
