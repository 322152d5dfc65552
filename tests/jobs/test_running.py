"""Jobs are done once each, in order, whoever is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from esper.jobs import Ending, Job, run_jobs
from esper.jobs.processes import Processes
from esper.jobs.running import ATTEMPTS
from esper.leyline.errors import EsperError
from jobs_toys import TESTS, begun, job


@pytest.fixture(autouse=True)
def toys_are_found(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", TESTS, prepend=os.pathsep)


def names(jobs: list[Job], workers, **told) -> list[str]:
    return [done.name for done in run_jobs(jobs, workers, **told)]


def test_jobs_are_done_once_each_with_their_threads_where_the_driver_is(tmp_path):
    jobs = [job(tmp_path, name) for name in "abc"]
    assert sorted(names(jobs, Processes(2, threads=3))) == ["a", "b", "c"]
    assert {done.done.read_text() for done in jobs} == {f"{os.getcwd()} 3 None"}
    assert names(jobs, Processes(2)) == ["a", "b", "c"], "those of an earlier call come first"
    assert sorted(begun(tmp_path)) == ["a", "b", "c"]
    assert (tmp_path / "a.log").read_text() == "a begins\n"


def test_processes_share_the_gpus_in_turn_and_begin_afresh_for_every_job(tmp_path):
    jobs = [job(tmp_path, name, seconds=0.3) for name in "abcd"]
    workers = Processes(3, gpus=["4", "GPU-7"])
    names(jobs, workers)
    told = [one.done.read_text().split()[-1] for one in jobs]
    assert told[:3] == ["4", "GPU-7", "4"]
    assert told[3] in ("4", "GPU-7")


def test_a_job_begins_after_those_that_it_names(tmp_path):
    jobs = [job(tmp_path, "c", after=("a", "b")), job(tmp_path, "b", after=("a",)), job(tmp_path, "a", seconds=0.3)]
    assert names(jobs, Processes(3)) == ["a", "b", "c"]
    assert begun(tmp_path) == ["a", "b", "c"]


def test_jobs_that_cannot_be_told_apart_or_wait_for_nobody_are_refused_before_anything_begins(tmp_path):
    with pytest.raises(EsperError, match="2 jobs are called 'a': give every job a different name"):
        names([job(tmp_path, "a"), job(tmp_path, "a")], Processes(1))
    with pytest.raises(EsperError, match="job 'a' comes after 'b', which is no job"):
        names([job(tmp_path, "a", after=("b",))], Processes(1))
    assert begun(tmp_path) == []


def test_a_killed_worker_is_replaced_and_its_job_done_again(tmp_path):
    said = []
    jobs = [job(tmp_path, "a", "die"), job(tmp_path, "b")]
    assert sorted(names(jobs, Processes(1), tell=lambda job, what: said.append(f"{job.name} {what}"))) == ["a", "b"]
    assert begun(tmp_path) == ["a", "a", "b"]
    assert "a its process was ended by SIGKILL; it goes on where it was" in said
    assert (tmp_path / "a.log").read_text().splitlines() == ["a begins", "deep in a"] * 2


def test_a_job_whose_workers_are_always_killed_fails_in_the_end(tmp_path):
    jobs = [job(tmp_path, "a", "die", times=99), job(tmp_path, "b")]
    with pytest.raises(EsperError, match=r"1 of 2 jobs are not done.*'a': its process was ended by SIGKILL;"):
        names(jobs, Processes(1))
    assert begun(tmp_path) == ["a"] * ATTEMPTS + ["b"]


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("refuse", "lr must be positive, not −1"),
        ("blunder", "ZeroDivisionError: no hosts"),
        ("forget", "stopped before the end"),
    ],
)
def test_a_job_that_fails_is_not_tried_again_and_its_successors_are_not_begun(function, why, tmp_path):
    jobs = [job(tmp_path, "a", function), job(tmp_path, "b", after=("a",)), job(tmp_path, "c")]
    with pytest.raises(EsperError, match=f"2 of 3 jobs are not done; the first to fail was 'a': {why}; its log says"):
        names(jobs, Processes(1))
    assert begun(tmp_path) == ["a", "c"]
    assert (tmp_path / "c/done").exists()
    if function == "blunder":
        assert "Traceback" in (tmp_path / "a.log").read_text()


def test_two_attempts_at_a_job_at_the_same_time_are_one(tmp_path):
    """Of a driver that was killed, a worker may still be about to end."""
    one = job(tmp_path, "a", seconds=1.0)
    first = Processes(1)
    first.start(one)
    while not begun(tmp_path):
        time.sleep(0.02)
    assert names([one], Processes(1)) == ["a"]
    assert first.ended(5.0) == [Ending(one)]
    first.close()
    assert begun(tmp_path) == ["a"]


def test_what_is_done_is_interrupted_when_it_is_to_stop_and_nothing_else_begins(tmp_path):
    jobs = [job(tmp_path, "a", seconds=20.0), job(tmp_path, "b"), job(tmp_path, "c", after=("b",))]
    assert "a" not in names(jobs, Processes(2), stop=lambda: jobs[1].is_done)
    assert "c" not in begun(tmp_path)


DRIVER = """
import json, sys
from esper.jobs import Job, run_jobs
from esper.jobs.processes import Processes
print([job.name for job in run_jobs([Job.revived(plain) for plain in json.loads(sys.argv[1])], Processes(2))])
"""


def test_workers_end_with_a_driver_that_is_killed(tmp_path):
    jobs = [job(tmp_path, name, seconds=60.0) for name in "ab"]
    asked = json.dumps([one.plain() for one in jobs])
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, asked])
    while len(begun(tmp_path)) < 2:
        time.sleep(0.02)
        assert driver.poll() is None
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    again = [job(tmp_path, name) for name in "ab"]
    assert sorted(names(again, Processes(2))) == ["a", "b"], "their locks are free"
    assert sorted(begun(tmp_path)) == ["a", "a", "b", "b"]


def test_a_job_survives_json(tmp_path):
    one = job(Path(tmp_path), "a", after=("b",), seconds=1.5)
    assert Job.revived(json.loads(json.dumps(one.plain()))) == one
