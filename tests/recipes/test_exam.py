"""The protocol of an exam: fresh hosts for everything that is chosen, the same chances for everyone."""

import io
import math
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from esper.cli.look import show_exam
from esper.leyline.actions import Head, Op
from esper.leyline.errors import EsperError
from esper.recipes import recipe
from esper.recipes.config import Band, FleetConfig, Places
from esper.recipes.exam import QUICK, ExamConfig, Room, held_one_by_one, hold_exam
from esper.recipes.suite import HELD_OUT, SUITE, setting, settings
from esper.simic.exam import Arm
from esper.simic.play import play
from esper.simic.search import compare, random_plans
from esper.tamiyo import Controller
from esper.tamiyo.policies import FixedPlan, Heuristic, Learned, Never, Oversized, Planned, RandomLegal, SideBySide
from esper.tolaria import Engine, FleetEnv

SMALL = ExamConfig(hosts=3, rates=(0.1, 1.0, 2.0), tuned_on=2, plans=3, told=1)


def smoke():
    plain = recipe("smoke")
    (fleet,) = plain.fleets
    train = replace(fleet.train, lr=1e-2)
    small = replace(fleet, options={"examples": 200}, train=train, env=replace(fleet.env, episode=5))
    return replace(plain, fleets=(small,))


def everyone():
    """An exam with two trainings and two guests."""
    asked = smoke()
    trainings = [Learned(Controller(asked.controller, seed)) for seed in (1, 2)]
    guest = FixedPlan([Planned(0, {"op": "GERMINATE", "slot": "s0"})], name="mine")
    return asked, trainings, SMALL, [guest, FixedPlan([], name="idle")]


@pytest.fixture(scope="module")
def held():
    (report,), lives = hold_exam(*everyone())
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


def test_a_guest_with_a_name_that_is_taken_is_refused_before_anything_is_played(monkeypatch):
    asked = smoke()
    monkeypatch.setattr("esper.recipes.exam.Room.paper", lambda *arguments: pytest.fail("the exam was held"))
    monkeypatch.setattr("esper.recipes.exam.tournament", lambda *arguments: pytest.fail("plans were tried"))
    ours = [Learned(Controller(asked.controller, 1))]
    with pytest.raises(EsperError, match="2 arms are called 'never'"):
        hold_exam(asked, ours, SMALL, [Never()])
    with pytest.raises(EsperError, match="2 arms are called 'static'"):
        hold_exam(asked, ours, SMALL, [FixedPlan([], name="static")])


