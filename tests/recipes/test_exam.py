"""The protocol of an exam: fresh hosts for everything that is chosen, the same chances for everyone."""

import io
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console

from esper.cli.console import show_exam
from esper.leyline.actions import Head, Op
from esper.leyline.errors import EsperError
from esper.leyline.state import NO_BLUEPRINT
from esper.recipes import recipe
from esper.recipes.config import Band, Places
from esper.recipes.exam import QUICK, ExamConfig, Room, _as_long, at_the_edge, held_one_by_one, hold_exam
from esper.recipes.suite import HELD_OUT, SUITE, setting, settings
from esper.recipes.suite import chosen as chosen_settings
from esper.simic import RentSchedule
from esper.simic.evaluation import Outcome, evaluate
from esper.simic.exam import Arm, ArmRun, run_arm
from esper.simic.search import compare, random_plans
from esper.tamiyo import Controller
from esper.tamiyo.policies import (
    FixedPlan,
    Heuristic,
    LearnedPolicy,
    Never,
    Oversized,
    PlanStep,
    RandomLegal,
    SideBySide,
)
from esper.tasks import load_test
from esper.tolaria import Engine

SMALL = ExamConfig(hosts=3, rates=(0.1, 1.0, 2.0), tuned_on=2, plans=3, recorded=1)
AT_ONE_RATE = replace(SMALL, rates=(1.0,))


def smoke():
    plain = recipe("smoke")
    (fleet,) = plain.fleets
    train = replace(fleet.train, lr=1e-2)
    small = replace(fleet, options={"examples": 200}, train=train, env=replace(fleet.env, episode=4, rng_seed=7))
    return replace(plain, fleets=(small,))


def room(config=SMALL, **changes):
    asked = replace(smoke(), **changes)
    return Room(asked, asked.fleets[0], config)


def everyone():
    """An exam with two trainings and two guests."""
    asked = smoke()
    trainings = [LearnedPolicy(Controller(asked.controller, seed)) for seed in (1, 2)]
    guest = FixedPlan([PlanStep(0, {"op": "GERMINATE", "slot": "s0"})], name="mine")
    return asked, trainings, SMALL, [guest, FixedPlan([], name="idle")]


@pytest.fixture(scope="module")
def chosen():
    """What the exam below chooses, purpose by purpose."""
    return {}


@pytest.fixture(scope="module")
def held(chosen):
    def once(purpose, choose):
        assert purpose not in chosen
        chosen[purpose] = choose()
        return chosen[purpose]

    ((report, lives),) = held_one_by_one(*everyone(), once=once)
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


