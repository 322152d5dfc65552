"""Jobs as tasks of a Ray that runs on this machine: its workers are killed, and nothing is lost or done twice."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from esper.cli import main
from esper.cli.many import Many
from esper.jobs import run_jobs
from esper.jobs.ray_tasks import OBJECTS, RayTasks, connect, interruptible, require_ray
from esper.jobs.running import ATTEMPTS
from esper.leyline.errors import EsperError
from esper.telemetry import RunFolder
from jobs_toys import QUICK_RAY, TESTS, Here, begun, job
from telemetry_toys import SMALL, same_runs, small_run, timeless_exams

FLEETS = [
    word
    for n in range(4)
    for flag, value in (("hosts", 2), ("env.group", 1), ("env.episode", 3), ("options.examples", 200))
    for word in (f"--fleets.{n}.{flag}", str(value))
]
FLEETS += ["--learn.collect.horizon", "2"]
NO_RAY = importlib.util.find_spec("ray") is None
needs_ray = pytest.mark.skipif(NO_RAY, reason="there is no Ray for this Python")


@pytest.fixture(scope="module")
def cluster():
    """One Ray for all tests of this module: a machine with two cores, with toys that its workers can import."""
    require_ray()
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("PYTHONPATH", TESTS, prepend=os.pathsep)
        for name, value in QUICK_RAY.items():
            changed.setenv(name, value)
        head = {"num_cpus": 2, "object_store_memory": OBJECTS, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        yield cluster
        cluster.shutdown()


@pytest.fixture(scope="module")
def ray(cluster):
    assert connect(address=cluster.address)
    import ray

    yield ray
    ray.shutdown()


def test_without_ray_its_flag_is_refused_in_one_sentence_and_nothing_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("esper.jobs.ray_tasks.find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        main(["train", "smoke", "--trainings", "2", "--ray", "--run-dir", str(tmp_path / "runs"), *SMALL])
    assert "ray is not installed: pip install 'esper-nn[ray]', or leave out --ray" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_ray_is_imported_by_those_alone_who_ask_for_it():
    code = "import sys, esper.cli.train, esper.cli.exam, esper.jobs.ray_tasks; print('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


@needs_ray
def test_ray_reports_its_usage_to_nobody_unless_it_is_told_to():
    code = "import os; from esper.jobs.ray_tasks import require_ray; require_ray();"
    code += "from ray._common.usage.usage_lib import usage_stats_enabled; print(usage_stats_enabled())"
    for given, found in ((None, "False"), ("1", "True")):
        env = {name: value for name, value in os.environ.items() if name != "RAY_USAGE_STATS_ENABLED"}
        env |= {"RAY_USAGE_STATS_ENABLED": given} if given else {}
        assert (
            subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True).stdout.strip()
            == found
        )


@needs_ray
def test_tasks_are_done_once_each_with_their_threads_where_the_driver_is(ray, tmp_path):
    jobs = [job(tmp_path, "c", after=("a", "b")), job(tmp_path, "a"), job(tmp_path, "b")]
    assert [one.name for one in run_jobs(jobs, RayTasks(2))][2] == "c"
    assert {one.done.read_text().rsplit(" ", 1)[0] for one in jobs} == {f"{os.getcwd()} 1"}
    assert [one.name for one in run_jobs(jobs, RayTasks(2))] == ["c", "a", "b"]
    assert sorted(begun(tmp_path)) == ["a", "b", "c"]
    assert (tmp_path / "a.log").read_text() == "a begins\n"
    assert ray.is_initialized(), "closed by who has opened it"


@needs_ray
def test_a_task_whose_worker_is_killed_is_done_again_and_one_that_fails_is_not(ray, tmp_path):
    said = []
    jobs = [job(tmp_path, "a", "die"), job(tmp_path, "b", "die", times=99), job(tmp_path, "c", "refuse")]
    with pytest.raises(EsperError, match="2 of 3 jobs are not done"):
        list(run_jobs(jobs, RayTasks(2), lambda job, what: said.append(f"{job.name} {what}")))
    assert sorted(begun(tmp_path)) == ["a"] * 2 + ["b"] * ATTEMPTS + ["c"]
    assert "a its task was ended (WorkerCrashedError); it goes on where it was" in said
    assert "c failed: lr must be positive, not −1" in said
    assert "a done" in said


@needs_ray
def test_tasks_that_ray_has_no_room_for_are_refused(ray):
    with pytest.raises(EsperError, match="threads must be at most 2, the CPUs of Ray's largest machine, not 3"):
        RayTasks(1, threads=3)
    with pytest.raises(EsperError, match="Ray has no GPU: choose --device cpu"):
        RayTasks(1, uses_gpus=True)


@needs_ray
def test_tasks_are_interrupted_when_they_are_to_stop(ray, tmp_path):
    jobs = [job(tmp_path, "a", seconds=60.0), job(tmp_path, "b")]
    assert not list(run_jobs(jobs, RayTasks(1), stop=lambda: bool(begun(tmp_path))))
    assert begun(tmp_path) == ["a"]


def test_a_task_can_be_interrupted_where_ray_was_started_in_the_background(tmp_path):
    """A shell lets what it starts with & ignore Ctrl-C, and Ray's workers inherit that."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        interruptible({"job": job(tmp_path, "a").plain(), "threads": 1, "cwd": os.getcwd()})
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


