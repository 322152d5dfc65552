"""The protocol of an exam: the same chances for everyone, told as they were taken."""

import io
import math
from dataclasses import replace

import pytest
from rich.console import Console

from esper.cli.console import show_exam
from esper.dashboard.exam_text import about
from esper.exam.arms import Arm
from esper.exam.config import QUICK
from esper.exam.holding import held_one_by_one, hold_exam
from esper.exam.records import Background
from esper.leyline.errors import EsperError
from esper.recipes.suite import setting
from esper.tamiyo import Controller
from esper.tamiyo.policies import FixedPlan, Heuristic, LearnedPolicy, Never, PlanStep
from small_exams import AT_ONE_RATE, SMALL, smoke


def everyone():
    """An exam with two trainings and two guests."""
    asked = smoke()
    trainings = [LearnedPolicy(Controller(asked.controller, seed)) for seed in (1, 2)]
    guest = FixedPlan([PlanStep(0, {"op": "GERMINATE", "slot": "s0"})], name="mine")
    return asked, trainings, SMALL, [guest, FixedPlan([], name="idle")]


class Asked(dict):
    """Choices, and what was asked for."""

    def __init__(self, *given):
        super().__init__(*given)
        self.asked = []

    def get(self, purpose, default=None):
        self.asked.append(purpose)
        return super().get(purpose, default)


@pytest.fixture(scope="module")
def chosen():
    """What the exam below chooses, purpose by purpose."""
    return {}


@pytest.fixture(scope="module")
def held(chosen):
    ((report, lives),) = held_one_by_one(*everyone(), choices=chosen)
    return report, lives


def test_everyone_is_there(held):
    report, lives = held
    names = [arm.name for arm in report.arms]
    rules = ["never", "random", "heuristic", "schedule", "plateau", "gap", "gradient", "least gradient", "oversized"]
    assert names == [
        "learned",
        *rules,
        "best plan",
        "grid oracle",
        "mine",
        "idle",
        "longer",
        "static",
        "static, longer",
        "replay",
    ]
    assert report.trainings == 2
    assert [len(arm.scores) for arm in report.arms if arm.name in ("learned", "never", "static")] == [6, 3, 6]
    assert [life.arm for life in lives].count("learned") == 1, "of several trainings, the first is told"
    assert {life.host for life in lives} == {0}
    assert report.data == "test"


def test_a_guest_with_a_name_that_is_taken_is_refused_before_anything_is_played():
    asked, said = smoke(), []
    for guest in (Never(), FixedPlan([], name="static"), FixedPlan([], name="best plan")):
        with pytest.raises(EsperError, match=f"2 arms are called '{guest.name}'"):
            list(
                held_one_by_one(
                    asked, [LearnedPolicy(Controller(asked.controller, 1))], SMALL, [guest], tell=said.append
                )
            )
    assert said == []


def test_an_exam_that_is_interrupted_goes_on_with_what_it_has_chosen_and_comes_out_the_same(held, chosen):
    """Here with all but the last two of its choices: two plans, and rates of rivals, ours, longer and twice static."""
    kept = Asked(list(chosen.items())[:-2])
    ((report, _),) = held_one_by_one(*everyone(), choices=kept)
    assert len(kept.asked) == 7
    assert kept.asked == list(chosen), "each is asked for once, in order"
    assert kept == chosen
    for mine, theirs in zip(report.arms, held[0].arms, strict=True):
        assert replace(mine, seconds=0.0) == replace(theirs, seconds=0.0)


def test_two_fleets_that_look_alike_choose_each_for_itself():
    asked = smoke()
    (fleet,) = asked.fleets
    twice = replace(asked, fleets=(fleet, replace(fleet, options={"examples": 100})))
    config, choices = replace(SMALL, hosts=2, thorough=False, plans=0), Asked()
    assert len(list(held_one_by_one(twice, [FixedPlan([], name="idle")], config, choices=choices))) == 2
    assert len(choices.asked) == len(choices) == 4


def test_a_preliminary_exam_touches_neither_final_hosts_nor_test_data():
    asked = smoke()
    (report,), _ = hold_exam(asked, [LearnedPolicy(Controller(asked.controller, 1))], replace(QUICK, hosts=3))
    assert report.data == "validation"
    assert [arm.name for arm in report.arms] == ["learned", "never", "random", "heuristic"]
    with pytest.raises(EsperError, match="thorough exams must be final"):
        replace(SMALL, final=False)


def test_arms_that_do_the_same_have_the_same_hosts(held):
    report, _ = held
    never, idle = (next(arm for arm in report.arms if arm.name == name) for name in ("never", "idle"))
    assert idle.scores == never.scores
    assert idle.difference == never.difference


def test_who_trains_longer_spends_as_much_and_no_more(held):
    report, _ = held
    arms = {arm.name: arm for arm in report.arms}
    ours = arms["learned"].flops
    for name in ("longer", "static, longer"):
        arm = arms[name]
        assert abs(arm.flops - ours) <= 0.501 * arm.flops / arm.episode, "to the nearest epoch"
    assert arms["longer"].growth == 0
    assert arms["longer"].episode > arms["never"].episode == 4


