"""Checkpoints, stages of training, resuming, signals, progress, and what is printed."""

import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import warnings
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from esper.cli import main
from esper.cli.desk import Logging
from esper.cli.loop import checkpoint, pick_up, restored, shown_progress
from esper.cli.stopping import stopping
from esper.cli.train import Train, continued, warnings_once
from esper.leyline.errors import EsperError, FileError
from esper.leyline.reports import Anomaly, UpdateReport
from esper.recipes import RECIPES, Recipe, recipe
from esper.recipes.config import PretrainConfig, WarmStartConfig
from esper.simic import CollectConfig, LearnConfig
from esper.simic.checkpoint import save_training_run
from esper.simic.train import Training
from esper.tamiyo import load_controller
from esper.tamiyo.controller_files import save_controller
from esper.telemetry import Board, RunFolder
from small_fleets import controller_for, make_env
from telemetry_toys import MAIN, SMALL, report, small_run

ASKED = replace(recipe("smoke"), keep=2)


def begin() -> Training:
    return Training([make_env("mlp", 2, episode=2)], controller_for(), LearnConfig(collect=CollectConfig(horizon=1)))


def weights(controller) -> list[torch.Tensor]:
    return [p.detach().clone() for p in controller.parameters()]


def same(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def test_a_resumed_run_goes_on_from_its_newest_checkpoint_with_the_logs_and_the_best_of_then(tmp_path):
    """J of three updates, and of a fourth that no checkpoint holds: the second is the best."""
    folder, training = RunFolder.create(tmp_path / "run", {}, {}), begin()
    best, seen = -float("inf"), []
    for update, j in enumerate((0.4, 0.6, None, 0.5)):
        training.step()
        seen.append(weights(training.controller))
        folder.append(report(update, objective=j))
        if update < 3:
            best = checkpoint(folder, ASKED, 0, training, report(update, objective=j), best)
        assert same(weights(load_controller(folder.best_path)), seen[0 if update == 0 else 1])
    assert [path.stem for path in folder.checkpoints()] == ["000002", "000003"]
    again, best = restored(folder, folder.checkpoints()[-1], begin())
    assert (again.update, best) == (3, 0.6)
    assert same(weights(again.controller), seen[2])
    assert [r.update for r in folder.reports()] == [0, 1, 2]
    assert [life.update for life in folder.episodes()] == [0, 0, 1, 1, 2, 2]
    assert gardens(folder) == [0, 1, 2]
    again.step()
    assert same(weights(again.controller), seen[3]), "as if it had never stopped"
    assert checkpoint(folder, ASKED, 0, again, report(3, objective=0.5), best) == 0.6
    assert same(weights(load_controller(folder.best_path)), seen[1])


def test_before_its_first_checkpoint_a_run_begins_again(tmp_path):
    folder = RunFolder.create(tmp_path / "run", {}, {})
    folder.append(report(0))
    at = pick_up(folder, ASKED)
    assert at.training is not None
    assert (at.stage, at.best, at.training.update) == (0, -float("inf"), 0)
    assert (folder.reports(), folder.episodes(), gardens(folder)) == ([], [], [])


def gardens(folder: RunFolder) -> list[int]:
    """The updates whose gardens a folder holds."""
    return [json.loads(line)["update"] for line in (folder.path / "garden.jsonl").read_text().splitlines()]


def test_checkpoints_of_older_versions_know_no_gardens_and_are_resumed_from(tmp_path):
    """A garden that was written after them is cut. One that says less, or of logs that nobody knows, is damaged."""
    folder, training = RunFolder.create(tmp_path / "run", {}, {}), begin()
    training.step()
    folder.append(report(0, garden=()))
    old, path = folder.offsets(), folder.checkpoint_path(1)
    del old["garden.jsonl"]
    start = {"lives": 1, "decisions": 2, "seconds": 3.0}
    save_training_run(path, training, {"logs": old, "best": None, "start": start})
    folder.append(report(1))
    for _ in range(2):
        again, _ = restored(folder, path, begin())
        assert again.update == 1
        assert [r.update for r in folder.reports()] == [0]
        assert gardens(folder) == []
        assert folder.start() == start | {"never": None}
        folder.append(report(1))
    for wrong in ({}, {"reports.jsonl": 0}, old | {"more.jsonl": 0}):
        save_training_run(path, training, {"logs": wrong, "best": None})
        with pytest.raises(FileError, match="is damaged: it does not say how long the logs were"):
            restored(folder, path, begin())


def test_a_run_knows_how_hosts_do_that_never_grow_and_is_no_other_for_it(tmp_path):
    """Measured before the first update; the updates are those of a training in which nothing was measured."""
    run = RunFolder.open(small_run(tmp_path, tmp_path / "copy"))
    training, other = (Train(recipe="smoke", changes=SMALL).asked().build() for _ in range(2))
    assert run.start() == {"lives": 0, "decisions": 0, "seconds": 0.0, "never": other.never()}
    made = [replace(training.step().brief(), seconds={}) for _ in range(3)]
    assert [replace(report, seconds={}) for report in run.reports()] == made
    assert gardens(run) == [0, 1, 2]


def test_a_signal_while_hosts_that_never_grow_are_measured_stops_at_once_and_resume_works(tmp_path):
    path = tmp_path / "run"
    before = "import os, signal, esper.simic.train as t; "
    before += "t.evaluate = lambda *_, **__: os.kill(os.getpid(), signal.SIGINT); "
    done = esper("train", "smoke", *SMALL, "--exam", "0", "--run-dir", str(path), before=before)
    assert done.returncode == 0, done.stderr
    assert "stopped during the measurement of hosts that never grow, after update 0" in done.stdout
    folder = RunFolder(path)
    assert folder.start()["never"] is None
    main(["resume", str(path)])
    assert folder.done
    assert folder.start()["never"] is not None
    known = (path / "start.json").read_bytes()
    (path / "checkpoints/000003.safetensors").unlink()
    folder.controller_path.unlink()
    main(["resume", str(path)])
    assert folder.done
    assert (path / "start.json").read_bytes() == known, "a resumed run keeps it"


def test_gardens_and_episodes_are_in_their_logs_alone(tmp_path, monkeypatch, capsys):
    """Neither printed nor kept by the board or sent to trackers: a long run would fill the memory with them."""
    heard, hear = [], Board.hear

    def remember(board: Board, report: UpdateReport) -> None:
        heard.append(report)
        hear(board, report)

    monkeypatch.setattr(Board, "hear", remember)
    train = Train(recipe="smoke", run_dir=tmp_path / "run", logging=Logging(json=True), changes=(*SMALL, "--exam", "0"))
    train.run()
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [(line["update"], line["garden"], line["lives"]) for line in printed] == [(n, [], []) for n in range(3)]
    assert [(report.update, report.garden, report.lives) for report in heard] == [(n, (), ()) for n in range(3)]
    assert gardens(RunFolder(tmp_path / "run")) == [0, 1, 2]
    with Logging(json=True).shown(Board("run", 1), lines()) as show:
        show(report(0))
    assert json.loads(capsys.readouterr().out)["garden"] == []


def test_who_goes_on_from_a_run_knows_what_it_knows_and_keeps_its_controller(tmp_path):
    plain = recipe("smoke")
    (fleet,) = plain.fleets
    before = replace(plain, known=(replace(fleet, widths=(5, 5)),))
    folder = RunFolder.create(tmp_path / "run", before.plain(), {})
    asked = replace(plain, warm_start=WarmStartConfig(run=str(folder.path)))
    with pytest.raises(FileError, match="is not done: resume it before another run continues from it"):
        continued(asked, plain)
    save_controller(folder.controller_path, controller_for())
    own = controller_for().config
    found = continued(replace(asked, controller=replace(asked.controller, size=False)), plain)
    assert found.known == before.learned_from
    assert found.controller == replace(own, size=False), "but for what it is told"
    with pytest.raises(EsperError, match=f"controller must be left as it is in {folder.path}"):
        continued(replace(asked, controller=replace(own, hidden=own.hidden + 1)), plain)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_asks_to_stop_and_a_second_one_stops_at_once(number):
    before = signal.getsignal(number)
    with stopping() as asked:
        assert not asked()
        os.kill(os.getpid(), number)
        assert asked()
    assert signal.getsignal(number) is before
    with pytest.raises(EsperError, match="stopped in the middle of an update"):
        ask_twice(number)
    assert signal.getsignal(number) is before


def test_what_a_resumed_run_repeats_is_stopped_by_one_signal():
    with stopping() as stop:
        with stop.at_once("the warm start"):
            os.kill(os.getpid(), signal.SIGINT)
            pytest.fail("it goes on")
        assert stop()
        assert stop.phase == "the warm start"


def ask_twice(number: int) -> None:
    with stopping():
        for _ in range(2):
            os.kill(os.getpid(), number)
        pytest.fail("it goes on")


TINY = Train(recipe="smoke", changes=(*SMALL, "--exam", "0")).asked()
SEARCH = WarmStartConfig(plans=2, hosts=1, best=1, lives=2, epochs=2)


def staged(rng_seed: int = 3) -> Recipe:
    """Two stages of two updates: spirals with hosts of 4 units, then with hosts of 5 units and without the size."""
    (fleet,) = TINY.fleets
    learn = replace(TINY.learn, updates=2)
    first = PretrainConfig(fleets=(fleet,), warm_start=SEARCH, learn=learn, reveal=("size",))
    controller = replace(TINY.controller, size=False)
    wide = (replace(fleet, widths=(5, 5)), fleet)
    asked = replace(TINY, pretrain=(first,), fleets=wide, warm_start=SEARCH, learn=learn, controller=controller)
    return replace(asked, checkpoint_every=1, keep=9).seeded(rng_seed)


def esper(*arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", before + MAIN, *arguments], capture_output=True, text=True, check=False
    )


def begun(path: Path, asked: Recipe) -> RunFolder:
    """The folder of a run that has not made its first update."""
    return RunFolder.create(path, asked.plain(), {"threads": torch.get_num_threads()})


def made(folder: RunFolder) -> tuple[list, list, dict]:
    """Everything that a run has come to, but for the time it took."""
    reports = [replace(report, seconds={}) for report in folder.reports()]
    weights = {name: x.tolist() for name, x in load_controller(folder.controller_path).state_dict().items()}
    return reports, folder.episodes(), {**folder.start(), "seconds": 0.0, "weights": weights}


@contextmanager
def one_thread():
    """As many as `MAIN` has, so that bits are the same."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> RunFolder:
    """A staged run that was never stopped."""
    with one_thread():
        folder = begun(tmp_path_factory.mktemp("runs") / "whole", staged())
        main(["resume", str(folder.path)])
    return folder


@one_thread()
def test_a_staged_run_equals_a_chain_of_runs_and_resumes_in_any_stage(whole, tmp_path):
    one, two = staged().stages
    assert [report.update for report in whole.reports()] == [0, 1, 2, 3]
    assert [path.stem for path in whole.checkpoints()] == ["000001", "000002", "000003", "000004"]
    chain = [begun(tmp_path / "one", one)]
    main(["resume", str(chain[0].path)])
    chain.append(begun(tmp_path / "two", replace(two, warm_start=replace(two.warm_start, run=str(chain[0].path)))))
    main(["resume", str(chain[1].path)])
    alone = [replace(report, seconds={}) for folder in chain for report in folder.reports()]
    reports, episodes, totals = made(whole)
    assert [replace(report, update=0) for report in reports] == [replace(report, update=0) for report in alone]
    assert totals["weights"] == made(chain[1])[2]["weights"], "bit for bit"
    assert len({life.update for life in episodes}) > 2
    assert [load_controller(folder.controller_path).config.size for folder in chain] == [True, False]
    assert [folder.start()["never"] for folder in chain] == [one.build().never(), two.build().never()]
    assert totals["never"] == chain[1].start()["never"], "of the fleets of the last stage"
    for kept in (1, 2, 3):
        again = RunFolder(tmp_path / f"after-{kept}")
        shutil.copytree(whole.path, again.path)  # with all logs and start.json: as if killed much later
        again.controller_path.unlink()
        for path in again.checkpoints()[kept:]:
            path.unlink()
        main(["resume", str(again.path)])
        assert made(again) == (reports, episodes, totals), f"resumed after update {kept}"


def test_the_newest_checkpoint_says_which_stage_a_run_is_in(tmp_path):
    asked = staged()
    folder = begun(tmp_path / "run", asked)
    for n, stage in enumerate(asked.stages):
        training = stage.build()
        for update in range(2):
            training.step()
            checkpoint(folder, asked, n, training, report(update), -float("inf"))
            at = pick_up(folder, asked)
            assert at.training is not None
            assert (at.stage, at.training.update) == (n, update + 1)
            assert at.training.controller.config == stage.controller
            assert same(weights(at.training.controller), weights(training.controller))


KILL = """
import os, signal, esper.recipes.warm_start as module
clone, count = module.clone, [0]

def killed(*arguments):
    count[0] += 1
    for report in clone(*arguments):
        if count[0] == {stage} and report.epoch == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        yield report

module.clone = killed
"""


@pytest.mark.parametrize("stage", [1, 2])
def test_killed_inside_of_a_warm_start_a_run_ends_as_if_it_had_not_been(stage, whole, tmp_path):
    with one_thread():
        again = begun(tmp_path / "again", staged())
        killed = esper("resume", str(again.path), before=KILL.format(stage=stage))
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert len(again.reports()) == 2 * (stage - 1)
        main(["resume", str(again.path)])
    assert made(again) == made(whole)


def processor_time(pid: int) -> float:
    """Seconds of processor time that a running process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("terminal", [False, True])
def test_a_signal_during_the_warm_start_stops_at_once_and_resume_works(terminal, tmp_path, request):
    """In a terminal the cursor comes back, too."""
    path = tmp_path / "run"
    start = ("--warm-start.plans", "2", "--warm-start.best", "1", "--warm-start.hosts", "1")
    long = ("--warm-start.epochs", "1000000", "--exam", "0")
    code = MAIN.replace(
        "import sys;", "import sys, os; os.environ['FORCE_COLOR'] = '1';" if terminal else "import sys;"
    )
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", code, "train", "smoke", *SMALL, *start, *long, "--run-dir", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    request.addfinalizer(process.kill)
    assert process.stdout is not None
    seen = b""
    while b"epoch" not in seen:
        chunk = os.read(process.stdout.fileno(), 65536)
        assert chunk, process.communicate()
        seen += chunk
    sent, used = time.monotonic(), processor_time(process.pid)
    others = resource.getrusage(resource.RUSAGE_CHILDREN)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    own_time = own.ru_utime + own.ru_stime - others.ru_utime - others.ru_stime - used
    assert min(time.monotonic() - sent, own_time) < 2, "within two seconds, of its own on a busy machine"
    assert process.returncode == 0, err
    said = (seen + out).decode()
    assert "stopped during the warm start, after update 0" in said
    assert f"esper resume {path}" in said
    assert "Traceback" not in err.decode()
    assert ("\x1b[?25l" in said) == terminal
    assert said.rfind("\x1b[?25h") >= said.rfind("\x1b[?25l"), "the cursor is shown again"
    config = json.loads((path / "config.json").read_text())
    config["recipe"]["warm_start"]["epochs"] = 2
    (path / "config.json").write_text(json.dumps(config))
    main(["resume", str(path)])
    assert RunFolder(path).done


def test_a_signal_during_the_exam_stops_at_once_and_resume_holds_it_again(tmp_path):
    """The signal comes when the exam has told of its first step; the exam would go on for three more."""
    path = tmp_path / "run"
    before = "import os, signal, esper.cli.loop as t; call = t.Steps.__call__; "
    before += "t.Steps.__call__ = lambda self, step: (call(self, step), os.kill(os.getpid(), signal.SIGINT)); "
    done = esper("train", "smoke", *SMALL, "--run-dir", str(path), before=before)
    assert done.returncode == 0, done.stderr
    assert "stopped during the preliminary exam, after update 3" in done.stdout
    assert done.stdout.count("hosts that count") == 1
    assert not RunFolder(path).done
    main(["resume", str(path)])
    assert len(RunFolder(path).exams()) == 1


def test_a_run_killed_before_its_report_gets_one_when_resumed(tmp_path):
    path = tmp_path / "run"
    code = "import os, signal, esper.cli.loop as t; "
    code += "t.write_report = lambda folder: os.kill(os.getpid(), signal.SIGKILL); "
    code += MAIN.replace("sys.modules['matplotlib'] = None; ", "")
    killed = subprocess.run(
        [sys.executable, "-c", code, "train", "smoke", *SMALL, "--run-dir", str(path)], capture_output=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert RunFolder(path).done
    assert not (path / "report.html").exists()
    main(["resume", str(path)])
    assert (path / "report.html").exists()


@pytest.mark.parametrize("sink", ["wandb", "mlflow", "tensorboard"])
def test_a_tracker_that_is_not_installed_leaves_no_folder(sink, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, sink, None)
    train = Train(recipe="smoke", run_dir=tmp_path / "run", logging=Logging(log=(sink,)), changes=SMALL)
    with pytest.raises(EsperError, match=rf"{sink} is not installed: pip install 'esper-nn\[{sink}\]'"):
        train.run()
    assert list(tmp_path.iterdir()) == []


def test_a_done_run_without_checkpoints_is_left_alone(tmp_path):
    """Such as one of which only the controller and the reports were kept."""
    run = small_run(tmp_path, tmp_path / "copy")
    shutil.rmtree(run / "checkpoints")
    reports = (run / "reports.jsonl").read_bytes()
    main(["resume", str(run)])
    assert (run / "reports.jsonl").read_bytes() == reports


def lines() -> Console:
    return Console(file=io.StringIO(), width=200)


def printed(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_an_anomaly_is_printed_once_and_counted():
    console, board = lines(), Board("run", 3)
    with Logging().shown(board, console) as show:
        for update in range(3):
            found = (Anomaly(update, "ratio explosion", "[op]", "why", "what to do"),)
            heard = report(update, anomalies=found if update != 1 else (), seconds={"learn": 2.0})
            board.hear(heard)
            show(heard)
    first, anomaly, second, third, count = printed(console)
    assert first.endswith("4 s to go")
    assert second.endswith("2 s to go")
    assert "to go" not in third
    assert anomaly == "  ratio explosion ([op]): why; what to do"
    assert count == "  ratio explosion ([op]) × 2, last at update 2"


@pytest.mark.parametrize("heads", [False, True])
def test_lines_of_a_run_compare_it_with_hosts_that_never_grow(tmp_path, capsys, heads):
    train = Train(
        recipe="smoke", run_dir=tmp_path / "run", logging=Logging(heads=heads), changes=(*SMALL, "--exam", "0")
    )
    train.run()
    never = RunFolder(tmp_path / "run").start()["never"]
    said = capsys.readouterr().out
    for told in RunFolder(tmp_path / "run").reports():
        assert told.objective is None or f"(never grows: {told.objective - never:+.3f})" in said
    assert "(never grows: " in said
    assert ("alpha target" in said) == heads


def test_progress_is_lines_with_the_time_to_go_where_nothing_can_be_redrawn():
    clock, console = iter([0.0, 10.0, 20.0, 21.0, 30.0, 40.0]), lines()
    with shown_progress("warm start", console, now=lambda: next(clock)) as progress:
        for step, done, total in (("[a]", 0, 4), ("b", 1, 4), ("soon", 2, 4), ("c", 0, 10), ("d", 5, 10)):
            progress(step, done, total)
    assert printed(console) == [
        "warm start: [a]",
        "warm start: b, 30 s to go",
        "warm start: c",
        "warm start: d, 10 s to go",
    ]


def test_progress_stops_whatever_was_asked_to_stop():
    with shown_progress("warm start", lines(), lambda: True) as progress, pytest.raises(KeyboardInterrupt):
        progress("a", 0, 1)


@pytest.mark.filterwarnings("default")
def test_a_warning_is_shown_once_wherever_it_comes_from():
    with warnings.catch_warnings(record=True) as shown, warnings_once():
        warnings.simplefilter("always")
        for _ in range(2):
            warnings.warn("one", stacklevel=1)
        warnings.warn("one", stacklevel=2)
        warnings.warn("two", stacklevel=1)
    assert [str(warning.message) for warning in shown] == ["one", "two"]


@pytest.mark.parametrize("name", RECIPES)
def test_no_recipe_warns_of_itself(name):
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        recipe(name)
    assert not shown


def test_help_for_a_recipe_shows_its_fields(capsys):
    with pytest.raises(SystemExit) as exit:
        main(["train", "smoke", "--help"])
    assert not exit.value.code
    said = capsys.readouterr().out
    assert "--run-dir" in said
    assert "--learn.updates" in said
    assert "--fleets.0.hosts" in said
    with pytest.raises(SystemExit) as exit:
        main(["train", "--help"])
    assert not exit.value.code
    said = capsys.readouterr().out
    assert "esper train RECIPE --help" in " ".join(said.split())
    assert "--learn.updates INT" not in said


@pytest.mark.parametrize(
    ("flag", "suggestion"),
    [
        ("--lern.updates", "--learn.updates"),
        ("--fleets.0.host-count", "--fleets.0.host"),
        ("--run-dri", "--run-dir"),
        ("--rngseed", "--rng-seed"),
        ("--jsn", "--json"),
    ],
)
def test_misspelt_flags_of_a_recipe_get_suggestions(flag, suggestion, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit:
        main(["train", "smoke", flag, "3"])
    assert exit.value.code == 2
    assert suggestion in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