def test_whoever_sat_in_the_same_places_before_leaves_no_trace():
    both, tame = [RandomLegal(), Heuristic()], [Heuristic()]
    after, alone = room(AT_ONE_RATE).arm(both, 1e-2).runs[1], room(AT_ONE_RATE).arm(tame, 1e-2).runs[0]
    used = room(AT_ONE_RATE)
    grown = used.static("static", Arm("both", used.arm(both, 1e-2).runs, 4, 1e-2), list, 4).runs[1]
    afresh = room(AT_ONE_RATE).static("static", Arm("one", [alone], 4, 1e-2), list, 4).runs[0]
    assert (alone.outcome.growth > 0).any()
    for mine, theirs in ((after, alone), (grown, afresh)):
        assert all(torch.equal(a, b) for a, b in zip(mine.outcome, theirs.outcome, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(mine.topology, theirs.topology, strict=True))


def test_an_exam_that_is_interrupted_goes_on_with_what_it_has_chosen_and_comes_out_the_same(held, chosen):
    """Here with all but the last two of its choices: two plans, and rates of rivals, ours, longer and twice static."""
    kept, asked = dict(list(chosen.items())[:-2]), []

    def once(purpose, choose):
        asked.append(purpose)
        return kept[purpose] if purpose in kept else choose()

    ((report, _),) = held_one_by_one(*everyone(), once=once)
    assert len(asked) == 7
    assert asked == list(chosen), "each is asked for once, in order"
    for mine, theirs in zip(report.arms, held[0].arms, strict=True):
        assert replace(mine, seconds=0.0) == replace(theirs, seconds=0.0)


def test_two_fleets_that_look_alike_choose_each_for_itself():
    asked, purposes = smoke(), []
    (fleet,) = asked.fleets
    twice = replace(asked, fleets=(fleet, replace(fleet, options={"examples": 100})))
    config = replace(SMALL, hosts=2, thorough=False, plans=0)

    def once(purpose, choose):
        purposes.append(purpose)
        return choose()

    assert len(list(held_one_by_one(twice, [FixedPlan([], name="idle")], config, once=once))) == 2
    assert len(purposes) == len(set(purposes)) == 4


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


def test_equal_operations_to_the_nearest_epoch():
    """Eight epochs of an arm's hosts cost 20 in the mean."""
    nothing = torch.zeros(2)
    outcome = Outcome(nothing, nothing, nothing, nothing, torch.tensor([10.0, 30.0]), nothing)
    arm = Arm("never", [ArmRun(outcome, [], [], room().example.fleet.state, 0.0)], 8, 0.01)
    assert [_as_long(arm, cost) for cost in (20, 50, 51.2, 51.3, 0.1)] == [8, 20, 20, 21, 1]


def test_no_choice_is_made_on_hosts_that_count():
    """Rates and plans are tried, and topologies grown, on hosts that are for this alone; each training's on its own."""
    one, rates = room(), (1e-3, 1e-2)
    one.grid = list(rates)
    rules, band = [Never(), Heuristic()], Band.TUNE + 1
    by_hand = [
        [evaluate(one.env(2, 1, band, [rate]), rule, one.rent, 0).objective.mean().item() for rate in rates]
        for rule in rules
    ]
    assert one.tried(rules, 2, training=1) == by_hand
    grown = one.grown([Never(), Heuristic()], 1e-2)[1]
    alone = run_arm(one.env(one.shared_by(2), 1, band, [1e-2]), Heuristic(), one.rent)
    assert (alone.topology.blueprint != NO_BLUEPRINT).any()
    assert all(torch.equal(a, b) for a, b in zip(grown, alone.topology, strict=True))
    ground = one.ground(3, 2, 1)
    assert (ground.config.rng_seed, ground.config.group, ground.test) == (7 + Band.PLANS + 1, 2, None)
    assert ground.fleet.lr.tolist() == pytest.approx([0.005, 0.005, 0.01, 0.01, 0.02, 0.02])


def test_final_exams_have_hosts_and_data_of_their_own():
    """And both kinds charge the rent that training ends with."""
    later = replace(smoke().learn, rent=RentSchedule(start=0.5, end=0.03))
    final = room(SMALL, learn=later)
    preliminary = room(replace(SMALL, thorough=False, final=False), learn=later)
    paper, look = final.paper(0.125, 9), preliminary.paper(0.25)
    assert (paper.config.rng_seed, look.config.rng_seed) == (7 + Band.FINAL, 7 + Band.DEVELOPMENT)
    held_out = load_test("spirals", examples=200)
    assert paper.test is not None
    assert torch.equal(paper.test.x, held_out.x)
    assert look.test is None
    assert (paper.config.episode, look.config.episode) == (9, 4)
    assert paper.fleet.lr.tolist() == [0.125] * 3
    assert look.fleet.lr.tolist() == [0.25] * 3
    assert final.rent == preliminary.rent == 0.03


def plan(slot: str, blueprint: str, tempo: int = 3) -> FixedPlan:
    return FixedPlan([PlanStep(0, {"op": "GERMINATE", "slot": slot, "blueprint": blueprint, "tempo": tempo})])


def test_a_topology_from_scratch_is_its_own_hosts():
    """Three hosts, of which each grows something else; two trainings, of which the second grows the other way round."""
    (fleet,) = smoke().fleets
    one = room(AT_ONE_RATE, fleets=(replace(fleet, env=replace(fleet.env, episode=6)),))
    grow = [plan("s0", "norm"), Never(), plan("s1", "mlp")]
    ours = one.arm([SideBySide(grow), SideBySide(grow[::-1])], 1e-2)
    static = one.static("static", ours, list, 6)
    growths = [sitting.outcome.growth.tolist() for sitting in ours.runs]
    assert len({*growths[0]}) == 3, "all three differ"
    assert growths[1] == growths[0][::-1]
    assert [sitting.outcome.growth.tolist() for sitting in static.runs] == growths


def test_growth_is_replayed_on_other_hosts_for_every_training():
    one = room(AT_ONE_RATE)
    ours = one.arm([Never(), Never()], 1e-2)
    again = [sitting.outcome.score for sitting in one.replayed(ours)]
    for n, scores in enumerate(again):
        alone = evaluate(one.env(3, 1, Band.OTHERS + n, [1e-2], test=True), Never(), 0.02)
        assert torch.equal(scores, alone.score)
    assert not torch.equal(*again)


def test_a_search_says_what_it_took(held):
    report, _ = held
    arms = {arm.name: arm for arm in report.arms}
    assert arms["best plan"].searched == 3 * 3
    assert arms["grid oracle"].searched > 3 * 3
    assert arms["heuristic"].searched == 0
    assert "GERMINATE s" in arms["grid oracle"].plan
    assert (
        f"grid oracle was chosen by a search over {arms['grid oracle'].searched} episodes ({arms['grid oracle'].plan})."
        in report.about
    )


def test_no_rule_is_never_under_another_name():
    """On most hosts of a setting that exams are held in, every rule plants something."""
    fleet = setting("planted")
    one = Room(smoke(), replace(fleet, options={**fleet.options, "examples": 600}), SMALL)
    _, *rules = one.rules()
    planted = torch.zeros(6 * len(rules), dtype=torch.bool)

    def on_step(actions, step):
        planted.logical_or_(actions[:, Head.OP] == Op.GERMINATE)

    compare(one.env(6, len(rules), Band.DEVELOPMENT, [0.02] * len(rules)), rules, 0.02, on_step=on_step)
    on_hosts = dict(zip([rule.name for rule in rules], planted.view(6, -1).sum(0).tolist(), strict=True))
    assert {name for name, hosts in on_hosts.items() if hosts <= 3} == set()


def test_everyone_has_a_learning_rate_of_the_same_grid(held):
    report, _ = held
    assert {arm.lr for arm in report.arms} <= set(_grid())
    arms = {arm.name: arm for arm in report.arms}
    assert arms["replay"].lr == arms["learned"].lr, "what was done was done at that rate"


def test_what_was_grown_is_trained_again_at_a_rate_that_suits_it():
    """Whatever rate it was grown at."""
    one = room(replace(SMALL, rates=(1e-9, 1.0), tuned_on=6))
    wrong, right = one.grid
    policies = [Heuristic(), Never()]
    grown = one.grown(policies, wrong)
    assert one.static("static", one.arm(policies, wrong), lambda: grown, 4).lr == right
    tried = one.static_tried(grown, 4)
    assert [len(rates) for rates in tried] == [2, 2]
    bare = one.tried([Never()], one.shared_by(2), training=1)
    assert tried[1] == pytest.approx(bare[0]), "who grew nothing is a bare host, on the same hosts"


def test_the_learning_rate_is_the_one_that_does_best():
    """Of one that is right and one that moves nothing."""
    one = room(replace(SMALL, rates=(1e-9, 1.0), tuned_on=6))
    assert one.tuned([[Never()], [Heuristic()]]) == [smoke().fleets[0].train.lr] * 2


def test_all_trainings_of_an_arm_have_a_say_in_its_learning_rate():
    one = room(replace(SMALL, rates=(0.5, 1.0, 2.0)))
    found = [[[0.5, 0.6, 0.4], [0.1, 0.2, 0.3], [0.3, 0.2, 0.1]], [[0.9, 0.5, 0.1], [0.1, 0.4, 0.4], [0.1, 0.2, 0.3]]]

    def tried(policies, hosts, episode, training):
        asked_for.append((hosts, training))
        return found[training][: len(policies)]

    one.tried, asked_for = tried, []
    low, middle, high = one.grid
    assert one.tuned([[Never()], [Never()], [Never()]]) == [middle, high, low]
    assert one.tuned([[Never(), Never()], [Never(), Never()]]) == [low, high]
    half = SMALL.tuned_on / 2
    assert asked_for == [(SMALL.tuned_on, 0), (half, 0), (half, 1)], "so many lives for each rate of each arm"


def test_no_more_hosts_at_once_than_there_is_room_for():
    """In parts, whoever leaves nothing to chance finds the same."""
    one, built = room(), []
    policies = [Never(), Heuristic(), Oversized()]
    whole, env = one.tried(policies, 2), one.env
    one.room, one.env = 12, lambda *given, **more: built.append(given[:2]) or env(*given, **more)
    assert one.tried(policies, 2) == whole
    assert built == [(2, 6), (2, 3)]


def test_the_edge_is_either_end_of_a_grid():
    arms = [Arm(name, [], 4, lr) for name, lr in {"low": 0.1, "middle": 0.2, "high": 0.4}.items()]
    assert at_the_edge(arms, [0.1, 0.2, 0.4]) == ("low", "high")
    assert at_the_edge(arms, [0.2]) == (), "a single rate is nobody's choice"


def test_who_would_rather_learn_outside_of_the_grid_is_named(held):
    report, _ = held
    assert report.at_the_edge == tuple(arm.name for arm in report.arms if arm.lr != _grid()[1])
    assert ", ".join(report.at_the_edge) in report.caution
    assert "to an end of the grid" in exam_text(report)
    assert "to an end of the grid" not in exam_text(replace(report, at_the_edge=()))


def exam_text(report):
    console = Console(width=200, file=io.StringIO())
    show_exam(report, console)
    return console.file.getvalue()


def _grid():
    return [rate * smoke().fleets[0].train.lr for rate in SMALL.rates]


def test_a_policy_that_remembers_is_tuned_as_it_is():
    """Every learning rate has a copy of its own: with one rate three times, all three do the same."""
    one, policy = room(), FixedPlan([PlanStep(2, {"op": "GERMINATE", "slot": "s0"})])
    alone = evaluate(one.env(2, 1, Band.TUNE, [0.01]), policy, 0.02)
    three = compare(one.env(2, 3, Band.TUNE, [0.01] * 3), [policy] * 3, 0.02)
    assert all(torch.equal(o.growth, alone.growth) for o in three)
    assert alone.growth.any()


def test_a_learning_rate_of_its_own_for_every_place():
    env = room().env(2, 2, Band.FINAL, [0.1, 0.2])
    assert env.fleet.lr.tolist() == [0.1, 0.2, 0.1, 0.2]
    assert torch.equal(env.fleet.seed_lr[:, 0], env.fleet.lr)


def test_no_host_serves_two_purposes():
    one, seen = room(), []
    for band in Band:
        env = one.env(4, 1, band, [0.1])
        env.reset()
        seen += env.fleet.rng_seeds.tolist()
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("hosts", 1, "hosts must be at least 2"),
        ("rates", (), "rates must hold at least one number, all positive"),
        ("rates", (1.0, -1.0), "rates must hold at least one number, all positive"),
        ("plans", -1, "plans must be at least 0"),
    ],
)
def test_an_impossible_exam_is_refused(field, value, message):
    with pytest.raises(EsperError, match=message):
        replace(SMALL, **{field: value})