DRIVER = """
import json, sys
from esper.jobs import Job, run_jobs
from esper.jobs.ray_tasks import RayTasks
print([job.name for job in run_jobs([Job.revived(plain) for plain in json.loads(sys.argv[1])], RayTasks(2))])
"""


@needs_ray
def test_a_driver_that_is_killed_takes_its_own_ray_along_and_can_be_called_again(ray, tmp_path):
    jobs = [job(tmp_path, "a"), job(tmp_path, "b", seconds=60.0)]
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, json.dumps([one.plain() for one in jobs])])
    while not jobs[0].is_done or len(begun(tmp_path)) < 2:
        time.sleep(0.02)
        assert driver.poll() is None
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    assert [one.name for one in run_jobs([jobs[0], job(tmp_path, "b")], RayTasks(2))] == ["a", "b"]
    assert begun(tmp_path).count("a") == 1


class Killer(threading.Thread):
    """Kills the process of every training in a folder once, as soon as it has written a checkpoint."""

    def __init__(self, folder: Path, count: int) -> None:
        super().__init__(daemon=True)
        self.left, self.killed = [folder / str(n + 1) for n in range(count)], 0
        self.start()

    def run(self) -> None:
        while self.left:
            time.sleep(0.005)
            for run in [run for run in self.left if list(run.glob("checkpoints/0*"))]:
                os.kill(json.loads((run / ".lock").read_text())["process"], signal.SIGKILL)
                self.left.remove(run)
                self.killed += 1


@needs_ray
def test_trainings_through_ray_are_those_of_one_process_each_though_workers_are_killed(ray, tmp_path, capsys):
    """A worker is killed in each training, when its first checkpoint has been written."""
    flags, many = [*SMALL, "--checkpoint-every", "1"], ["--trainings", "2", "--ray", "--threads", "1"]
    for n in "12":
        main(["train", "smoke", *flags, "--rng-seed", n, "--run-dir", str(tmp_path / "plain" / n)])
    killer = Killer(tmp_path / "killed", 2)
    main(["train", "smoke", *flags, *many, "--run-dir", str(tmp_path / "killed")])
    assert killer.killed == 2
    assert capsys.readouterr().err.count("WorkerCrashedError") == 2
    for n in "12":
        same_runs(tmp_path / "plain" / n, tmp_path / "killed" / n)


