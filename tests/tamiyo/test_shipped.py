"""The controller that ships with Esper, its config, its command and its exams."""

from dataclasses import replace

import torch

import esper
from esper.recipes import recipe
from esper.recipes.config import Recipe
from esper.recipes.suite import HELD_OUT, setting
from esper.simic.evaluation import evaluate
from esper.tamiyo.controller_files import SHIPPED, load_controller
from esper.tamiyo.policies import LearnedPolicy
from esper.telemetry.folder import RunFolder
from small_fleets import make_env

FOLDER = RunFolder(SHIPPED)


def test_it_loads_acts_and_is_small():
    controller = esper.load_controller()
    again = esper.load_controller(FOLDER.controller_path).state_dict()
    assert all(torch.equal(x, again[name]) for name, x in controller.state_dict().items())
    assert all(x.isfinite().all() for x in again.values())
    outcome = evaluate(make_env("cnn1d", 4, episode=4), LearnedPolicy(controller), rent=0.02)
    assert outcome.objective.isfinite().all()
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) < 1.3e6


def test_its_config_is_the_last_stage_of_general():
    """It was trained by a chain of four recipes, which are the stages of `general`; docs/provenance.md has them."""
    shipped, last = Recipe.revived(FOLDER.config()), recipe("general").seeded(1).stages[-1]
    for name in ("name", "fleets", "controller"):
        assert getattr(shipped, name) == getattr(last, name)
    assert replace(shipped.learn, bounds=last.learn.bounds) == last.learn, "but for what counts as an anomaly"
    assert f"--rng-seed {last.learn.rng_seed}" in FOLDER.environment()["command"]
    assert len(FOLDER.environment()["git"]) == 40, "the commit at which the command holds"
    assert load_controller().config == last.controller
    assert FOLDER.start()["decisions"] > 1e6, "the cost of all stages"


def test_nothing_that_is_held_out_was_learned_from():
    fleets = Recipe.revived(FOLDER.config()).learned_from
    assert {fleet.task for fleet in fleets}.isdisjoint({setting(name).task for name in HELD_OUT} | {"text", "images"})
    assert "transformer" not in {fleet.host for fleet in fleets}


def test_its_exams_are_final_and_of_five_trainings():
    exams = FOLDER.exams()
    assert {(exam.data, exam.trainings) for exam in exams} == {("test", 5)}
    assert all(exam.hosts >= 30 for exam in exams)
    assert any("task" in exam.unseen for exam in exams)
    assert all(exam.decisions for exam in exams), "what the trainings took"
