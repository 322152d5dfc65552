"""Exams in parts: the verdicts of one process, whoever is killed and however many play."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from esper.cli import main
from esper.cli.exam_parts import Question, begun, held_in_parts, without_flags
from esper.cli.many import Many
from esper.exam.files import read_plan
from esper.exam.holding import held_one_by_one
from esper.exam.parts import Part
from esper.exam.records import Background, ExamReport
from esper.leyline.errors import EsperError
from esper.leyline.json_records import jsonable
from esper.tamiyo import Controller, load_controller, save_controller
from esper.tamiyo.policies import LearnedPolicy
from esper.telemetry.lock import holder_of
from esper.tolaria import EnvConfig
from jobs_toys import Here
from small_exams import SMALL, smoke
from telemetry_toys import small_run, timeless_exams

ON_A_BUDGET = replace(smoke().fleets[0], sizes=((4, 4), (6, 6)), env=EnvConfig(budget=3.0, rng_seed=3))
BACKGROUND = Background(settings=2, held="here")
MANY = Many(at_once=2, threads=1)
KILLED = ["--hosts", "2", "--rates", "0.5", "1", "--tuned-on", "2", "--plans", "0", "--no-thorough"]


@pytest.fixture
def question(tmp_path) -> Question:
    """Two trainings and a plan, on spirals and on a budget of compute."""
    asked = smoke()
    for seed in (1, 2):
        save_controller(tmp_path / f"{seed}.safetensors", Controller(asked.controller, seed))
    (tmp_path / "mine.json").write_text('[{"decision": 0, "op": "GERMINATE", "slot": "s0"}]')
    return Question(
        recipe=asked,
        fleets=(asked.fleets[0], ON_A_BUDGET),
        config=replace(SMALL, rates=(0.5, 1.0)),
        controllers=(tmp_path / "1.safetensors", tmp_path / "2.safetensors"),
        plans=(tmp_path / "mine.json",),
    )


@pytest.fixture
def here(monkeypatch) -> list[Here]:
    """What plays the parts, call by call: this process; its first call ends after 4 parts, its second after 5 more."""
    used: list[Here] = []

    def executor(self: Many, count: int, device: str) -> Here:
        used.append(Here((4, 5, 10**6)[min(len(used), 2)]))
        return used[-1]

    monkeypatch.setattr(Many, "executor", executor)
    monkeypatch.setattr("esper.recipes.config.gc.collect", lambda: 0)  # once for every part, and slow among many tests
    return used


def timeless(report: ExamReport) -> ExamReport:
    return replace(report, arms=tuple(replace(arm, seconds=0.0) for arm in report.arms))


def equal_in_parts(question: Question, here: list[Here], folder: Path) -> set[str]:
    """Hold an exam in parts, interrupted twice, and in one process; return the names of its arms."""
    found = []
    for _ in range(3):
        found.clear()
        with suppress(InterruptedError):
            found += held_in_parts(question, BACKGROUND, folder, MANY)
    played = [name for workers in here for name in workers.begun]
    assert len(here) == 3
    assert len(played) == len({*played}), "what has been played is not played again"
    policies = [LearnedPolicy(load_controller(path)) for path in question.controllers]
    guests = [read_plan(path) for path in question.plans]
    asked = question.recipe, policies, question.config, guests, question.fleets
    ((report, lives),), ((known, others),) = found, held_one_by_one(*asked, background=BACKGROUND)
    assert timeless(report) == timeless(known)
    assert [jsonable(asdict(life)) for life in lives] == [jsonable(asdict(life)) for life in others]
    return {*report.by_name}


def test_an_exam_in_parts_is_that_of_one_process_to_the_bit_though_it_is_interrupted_twice(question, here, tmp_path):
    arms = equal_in_parts(replace(question, fleets=question.fleets[:1]), here, tmp_path / "parts")
    assert {"gradient", "longer", "static, longer", "replay", "best plan", "grid oracle", "mine"} <= arms


def test_on_a_budget_an_exam_in_parts_is_that_of_one_process_to_the_bit(question, here, tmp_path):
    config = replace(question.config, thorough=False, plans=0, hosts=2)
    asked = replace(question, fleets=question.fleets[1:], config=config, controllers=question.controllers[:1])
    arms = equal_in_parts(asked, here, tmp_path / "parts")
    assert {"fixed 2 × 4", "fixed 2 × 6", "hindsight", "sweep", "mine"} <= arms


def test_what_depends_on_others_comes_after_them(question, tmp_path):
    parts = {part.name: part for part in question.setting(0, tmp_path).parts}
    assert parts["rates"].after == ("plan best plan", "plan grid oracle")
    assert parts["arm never"].after == ("rates",)
    assert parts["arm learned"].after == ()
    assert parts["arm longer"].after == ("arm learned", "arm never")
    assert parts["arm static, longer"].after == ("arm learned", "arm static")
    one_rate = replace(question, config=replace(question.config, rates=(1.0,)))
    names = {part.name: part for part in one_rate.setting(1, tmp_path).parts}
    assert "rates" not in names, "nothing is chosen"
    assert names["arm never"].after == ("plan best plan",)
    assert names["arm hindsight"].after == ("arm learned", "arm fixed 2 × 4", "arm fixed 2 × 6", "sizes")


def test_no_two_parts_have_the_same_file(question, tmp_path):
    for n in range(2):
        paths = [part.path(tmp_path) for part in question.setting(n, tmp_path).parts]
        assert len({*paths}) == len(paths)
    assert Part("arm", "static").path(tmp_path) != Part("arm", "static, longer").path(tmp_path)


def test_an_arm_that_cannot_take_part_is_refused_before_anything_is_played(question, here, tmp_path):
    (tmp_path / "mine.json").write_text('[{"decision": 0, "op": "GERMINATE", "slot": "s9"}]')
    with pytest.raises(EsperError, match="unknown choice of head slot 's9'"):
        list(held_in_parts(question, BACKGROUND, tmp_path / "parts", MANY))
    assert not here
    assert not (tmp_path / "parts").exists()


def test_a_question_survives_json(question):
    assert Question.revived(json.loads(json.dumps(question.plain()))) == question


def test_an_exam_that_goes_on_was_held_when_it_began(question, tmp_path):
    assert begun(tmp_path / "parts", question, BACKGROUND) == BACKGROUND
    assert begun(tmp_path / "parts", question, replace(BACKGROUND, held="elsewhere")) == BACKGROUND


def test_how_an_exam_is_shared_out_is_no_part_of_the_question():
    given = ["exam", "runs/a", "--at-once", "3", "--threads=1", "--ray", "--address", "x:1", "--hosts", "2"]
    assert without_flags(given) == ["exam", "runs/a", "--hosts", "2"]
    assert without_flags(["exam", "--at_once=3", "runs/a"]) == ["exam", "runs/a"]


def test_threads_of_one_process_are_refused(capsys):
    with pytest.raises(SystemExit):
        main(["exam", "--quick", "--threads", "2"])
    assert "--threads is for many jobs: add --at-once" in capsys.readouterr().err


def locks_of(folder: Path) -> list[int]:
    """The processes that play parts."""
    held = [holder_of(lock) or "" for lock in folder.glob("parts/*/*/.*.lock")]
    return [int(found[1]) for text in held if (found := re.match(r"process (\d+) on", text))]


def test_an_exam_whose_driver_and_whose_worker_are_killed_ends_like_that_of_one_process(tmp_path, capsys):
    run = small_run(tmp_path, tmp_path / "run")
    for name in ("plain", "killed"):
        shutil.copytree(run, tmp_path / name)
    main(["exam", str(tmp_path / "plain"), *KILLED])
    command = ["exam", str(tmp_path / "killed"), *KILLED, "--at-once", "2", "--threads", "1"]
    code = "import sys; from esper.cli import main; main(sys.argv[1:])"
    for by in ("driver", "worker"):
        driver = subprocess.Popen([sys.executable, "-c", code, *command], stderr=subprocess.PIPE, text=True)
        while not locks_of(tmp_path / "killed"):
            time.sleep(0.005)
            assert driver.poll() is None, driver.communicate()
        victim = driver.pid if by == "driver" else locks_of(tmp_path / "killed")[0]
        subprocess.run(["kill", f"-{signal.SIGKILL.value}", str(victim)], check=True)
        said = driver.communicate()[1]
        assert (driver.returncode, "SIGKILL; it goes on" in said) == ((-9, False) if by == "driver" else (0, True))
    killed, plain = ([replace(e, held="") for e in timeless_exams(tmp_path / name)] for name in ("killed", "plain"))
    assert killed == plain
    assert (tmp_path / "killed/lives.jsonl").read_bytes() == (tmp_path / "plain/lives.jsonl").read_bytes()
    assert (tmp_path / "killed/exams.jsonl").read_text().count("\n") == 1
    assert not (tmp_path / "killed/parts").exists()


def test_a_final_exam_is_logged_once_even_if_it_is_stored_again(tmp_path):
    from esper.telemetry import RunFolder
    from telemetry_toys import arm, exam, life

    folder = RunFolder.create(tmp_path / "run", {}, {})
    held = replace(exam(arm("learned"), arm("never", 0.1, 0.0, 0.2)), held="on Monday")
    for report in (held, held, replace(held, held="on Tuesday")):
        folder.keep_exam([report], [life("WAIT")], ["run"])
    assert (folder.path / "exams.jsonl").read_text().count("\n") == 2