@pytest.mark.parametrize("name", SUITE)
def test_every_setting_of_the_suite_can_be_examined(name):
    fleet = setting(name)
    env = Places(fleet, Engine()).env(1, 2, Band.FINAL, fleet.test_data())
    assert env.test is not None
    assert len(env.reset().score) == 2


def test_data_of_ones_own_can_be_examined(tmp_path):
    (tmp_path / "tale.txt").write_text("the quick brown fox jumps over the lazy dog. " * 300)
    pixels = np.random.default_rng(0).integers(0, 255, (400, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "mine.npz", x_train=pixels, y_train=np.arange(400) % 3)
    for fleet in chosen_settings((), tmp_path / "mine.npz", tmp_path / "tale.txt"):
        one = Room(smoke(), fleet, SMALL)
        assert (one.example.fleet.task.name, one.unseen) in (
            ("mine", "task and kind of host"),
            ("tale", "task and kind of host"),
        )
        assert len(one.paper(0.01).reset().score) == 3


def test_a_task_stands_for_its_hosts_of_all_sizes():
    assert settings("mnist1d-8") == (setting("mnist1d-8"),)
    assert settings("mnist1d") == tuple(setting(f"mnist1d-{width}") for width in (4, 8, 16))
    assert settings("all") == tuple(setting(name) for name in SUITE)
    with pytest.raises(EsperError, match="unknown setting 'mnist'"):
        settings("mnist")


def test_what_is_held_out_is_learned_from_nowhere():
    learned = recipe("general").fleets
    assert recipe("general").learned_from == learned, "the last stage has the settings of all"
    tasks, hosts = {fleet.task for fleet in learned}, {fleet.host for fleet in learned}
    assert not tasks & {setting(name).task for name in HELD_OUT}
    assert not tasks & {"images", "text"}
    assert "transformer" not in hosts
    asked = smoke()
    assert Room(asked, setting("digits-4"), SMALL).unseen == "task and kind of host"
    assert Room(asked, setting("planted"), SMALL).unseen == "task"
    assert Room(asked, asked.fleets[0], SMALL).unseen == ""
    assert Room(replace(asked, known=(setting("digits-4"),)), setting("digits-6"), SMALL).unseen == ""


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
    assert f"The teacher has {report.right_size:.0f} parameters, hosts of learned end with" in report.size


def test_plans_differ_from_those_of_the_warm_start():
    one = room(replace(SMALL, plans=20))
    by_chance, grid = one.candidates()
    shown = random_plans(one.example.setting, 20, one.rng_seed)
    assert {str(plan) for plan in by_chance}.isdisjoint(str(plan) for plan in shown)
    singles = 2 * len(one.example.setting.space.slots) * len(one.example.setting.space.blueprints)
    assert (len(by_chance), len(grid)) == (20, singles + 20)
    assert {line.decision for plan in grid for line in plan.plan} == {0, 1}, "at the beginning, and after a quarter"
