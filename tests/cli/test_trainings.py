"""Many trainings with one command: the same as one after the other, whoever is killed."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from esper.cli import main
from esper.cli.cluster import Cluster
from esper.cli.commands import parse
from esper.cli.many import JobBoard, Many, last_line
from esper.cli.train import Train
from esper.cli.trainings import require_equal, training_job
from esper.jobs.processes import Processes
from esper.leyline.errors import EsperError
from esper.recipes import recipe
from esper.telemetry import RunFolder
from esper.telemetry.lock import holder_of
from jobs_toys import job
from telemetry_toys import SMALL, same_runs

MANY = ["train", "smoke", "--trainings", "2", "--at-once", "2", "--threads", "1", *SMALL, "--checkpoint-every", "1"]
DRIVER = "import sys; from esper.cli import main; main(sys.argv[1:])"


def refused(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit):
        main(arguments)
    return capsys.readouterr().err


def processes_of(folder: Path) -> list[int]:
    """The processes that train into a folder."""
    held = [holder_of(lock) or "" for lock in folder.glob("*/.lock")]
    return [int(found[1]) for text in held if (found := re.match(r"process (\d+) on", text))]


def begun(folder: Path) -> subprocess.Popen[str]:
    """A driver that has begun with at least one training, or has ended."""
    command = [sys.executable, "-c", DRIVER, *MANY, "--run-dir", str(folder)]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while driver.poll() is None and not processes_of(folder):
        time.sleep(0.01)
    return driver


def test_killed_at_random_moments_many_trainings_end_like_single_ones(tmp_path, capsys):
    """The driver is killed, then a worker."""
    folder, chance = tmp_path / "many", random.Random(3)
    driver = begun(folder)
    time.sleep(chance.uniform(0.0, 0.5))
    driver.kill()
    assert "done" not in driver.communicate()[1]
    driver = begun(folder)
    os.kill(chance.choice(processes_of(folder)), signal.SIGKILL)
    out, err = driver.communicate()
    assert driver.returncode == 0, err
    assert "its process was ended by SIGKILL; it goes on where it was" in err
    assert "J of the last 10" in out
    for n in "12":
        main(["train", "smoke", *MANY[8:], "--rng-seed", n, "--run-dir", str(tmp_path / n)])
        same_runs(tmp_path / n, folder / n)
    before = sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*.safetensors"))
    capsys.readouterr()
    main([*MANY, "--run-dir", str(folder)])
    told = capsys.readouterr()
    assert "begins" not in told.err, "what is done is not done again"
    assert f"best: {folder}/" in "".join(told.out.splitlines())
    assert sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*.safetensors")) == before
    assert "was begun with other flags" in refused(capsys, *MANY, "--run-dir", str(folder), "--learn.updates", "9")


def test_a_signal_lets_all_trainings_end_with_a_checkpoint(tmp_path):
    folder = tmp_path / "many"
    flags = ["--learn.updates", "500", "--checkpoint-every", "999", "--run-dir", str(folder)]
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, *MANY, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while len(list(folder.glob("*/reports.jsonl"))) < 2:
        time.sleep(0.02)
        assert driver.poll() is None, driver.communicate()
    driver.send_signal(signal.SIGINT)
    out, err = driver.communicate()
    assert driver.returncode == 0, err
    assert f"stopped: the same command with --run-dir {folder} goes on" in out
    for n in "12":
        reports = (folder / n / "reports.jsonl").read_text().count("\n")
        assert [path.stem for path in (folder / n / "checkpoints").glob("0*")] == [f"{reports:06d}"]
        assert not (folder / n / "controller.safetensors").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--trainings", "0"], "trainings must be at least 1, not 0"),
        (["--trainings", "2", "--rng-seed", "5"], "--trainings numbers the random seeds from 1: leave out --rng-seed"),
        (["--trainings", "2", "--json"], "--json and --heads show one training"),
        (["--trainings", "2", "--at-once", "0"], "at_once must be at least 1, not 0"),
        (["--trainings", "2", "--workers", "2"], "--workers is for one training: leave it out, or --trainings"),
        (["--trainings", "2", "--least", "1"], "--least is for one training: leave it out, or --trainings"),
        (["--trainings", "2", "--failures", "1"], "--failures is for one training: leave it out, or --trainings"),
        (["--trainings", "2", "--address", "here"], "--address is that of a Ray cluster: add --ray"),
        (["--trainings", "2", "--learn.updates", "0"], "updates must be at least 1, not 0"),
        (["--trainings", "2", "--fleets.0.task", "spiral"], "unknown task 'spiral'"),
        (["--at-once", "2"], "--at-once is for many jobs: add --trainings"),
    ],
)
def test_flags_that_do_not_fit_are_refused_before_anything_is_written(flags, said, tmp_path, capsys):
    assert said in refused(capsys, "train", "smoke", *flags, "--run-dir", str(tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()


def test_each_training_has_a_seed_and_a_folder_of_its_own(tmp_path):
    train = parse(["train", "smoke", "--learn.updates", "3", "--log", "tensorboard"])
    assert isinstance(train, Train)
    jobs = [training_job(train, n, tmp_path / str(n)) for n in (1, 2)]
    assert [job.done for job in jobs] == [tmp_path / n / "controller.safetensors" for n in "12"]
    for n, one in enumerate(jobs, 1):
        again = parse(one.given["arguments"])
        assert isinstance(again, Train)
        assert (again.rng_seed, again.run_dir) == (n, tmp_path / str(n))
        assert (again.changes, again.logging) == (train.changes, train.logging)
        assert again.asked() == train.asked().seeded(n)


def test_a_training_with_other_flags_is_not_gone_on_with(tmp_path, capsys):
    RunFolder.create(tmp_path / "2", recipe("smoke").seeded(2).plain(), {})
    require_equal(RunFolder(tmp_path / "1"), recipe("smoke"))
    require_equal(RunFolder(tmp_path / "2"), recipe("smoke").seeded(2))
    assert f"{tmp_path / '2'} was begun with other flags" in refused(capsys, *MANY, "--run-dir", str(tmp_path))
    assert not (tmp_path / "1").exists()


def test_a_second_driver_on_one_folder_is_refused(tmp_path, capsys):
    holder = "from esper.telemetry.lock import locked; from pathlib import Path; import sys, time\n"
    holder += "with locked(Path(sys.argv[1]) / '.lock', Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", holder, str(tmp_path)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert "is being written by process" in refused(capsys, *MANY, "--run-dir", str(tmp_path))
        other.kill()


def test_cores_are_shared_by_the_jobs(monkeypatch):
    monkeypatch.setattr("esper.cli.many.available_cores", lambda: 8)
    monkeypatch.setattr("esper.cli.many.visible_gpus", lambda: ["0", "1"])

    def shared(many: Many, count: int, device: str) -> tuple:
        executor = many.executor(count, device)
        assert isinstance(executor, Processes)
        executor.close()
        return executor.at_once, executor.threads, list(executor.gpus)

    assert shared(Many(), 5, "cpu") == (5, 1, [])
    assert shared(Many(), 20, "cpu") == (8, 1, [])
    assert shared(Many(at_once=2), 5, "cpu") == (2, 4, [])
    assert shared(Many(at_once=2, threads=3), 5, "cpu") == (2, 3, [])
    assert shared(Many(), 12, "cuda") == (12, 1, ["0", "1"])
    assert shared(Many(), 3, "cuda:1") == (3, 2, []), "who names a GPU gets that one"
    with pytest.raises(EsperError, match="device must be cuda with --ray"):
        Many(cluster=Cluster(ray=True)).executor(3, "cuda:1")


def test_the_board_shows_what_running_jobs_said_last(tmp_path):
    from rich.console import Console

    first, second = job(tmp_path, "a"), job(tmp_path, "b")
    console = Console(force_terminal=True, width=60, record=True)
    board = JobBoard([first, second], console)
    board.tell(first, "begins")
    first.log.write_text("update 1\nupdate 2, J 0.5\n\n")
    assert last_line(first.log) == "update 2, J 0.5"
    console.print(board)
    assert console.export_text().splitlines() == ["0 of 2 jobs done", "a: update 2, J 0.5"]