@needs_ray
@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")
def test_a_second_driver_on_a_run_folder_is_refused_before_ray_is_asked(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("esper.cli.ray_train.connect", lambda cpus, address: pytest.fail("Ray is asked"))
    run = small_run(tmp_path, tmp_path / "copy")
    (run / "controller.safetensors").unlink()
    with RunFolder(run).alone(), pytest.raises(SystemExit):
        main(["resume", str(run), "--ray"])
    assert capsys.readouterr().err.startswith(f"esper: {run} is being written by process {os.getpid()}")


class Loss(threading.Thread):
    """Takes a machine from a cluster in the middle of a run, and asks the run to stop once it goes on without it."""

    def __init__(self, cluster, machine, folder: Path) -> None:
        super().__init__(daemon=True)
        self.cluster, self.machine, self.folder = cluster, machine, RunFolder(folder)
        self.start()

    def run(self) -> None:
        while not self.folder.checkpoints():
            time.sleep(0.01)
        first = self.writer()
        self.cluster.remove_node(self.machine)
        while self.writer() in (None, first) or not self.folder.checkpoints():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    def writer(self) -> int | None:
        try:
            return json.loads((self.folder.path / ".lock").read_text())["process"]
        except ValueError:
            return None


@needs_ray
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")
def test_a_run_that_loses_a_machine_goes_on_with_fewer_workers_and_stops_when_it_is_asked_to(
    cluster, ray, tmp_path, monkeypatch, capsys
):
    """Fewer workers begin once Ray has given up waiting for as many as before."""
    monkeypatch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "3")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder, machine = tmp_path / "run", cluster.add_node(num_cpus=1, object_store_memory=OBJECTS)
    Loss(cluster, machine, folder)
    flags = [*FLEETS, "--learn.updates", "30", "--exam", "0", "--checkpoint-every", "2", "--run-dir", str(folder)]
    main(["train", "smoke_workers", *flags, "--ray", "--workers", "3", "--least", "1", "--failures", "1"])
    assert ray.cluster_resources()["CPU"] == 2
    run, said = RunFolder(folder), capsys.readouterr()
    made = len(run.reports())
    assert f"stopped after update {made}: go on with `esper resume {folder}`" in said.out
    assert said.err.count("stopping after this update") == 1
    assert int(run.checkpoints()[-1].stem) == made < 30
    with pytest.warns(UserWarning, match="begun with 3 workers, gone on with 1"):
        main(["resume", str(folder), "--workers", "1"])
    assert [report.update for report in run.reports()] == list(range(30))


@needs_ray
def test_an_exam_through_ray_is_that_of_one_process(ray, tmp_path, capsys):
    run = small_run(tmp_path, tmp_path / "plain")
    shutil.copytree(run, tmp_path / "ray")
    flags = ["--hosts", "2", "--rates", "1", "--tuned-on", "2", "--plans", "0", "--no-thorough"]
    main(["exam", str(run), *flags])
    main(["exam", str(tmp_path / "ray"), *flags, "--ray", "--threads", "1"])
    plain, through = ([replace(e, held="") for e in timeless_exams(tmp_path / name)] for name in ("plain", "ray"))
    assert through == plain
    assert (tmp_path / "ray/lives.jsonl").read_bytes() == (tmp_path / "plain/lives.jsonl").read_bytes()
    assert "arm heuristic: done" in capsys.readouterr().err


@needs_ray
def test_ray_tune_stops_trials_and_tells_the_numbers_of_local_ones(ray, tmp_path, monkeypatch):
    """A search that is called again trains nothing again, and lets no trial go on that was stopped."""
    monkeypatch.setattr(Many, "executor", lambda self, count, device: Here())
    command = ["tune", "smoke", "--over", "learn.ppo.lr=1e-4,1e-2", *SMALL, "--learn.updates", "4", "--first", "2"]
    command += ["--factor", "2", "--run-dir"]
    address = ray.get_runtime_context().gcs_address
    through_ray = [str(tmp_path / "ray"), "--ray", "--address", address, "--at-once", "2", "--threads", "1"]

    def searched() -> dict[int, dict[str, float]]:
        code = "import sys; from esper.cli import main; main(sys.argv[1:])"
        done = subprocess.run([sys.executable, "-c", code, *command, *through_ray], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return {t["trial"]: t["j"] for t in json.loads((tmp_path / "ray/tune.json").read_text())["trials"]}

    found = searched()
    assert {"2"} <= found[1].keys() & found[2].keys()
    assert {"4"} <= found[1].keys() | found[2].keys()
    assert all((tmp_path / "ray" / str(n) / "ended").exists() for n in found)
    assert not (tmp_path / "ray/.ray").exists()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "ray").glob("*/*.jsonl")}
    assert searched() == found
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "ray").glob("*/*.jsonl")} == before
    main([*command, str(tmp_path / "local")])
    for trial in json.loads((tmp_path / "local/tune.json").read_text())["trials"]:
        other = found[trial["trial"]]
        assert [(rung, j) for rung, j in trial["j"].items() if rung in other] == [
            (rung, j) for rung, j in other.items() if rung in trial["j"]
        ]