def test_whoever_sat_in_the_same_places_before_leaves_no_trace():
    asked = smoke()
    both, tame = [RandomLegal(), Heuristic()], [Heuristic()]

    def room():
        return Room(asked, asked.fleets[0], replace(SMALL, rates=(1.0,)))

    after, alone = room().arm(both, 1e-2).sittings[1], room().arm(tame, 1e-2).sittings[0]
    used = room()
    grown = used.static("static", Arm("both", used.arm(both, 1e-2).sittings, 5, 1e-2), list, 5).sittings[1]
    afresh = room().static("static", Arm("one", [alone], 5, 1e-2), list, 5).sittings[0]
    assert (alone.outcome.growth > 0).any()
    for mine, theirs in ((after, alone), (grown, afresh)):
        assert all(torch.equal(a, b) for a, b in zip(mine.outcome, theirs.outcome, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(mine.topology, theirs.topology, strict=True))


def test_an_exam_in_few_places_is_the_same_as_one_with_a_fleet_for_everyone(held, monkeypatch):
    """Whoever sits in places where others have been: nothing but the time it takes depends on it."""
    env, build, built = Places.env, FleetConfig.fleet, []

    def afresh(places, *given, **more):
        places.fleet = None
        return env(places, *given, **more)

    monkeypatch.setattr(FleetConfig, "fleet", lambda *given: built.append(given[-1]) or build(*given))
    hold_exam(*everyone())
    few = len(built)
    monkeypatch.setattr(Places, "env", afresh)
    (fresh,), _ = hold_exam(*everyone())
    assert len(built) - few > 2 * few
    for shared, alone in zip(held[0].arms, fresh.arms, strict=True):
        assert replace(shared, seconds=0.0) == replace(alone, seconds=0.0)


def test_an_exam_that_is_interrupted_goes_on_with_what_it_has_chosen_and_comes_out_the_same(held):
    chosen, asked, survives = {}, [], 0

    def once(purpose, choose):
        asked.append(purpose)
        if purpose not in chosen:
            if len(chosen) == survives:
                raise KeyboardInterrupt
            chosen[purpose] = choose()
        return chosen[purpose]

    def go_on():
        asked.clear()
        return list(held_one_by_one(*everyone(), once=once))

    for survives in (2, 6):
        with pytest.raises(KeyboardInterrupt):
            go_on()
        assert len(chosen) == survives
    survives = 7
    ((report, _),) = go_on()
    assert len(chosen) == 7, "two plans, and rates of rivals, ours, longer and twice static"
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
    (report,), _ = hold_exam(asked, [Learned(Controller(asked.controller, 1))], replace(QUICK, hosts=3))
    assert report.data == "validation"
    assert [arm.name for arm in report.arms] == ["learned", "never", "random", "heuristic"]
    with pytest.raises(EsperError, match="thorough exams are final"):
        replace(SMALL, final=False)


def test_arms_that_do_the_same_have_the_same_hosts(held):
    report, _ = held
    never, idle = (next(arm for arm in report.arms if arm.name == name) for name in ("never", "idle"))
    assert idle.scores == never.scores
    assert idle.vs == never.vs


def test_who_trains_longer_spends_as_much_and_no_more(held):
    report, _ = held
    arms = {arm.name: arm for arm in report.arms}
    ours = arms["learned"].flops
    for name in ("longer", "static, longer"):
        arm = arms[name]
        assert abs(arm.flops - ours) <= arm.flops / arm.episode, "to the nearest epoch"
    assert arms["longer"].growth == 0
    assert arms["longer"].episode >= arms["never"].episode == 5


def test_a_search_says_what_it_took(held):
    report, _ = held
    arms = {arm.name: arm for arm in report.arms}
    assert arms["best plan"].searched == 3 * 3
    assert arms["grid oracle"].searched > 3 * 3
    assert arms["heuristic"].searched == 0
    assert "GERMINATE s" in arms["grid oracle"].plan
    assert (
        f"grid oracle was chosen in {arms['grid oracle'].searched} lives ({arms['grid oracle'].plan})." in report.about
    )


def test_no_rule_is_never_under_another_name():
    """On most hosts of a setting that exams are held in, every rule plants something."""
    room = Room(smoke(), setting("planted"), SMALL)
    _, *rules = room.rules()
    planted = torch.zeros(6 * len(rules), dtype=torch.bool)

    def witness(actions, step):
        planted.logical_or_(actions[:, Head.OP] == Op.GERMINATE)

    compare(room.env(6, len(rules), Band.DEVELOPMENT, [0.02] * len(rules)), rules, 0.02, witness=witness)
    on_hosts = dict(zip([rule.name for rule in rules], planted.view(6, -1).sum(0).tolist(), strict=True))
    assert {name for name, hosts in on_hosts.items() if hosts <= 3} == set()


def test_everyone_has_a_learning_rate_of_the_same_grid(held):
    report, _ = held
    assert {arm.lr for arm in report.arms} <= set(_grid())
    arms = {arm.name: arm for arm in report.arms}
    assert arms["replay"].lr == arms["learned"].lr, "what was done was done at that rate"


def test_what_was_grown_is_trained_again_at_a_rate_that_suits_it():
    """Whatever rate it was grown at."""
    asked = smoke()
    room = Room(asked, asked.fleets[0], replace(SMALL, rates=(1e-9, 1.0), tuned_on=6))
    _, right = room.grid
    policies = [Heuristic(), Never()]
    for lr in room.grid:
        grown = room.grown(policies, lr)
        assert room.static("static", room.arm(policies, lr), lambda found=grown: found, 5).lr == right
    tried = room.static_tried(room.grown(policies, right), 5)
    assert [len(rates) for rates in tried] == [2, 2]
    bare = room.tried([Never()], room.shared_by(2), training=1)
    assert tried[1] == pytest.approx(bare[0]), "who grew nothing is a bare host, on the same hosts"


def test_the_learning_rate_is_the_one_that_does_best():
    """Of one that is right and one that moves nothing, whatever the order."""
    for rates in ((1.0, 1e-9), (1e-9, 1.0)):
        room = Room(smoke(), smoke().fleets[0], replace(SMALL, rates=rates, tuned_on=6))
        assert room.tuned([[Never()], [Heuristic()]]) == [smoke().fleets[0].train.lr] * 2


def test_all_trainings_of_an_arm_have_a_say_in_its_learning_rate():
    room = Room(smoke(), smoke().fleets[0], replace(SMALL, rates=(0.5, 1.0, 2.0)))
    found = [[[0.5, 0.6, 0.4], [0.1, 0.2, 0.3], [0.3, 0.2, 0.1]], [[0.9, 0.5, 0.1], [0.1, 0.4, 0.4], [0.1, 0.2, 0.3]]]

    def tried(policies, hosts, episode, training):
        asked_for.append((hosts, training))
        return found[training][: len(policies)]

    room.tried, asked_for = tried, []
    low, middle, high = room.grid
    assert room.tuned([[Never()], [Never()], [Never()]]) == [middle, high, low]
    assert room.tuned([[Never(), Never()], [Never(), Never()]]) == [low, high]
    half = SMALL.tuned_on / 2
    assert asked_for == [(SMALL.tuned_on, 0), (half, 0), (half, 1)], "so many lives for each rate of each arm"


def test_every_training_tries_learning_rates_on_hosts_of_its_own(monkeypatch):
    """And what it grew is tried again on the same ones: five trainings on the same few hosts would know only those."""
    room, met, reset = Room(smoke(), smoke().fleets[0], replace(SMALL, tuned_on=6)), [], FleetEnv.reset
    monkeypatch.setattr(FleetEnv, "reset", lambda env: (reset(env), met.append({*env.fleet.rng_seeds.tolist()}))[0])
    trainings = [Heuristic(), Oversized(), Never()]
    room.tuned([trainings])
    tuned = met.copy()
    assert [len(hosts) for hosts in tuned] == [2, 2, 2]
    assert len(set.union(*tuned)) == 6
    met.clear()
    grown = room.grown(trainings, room.grid[0])
    assert met == tuned
    met.clear()
    room.static_tried(grown, 5)
    assert met == tuned * len(room.grid)


def test_no_more_hosts_at_once_than_there_is_room_for():
    """In parts, whoever leaves nothing to chance finds the same."""
    room = Room(smoke(), smoke().fleets[0], SMALL)
    policies, built = [Never(), Heuristic(), Oversized()], []
    whole, env = room.tried(policies, 2), room.env
    room.room, room.env = 12, lambda *given, **more: built.append(given[:2]) or env(*given, **more)
    assert room.tried(policies, 2) == whole
    assert built == [(2, 6), (2, 3)]


def test_who_would_rather_learn_outside_of_the_grid_is_named(held):
    report, _ = held
    low, _, high = _grid()
    ends = [arm.name for arm in report.arms if arm.lr in (low, high)]
    assert list(report.at_the_edge) == ends
    assert 0 < len(ends) < len(report.arms)
    assert ", ".join(ends) in report.caution
    assert "at an end of the grid" in exam_text(report)
    assert "at an end of the grid" not in exam_text(replace(report, at_the_edge=()))


def exam_text(report):
    console = Console(width=200, file=io.StringIO())
    show_exam(report, console)
    return console.file.getvalue()


def _grid():
    return [rate * smoke().fleets[0].train.lr for rate in SMALL.rates]


def test_a_policy_that_remembers_is_tuned_as_it_is():
    """Every learning rate has a copy of its own: with one rate three times, all three do the same."""
    asked = smoke()
    room = Room(asked, asked.fleets[0], SMALL)
    for policy in (
        FixedPlan([Planned(2, {"op": "GERMINATE", "slot": "s0"})]),
        Learned(Controller(asked.controller, 1)),
    ):
        alone = play(room.env(2, 1, Band.TUNE, [0.01]), policy, 0.02)
        three = compare(room.env(2, 3, Band.TUNE, [0.01] * 3), [policy] * 3, 0.02)
        if isinstance(policy, FixedPlan):
            assert all(torch.equal(o.growth, alone.growth) for o in three)
            assert alone.growth.any()
        else:
            actions = SideBySide([policy] * 3).policies
            assert len({id(p) for p in actions}) == 3


def test_a_learning_rate_of_its_own_for_every_place():
    room = Room(smoke(), smoke().fleets[0], SMALL)
    env = room.env(2, 2, Band.FINAL, [0.1, 0.2])
    assert env.fleet.lr.tolist() == [0.1, 0.2, 0.1, 0.2]
    assert torch.equal(env.fleet.seed_lr[:, 0], env.fleet.lr)


def test_no_host_serves_two_purposes():
    room, seen = Room(smoke(), smoke().fleets[0], SMALL), []
    for band in Band:
        env = room.env(4, 1, band, [0.1])
        env.reset()
        seen += env.fleet.rng_seeds.tolist()
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("hosts", 1, "hosts must be at least 2"),
        ("rates", (), "rates must be positive"),
        ("rates", (1.0, -1.0), "rates must be positive"),
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


def test_a_task_stands_for_its_hosts_of_all_sizes():
    assert settings("mnist1d-8") == (setting("mnist1d-8"),)
    assert settings("mnist1d") == tuple(setting(f"mnist1d-{width}") for width in (4, 8, 16))
    assert settings("all") == tuple(setting(name) for name in SUITE)
    with pytest.raises(EsperError, match="unknown setting 'mnist'"):
        settings("mnist")


def test_what_is_held_out_is_learned_from_nowhere():
    learned = recipe("wider").fleets
    assert all(
        any(fleet.alike(known) for known in learned) for name in ("general", "further") for fleet in recipe(name).fleets
    )
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
    config = replace(SMALL, plans=0, rates=(1.0,))
    (report,), _ = hold_exam(asked, [Learned(Controller(asked.controller, 1))], config)
    arms = {arm.name: arm for arm in report.arms}
    right, never = arms["right size"], arms["never"]
    assert report.at_the_edge == (), "a single rate is nobody's choice"
    assert report.right_size is not None
    assert right.params == pytest.approx(report.right_size), "a host of the teacher's shape has the teacher's size"
    assert right.excess == pytest.approx(0, abs=1e-3)
    assert right.regret == 0
    assert never.excess == pytest.approx(never.params - report.right_size)
    assert never.regret == pytest.approx(right.j - never.j)
    bare = never.params
    assert right.j == pytest.approx(right.mean - 0.02 * math.log(report.right_size / bare), abs=1e-6)


def test_plans_are_none_that_a_head_start_has_shown(monkeypatch):
    asked, tried = smoke(), []
    monkeypatch.setattr(
        "esper.recipes.exam.tournament", lambda build, plans, *rest, **more: (tried.append(plans) or plans[:1], 0)
    )
    room = Room(asked, asked.fleets[0], replace(SMALL, plans=20))
    room.plans()
    shown = random_plans(room.example.setting, 20, asked.learn.rng_seed)
    assert {str(plan) for plan in tried[0]}.isdisjoint(str(plan) for plan in shown)
