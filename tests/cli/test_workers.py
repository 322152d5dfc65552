"""Starting several workers: what is refused before any starts, and what the user hears of those that fail."""

import json
import os
import re
import subprocess
import sys
from threading import Thread

import pytest

from esper.cli import main
from esper.cli.cluster import Cluster
from esper.cli.ray_train import OnRay
from esper.cli.stopping import stopping
from esper.cli.train import Resume, Train
from esper.cli.workers import asks_for_workers, is_worker, were_restarted
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


def test_in_another_thread_nothing_asks_to_stop():
    """As in a worker of Ray, whose main thread is Ray's."""
    found = []

    def look() -> None:
        with stopping() as stop:
            found.append(stop())

    thread = Thread(target=look)
    thread.start()
    thread.join()
    assert found == [False]


def test_the_number_of_workers_is_kept_with_the_run(tmp_path):
    run = small_run(tmp_path, tmp_path / "copy")
    assert json.loads((run / "environment.json").read_text())["workers"] == 1
