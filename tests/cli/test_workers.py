"""Starting several workers: what is refused before any starts, and what the user hears of those that fail."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from threading import Event, Thread

import pytest

from esper.cli import main
from esper.cli.cluster import Cluster
from esper.cli.ray_train import OnRay, fit
from esper.cli.stopping import asked_by, stopping
from esper.cli.train import Resume, Train
from esper.cli.workers import Started, _forwarding, asks_for_workers, is_worker, were_restarted
from esper.leyline.errors import EsperError
from esper.simic.workers import ALONE
from esper.telemetry import RunFolder
from telemetry_toys import SMALL, small_run

OF_TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--workers", "3"), "3 workers cannot share 1 fleet: each needs at least one: use at most 1"),
        (("--workers", "0"), "workers must be at least 1, not 0"),
        (("--address", "here"), "--address is that of a Ray cluster: add --ray"),
        (("--least", "1"), "--least is for the workers of Ray: add --ray"),
        (("--failures", "3"), "--failures is for the workers of Ray: add --ray"),
        (("--ray", "--workers", "2", "--least", "3"), r"least must be from 1 to the number of workers \(2\), not 3"),
        (("--ray", "--failures", "-1"), "failures must not be negative, not -1"),
        (("--worker", "2"), "unknown flag --worker: did you mean --workers"),
    ],
)
def test_workers_that_cannot_be_are_refused_and_nothing_is_written(flags, why, tmp_path, capsys):
    if "--ray" in flags:
        pytest.importorskip("ray")
    with pytest.raises(SystemExit):
        main(["train", "smoke", *SMALL, *flags, "--run-dir", str(tmp_path / "run")])
    assert re.search(why, capsys.readouterr().err)
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_not_resumed_by_more_workers_than_it_has_fleets(tmp_path):
    run = small_run(tmp_path, tmp_path / "copy")
    (run / "controller.safetensors").unlink()
    with pytest.raises(EsperError, match="2 workers cannot share 1 fleet"):
        Resume(run_dir=run, workers=2).run()


@pytest.mark.parametrize("flags", [("--least", "1"), ("--failures", "0"), ("--address", "here")])
def test_flags_of_ray_do_not_resume_without_it(flags, tmp_path, capsys):
    run = small_run(tmp_path, tmp_path / "copy")
    (run / "controller.safetensors").unlink()
    before = sorted(run.rglob("*"))
    with pytest.raises(SystemExit):
        main(["resume", str(run), *flags])
    assert re.search(rf"{flags[0]} is .*: add --ray\n", capsys.readouterr().err)
    assert sorted(run.rglob("*")) == before


def test_a_folder_that_holds_a_run_is_refused_before_workers_start(tmp_path):
    run = small_run(tmp_path, tmp_path / "copy")
    with pytest.raises(EsperError, match="holds a run already"):
        Train(recipe="smoke_workers", run_dir=run, workers=2).run()


def test_processes_of_torchrun_are_workers_unless_there_is_one(monkeypatch):
    assert not is_worker()
    for name, value in OF_TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert is_worker()
    assert not asks_for_workers(4)
    with pytest.raises(EsperError, match=r"workers \(2\) and the processes of torchrun \(4\) must be equal"):
        asks_for_workers(2)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert not is_worker()
    assert asks_for_workers(2)


def test_a_worker_runs_the_command_that_it_belongs_to(tmp_path):
    changes = ("--learn.updates", "3")
    train = Train(recipe="smoke", run_dir=tmp_path, rng_seed=7, device="cpu", workers=2, changes=changes)
    own = ["--run-dir", str(tmp_path), "--rng-seed", "7", "--device", "cpu"]
    assert train.arguments(tmp_path) == ["train", "smoke", *own, *changes]
    assert train.command(2) == "esper train smoke --rng-seed 7 --device cpu --workers 2 --learn.updates 3"
    assert train.command() == "esper train smoke --rng-seed 7 --device cpu --learn.updates 3"


def test_the_error_of_one_worker_is_one_sentence_and_leaves_no_folder(tmp_path):
    """The host of the last fleet, which belongs to the second worker, is too narrow."""
    flags = ["--fleets.3.widths", "3", "3", "--exam", "0"]
    command = [sys.executable, "-m", "esper", "train", "smoke_workers", "--workers", "2", *flags]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--run-dir", str(tmp_path / "run")], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "esper: segment 0 of host 'mlp' gives 3 channels: seeds need at least 4\n"
    assert list(tmp_path.iterdir()) == []


def test_without_ray_its_flags_say_how_to_install_it(monkeypatch):
    monkeypatch.setattr("esper.jobs.ray_tasks.find_spec", lambda name: None)
    with pytest.raises(EsperError, match=r"ray is not installed: pip install 'esper-nn\[ray\]'"):
        OnRay().check(Cluster(ray=True), 2)


def test_workers_that_were_started_again_go_on_with_the_run_that_they_have_begun(tmp_path, monkeypatch):
    run = small_run(tmp_path, tmp_path / "copy")
    train = Train(recipe="smoke", run_dir=run, changes=SMALL)
    reports = (run / "reports.jsonl").read_bytes()
    (run / "controller.safetensors").unlink()
    train.again(ALONE)
    assert RunFolder(run).done
    assert (run / "reports.jsonl").read_bytes() == reports, "no update was made again"
    assert not were_restarted()
    for name, value in (OF_TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "1"}).items():
        monkeypatch.setenv(name, value)
    assert were_restarted()


def test_a_run_in_another_thread_stops_when_the_function_that_is_asked_there_says_so():
    """As in a worker of Ray, whose main thread is Ray's."""
    found, asked = [], [False]

    def look() -> None:
        with stopping() as stop:
            found.append(stop())
        with asked_by(lambda: asked[0]), stopping() as stop:
            found.append(stop())
            asked[0] = True
            found.append(stop())
        with stopping() as stop:
            found.append(stop())

    thread = Thread(target=look)
    thread.start()
    thread.join()
    assert found == [False, False, True, False]


class Trainer:
    """In place of Ray's: ends when its workers are asked to stop, or fails."""

    def __init__(self, file: Path) -> None:
        self.file, self.began = file, Event()

    def fit(self) -> None:
        assert threading.current_thread() is not threading.main_thread(), "Ray would end the workers at once"
        self.began.set()
        until = time.monotonic() + 20
        while not self.file.exists():
            assert time.monotonic() < until, "nobody asks the workers to stop"
            time.sleep(0.01)
        raise ValueError("a worker was lost")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_launcher_passes_signals_on_to_the_workers_that_still_run(number):
    code = f"import signal, time; signal.signal({number:d}, lambda *_: exit(7)); print(1, flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    process.stdout.readline()
    with _forwarding([Started(0, ended, None), Started(1, process, None)]):
        os.kill(os.getpid(), number)
        assert process.wait(timeout=30) == 7
    process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_asks_the_workers_of_ray_to_stop(number, tmp_path, capsys):
    trainer = Trainer(tmp_path / "stop")

    def interrupt() -> None:
        trainer.began.wait()
        os.kill(os.getpid(), number)

    Thread(target=interrupt).start()
    with pytest.raises(ValueError, match="a worker was lost"):
        fit(trainer, trainer.file)
    assert capsys.readouterr().err == "stopping after this update; once more to stop at once\n"


def test_the_number_of_workers_is_kept_with_the_run(tmp_path):
    run = small_run(tmp_path, tmp_path / "copy")
    assert json.loads((run / "environment.json").read_text())["workers"] == 1