def test_a_search_says_what_it_took(held):
    report, _ = held
    arms = {arm.name: arm for arm in report.arms}
    assert arms["best plan"].searched == 3 * 3
    assert arms["grid oracle"].searched > 3 * 3
    assert arms["heuristic"].searched == 0
    assert "GERMINATE s" in arms["grid oracle"].plan
    assert (
        f"grid oracle was chosen by a search over {arms['grid oracle'].searched} episodes ({arms['grid oracle'].plan})."
        in about(report)
    )


def test_everyone_has_a_learning_rate_of_the_same_grid(held):
    report, _ = held
    assert {arm.lr for arm in report.arms} <= set(_grid())
    arms = {arm.name: arm for arm in report.arms}
    assert arms["replay"].lr == arms["learned"].lr, "what was done was done at that rate"


def test_who_would_rather_learn_outside_of_the_grid_is_named(held):
    report, _ = held
    assert report.at_the_edge == tuple(arm.name for arm in report.arms if arm.lr != _grid()[1])
    assert ", ".join(report.at_the_edge) in about(report)
    assert "to an end of the grid" in exam_text(report)
    assert "to an end of the grid" not in exam_text(replace(report, at_the_edge=()))


def exam_text(report):
    console = Console(width=200, file=io.StringIO())
    show_exam(report, console)
    return console.file.getvalue()


def _grid():
    return [rate * smoke().fleets[0].train.lr for rate in SMALL.rates]


def test_where_a_task_has_a_teacher_its_size_is_the_measure():
    fleet = setting("planted")
    fleet = replace(fleet, options={"examples": 200}, env=replace(fleet.env, episode=3, group=1))
    asked = replace(smoke(), fleets=(fleet,))
    config = replace(AT_ONE_RATE, plans=0, hosts=2)
    (report,), _ = hold_exam(asked, [LearnedPolicy(Controller(asked.controller, 1))], config)
    arms = {arm.name: arm for arm in report.arms}
    right, never = arms["right size"], arms["never"]
    assert report.right_size is not None
    assert right.params == pytest.approx(report.right_size), "a host of the teacher's shape has the teacher's size"
    assert right.excess == pytest.approx(0, abs=1e-3)
    assert right.regret == 0
    assert never.excess == pytest.approx(never.params - report.right_size)
    assert never.regret == pytest.approx(right.j - never.j)
    bare = never.params
    assert right.j == pytest.approx(right.mean - 0.02 * math.log(report.right_size / bare), abs=1e-6)
    assert [arm.name for arm in report.arms if not arm.paired] == ["replay", "right size"], "they have other hosts"
    longer, cost = arms["longer"], arms["learned"].flops
    assert longer.episode == round(3 * cost / never.flops) > 3
    assert longer.flops == pytest.approx(longer.episode * never.flops / 3), "and is trained for as long"
    assert f"The teacher has {report.right_size:.0f} parameters, hosts of learned end with" in about(report)


def test_an_arm_of_ones_own_is_one_row():
    """A policy under another name, and an arm that trains what the heuristic grows for twice as long."""
    twice = Arm(
        name="heuristic, twice as long",
        does="takes its time",
        play=lambda sitting, played: sitting.play(
            "heuristic, twice as long",
            [Heuristic()],
            played.others["heuristic"].lr,
            episode=2 * played.others["heuristic"].episode,
        ),
        needs=("heuristic",),
    )
    mine = Arm(name="mine", does="never grows", policy=lambda sitting: Never())
    (report,), lives = hold_exam(smoke(), [FixedPlan([], name="idle")], replace(QUICK, hosts=3), [twice, mine])
    arms = report.by_name
    assert list(arms) == ["idle", "never", "random", "heuristic", "mine", "heuristic, twice as long"]
    assert arms["mine"].scores == arms["never"].scores
    assert "mine" in {life.arm for life in lives}, "its lives are told under its own name"
    assert arms["heuristic, twice as long"].episode == 2 * arms["heuristic"].episode
    assert arms["heuristic, twice as long"].flops > 1.5 * arms["heuristic"].flops


def test_on_a_budget_all_arms_spend_the_same():
    """To the step of the dearest host, which is a fifth of this budget."""
    asked = smoke()
    (fleet,) = asked.fleets
    asked = replace(asked, fleets=(replace(fleet, env=replace(fleet.env, budget=6)),))
    (report,), _ = hold_exam(asked, [FixedPlan([], name="idle")], replace(AT_ONE_RATE, plans=0))
    never = report.by_name["never"]
    assert report.episode == never.episode == 6
    assert {arm.name for arm in report.arms} >= {"static", "replay", "oversized"}
    for arm in report.arms:
        assert arm.flops == pytest.approx(never.flops, rel=0.2), arm.name
    assert report.by_name["idle"].flops == never.flops


def test_what_an_exam_cannot_know_is_told_to_it():
    background = Background(settings=2, lives=3, decisions=4, seconds=5.0, held="here")
    policies = [FixedPlan([], name="idle")]
    ((report, _),) = held_one_by_one(smoke(), policies, replace(QUICK, hosts=2), background=background)
    assert (report.settings, report.lives, report.decisions, report.seconds, report.held) == (2, 3, 4, 5.0, "here")
    assert report.variant == "examples 200"
