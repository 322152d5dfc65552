"""Arms of exams on a budget: fixed sizes, hindsight, the sweep, doubling and probing, all for the same FLOPs."""

import math
from dataclasses import replace

import pytest
import torch

from esper.dashboard.exam_text import about
from esper.exam.arms import admitted
from esper.exam.config import ExamConfig
from esper.exam.derived import right_size
from esper.exam.holding import hold, hold_exam, require_equal_compute
from esper.exam.probing import ForkedEnv, Trial, branches_of, chosen_branch, probe, probed, trials_for
from esper.exam.runs import ArmResult, ArmRun, Traced, run_traced
from esper.exam.sitting import Played, Sitting
from esper.exam.sizes import fixed, growth_of, halved, hindsight, name_of, resized, rungs, sweep, tried
from esper.kasmina import LifecycleConfig
from esper.kasmina.host import num_parameters
from esper.kasmina.hosts import build_host
from esper.leyline.errors import EsperError
from esper.recipes.config import FleetConfig, Recipe
from esper.simic.evaluation import Outcome, evaluate
from esper.tamiyo.policies import Doubling, FixedPlan, Heuristic, Never, PlanStep, SideBySide, levels
from esper.tolaria import EnvConfig, TrainConfig

SIZES = ((8, 8), (8,) * 4, (8,) * 6)
FLEET = FleetConfig(
    task="phrases",
    options={"examples": 240, "context": 8, "words": 12},
    host="gpt",
    widths=(8, 8),
    slots=3,
    sizes=SIZES,
    train=TrainConfig(lr=1e-2, batch_size=8, steps=2),
    lifecycle=LifecycleConfig(measure_every=4),
    env=EnvConfig(budget=20.0, rng_seed=3),
)
ONE_RATE = ExamConfig(hosts=3, rates=(1.0,), tuned_on=2, plans=0, thorough=False, final=False, recorded=1)


def sitting(config: ExamConfig = ONE_RATE, **changes) -> Sitting:
    fleet = replace(FLEET, **changes)
    return Sitting(Recipe(name="small", fleets=(fleet,)), fleet, config)


NOTHING = Played([], ArmResult("ours", [], 1, 0.1), {}, list)


def test_which_slots_a_doubling_fills():
    """The middle first, then the middle of what is left on both sides."""
    assert levels(1) == [0]
    assert levels(2) == [1, 0]
    assert levels(3) == [1, 0, 1]
    assert levels(7) == [2, 1, 2, 0, 2, 1, 2]


def test_doubling_doubles_when_it_is_due_and_nothing_else():
    """Two blocks become four, then eight; one seed a decision, in the order of the slots."""
    env = sitting(env=EnvConfig(budget=40.0)).hosts.scored(1e-2)
    planted, spent = [], []

    def listen(actions, step) -> None:
        if spent and spent[-1] >= 0.9:  # the life is over, or as good as over
            return
        born = (step.final.slots.births[0] > 0).tolist()
        planted.append([s for s, is_born in enumerate(born) if is_born])
        spent.append(float(step.final.spent[0]))

    evaluate(env, Doubling(at=(0.1, 0.3)), 0.0, on_step=listen)
    new = [sorted(set(now) - set(before)) for before, now in zip([[], *planted], planted, strict=False)]
    births = [(at, slot) for at, slots in zip([0.0, *spent], new, strict=False) for slot in slots]
    assert [slot for _, slot in births] == [1, 4, 0, 2, 3, 5]
    assert all(at >= 0.1 for at, _ in births[:2])
    assert all(at >= 0.3 for at, _ in births[2:])
    first = [at for at, _ in births]
    assert first[0] == pytest.approx(0.1), "as soon as it is due, to the bit"
    assert len(set(first)) == 6, "one a decision"
    with pytest.raises(EsperError, match="at must be shares from 0 to below 1"):
        Doubling(at=(0.3, 1.0))


def test_every_size_spends_what_a_bare_host_would():
    one = sitting()
    budget = float(one.hosts.example.life()[0])
    for widths in SIZES:
        other = resized(one, widths)
        assert float(other.hosts.example.life()[0]) == pytest.approx(budget)
        assert other.hosts.example.fleet.spec.widths == widths
        spec = replace(one.hosts.example.fleet.spec, widths=widths)
        size, bare = (num_parameters(build_host(s)) for s in (spec, one.hosts.example.fleet.spec))
        assert growth_of(one, widths) == size / bare - 1
    half = resized(one, SIZES[1], 0.5)
    assert float(half.hosts.example.life()[0]) == pytest.approx(budget / 2)


def test_a_fixed_size_is_trained_from_scratch_and_pays_for_its_size():
    one = sitting(replace(ONE_RATE, price=0.1))
    arm = fixed(one, SIZES[1])
    alone = evaluate(resized(one, SIZES[1]).hosts.scored(1e-2), Never(), 0.1)
    (run,) = arm.runs
    assert arm.name == "fixed 4 × 8"
    assert torch.equal(run.outcome.score, alone.score)
    paid = 0.1 * math.log1p(growth_of(one, SIZES[1]))
    torch.testing.assert_close(run.outcome.objective, alone.score - paid)
    assert not arm.paired
    assert name_of((8, 16)) == "fixed 8-16"


def test_hindsight_is_the_best_size_on_other_hosts_at_its_own_rate():
    one = sitting(replace(ONE_RATE, rates=(0.1, 1.0)))
    found = tried(one)
    for widths, (rate, worth) in zip(SIZES, found, strict=True):
        env = resized(one, widths).hosts.tuning(2, [1e-3, 1e-2])
        paid = one.rent * math.log1p(growth_of(one, widths))
        means = evaluate(env, Never(), one.rent).objective.view(2, 2).mean(0) - paid
        assert (rate, worth) == ([1e-3, 1e-2][int(means.argmax())], pytest.approx(float(means.max()), abs=1e-6))
    best = max(range(3), key=lambda n: found[n][1])
    others = {name_of(widths): fixed(one, widths) for widths in SIZES}
    arm = hindsight(one, NOTHING._replace(others=others))
    assert (arm.name, arm.plan) == ("hindsight", name_of(SIZES[best]))
    assert arm.runs == others[name_of(SIZES[best])].runs


def test_rounds_of_a_sweep():
    assert rungs(1) == [1]
    assert rungs(2) == [2, 1]
    assert rungs(3) == [3, 2, 1]
    assert rungs(4) == [4, 2, 1]
    assert rungs(5) == [5, 3, 2, 1]


def test_a_sweep_leaves_out_the_worse_half_and_pays_for_all():
    """By hand, for three sizes: rounds of a third each, over three, two and one of them, each ended to the step."""
    one = sitting(replace(ONE_RATE, price=0.05))
    (run,) = sweep(one, NOTHING).runs
    parts = [1 / 9, 1 / 6, 1 / 3]
    whole = sum(parts)
    assert sum([parts[0], parts[0] + parts[1], whole]) == pytest.approx(1.0)
    ends = [parts[0] / whole, (parts[0] + parts[1]) / whole]
    worth, paid, last, steps = [], [], [], []
    for widths in SIZES:
        other = resized(one, widths, whole)
        env = other.hosts.scored(1e-2)
        env.pause_at(ends)
        life, step = float(other.hosts.example.life()[0]), 8 * other.hosts.example.fleet.costs.host.train
        found = []
        evaluate(env, Never(), 0.05, on_step=lambda _, told, found=found: found.append(told.final))
        price = 0.05 * math.log1p(growth_of(one, widths))
        at = [next(told for told in found if float(told.spent[0]) >= end - 1e-9) for end in ends]
        assert all(0 <= float(told.spent[0]) * life - end * life < step for told, end in zip(at, ends, strict=True))
        worth.append([told.score - price for told in at])
        paid.append([float(told.spent[0]) * life for told in at] + [life])
        last.append(evaluate(other.hosts.scored(1e-2), Never(), 0.05))
        steps.append(step)
    budget = float(one.hosts.example.life()[0])
    for n in range(3):
        order = sorted(range(3), key=lambda k: -float(worth[k][0][n]))
        left = sorted(order[:2], key=lambda k: -float(worth[k][1][n]))
        spent = paid[order[2]][0] + paid[left[1]][1] + paid[left[0]][2]
        assert float(run.outcome.flops[n]) == pytest.approx(spent, abs=0.5 * min(steps))
        assert abs(spent - budget) <= run.step == sum(steps)
        assert float(run.outcome.growth[n]) == pytest.approx(growth_of(one, SIZES[left[0]]), abs=1e-6)


def life_of(worth: list[list[float]], spent: list[list[float]], sick: list[float]) -> Traced:
    outcome = Outcome(*torch.zeros(6, len(sick)))._replace(sick=torch.tensor(sick))
    return Traced(torch.tensor(spent), torch.tensor(worth), outcome, None, 0.0)


def test_a_size_that_fails_is_out_and_pays_what_it_has_spent():
    """Two hosts, two sizes, two rounds; on the second host the better size fails in its first round."""
    inf = math.inf
    small = life_of([[0.5, 0.5], [0.6, 0.6]], [[0.45, 0.45], [1.0, 1.0]], [0.0, 0.0])
    large = life_of([[0.7, 0.7], [0.8, 0.7]], [[0.5, 0.2], [1.0, inf]], [0.0, 1.0])
    lives = torch.tensor([[100.0, 100.0], [200.0, 200.0]])
    chosen, spent, failed = halved([small, large], lives, [0.45, 1.0], [2, 1])
    assert chosen.tolist() == [1, 0]
    assert spent.tolist() == pytest.approx([0.45 * 100 + 200, 0.2 * 200 + 100])
    assert failed.tolist() == [False, True]
    both = life_of([[0.7, 0.7]], [[0.2, 0.2]], [1.0, 1.0])
    chosen, spent, failed = halved([both, both], lives, [0.45, 1.0], [2, 1])
    assert failed.all(), "nobody is left, and one is named"
    assert spent.tolist() == pytest.approx([60.0, 60.0])


def traced(worth: dict[float, list[float]]) -> Traced:
    """One group of siblings, with J after decisions at these shares of the budget."""
    hosts = len(next(iter(worth.values())))
    return life_of(list(worth.values()), [[share] * hosts for share in worth], [0.0] * hosts)


TWO = (Trial(0.3, 0.4), Trial(0.6, 0.7))


@pytest.mark.parametrize(
    ("first", "second", "branch"),
    [
        ([0.5, 0.5, 0.4, 0.4], [0.6, 0.5, 0.9, 0.9], 0),
        ([0.5, 0.5, 0.4, 0.4], [0.6, 0.7, 0.9, 0.9], 1),
        ([0.5, 0.5, 0.6, 0.6], [0.9, 0.9, 0.7, 0.6], 2),
        ([0.5, 0.5, 0.6, 0.6], [0.9, 0.9, 0.6, 0.7], 3),
        ([0.5, 0.5, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5], 0),
    ],
)
def test_a_probe_keeps_the_better_branch_after_each_trial(first, second, branch):
    assert branches_of(TWO) == [(), (0.6,), (0.3,), (0.3, 0.6)]
    assert chosen_branch(traced({0.4: first, 0.7: second}), TWO).tolist() == [branch]
    assert chosen_branch(traced({0.4: first[1:3]}), TWO[:1]).tolist() == [int(first[2] > first[1])]


def test_a_trial_lasts_until_the_twins_are_blended_in():
    """Two blocks of two thirds of the FLOPs and a head: two twins, born in two decisions, blended in over three."""
    one = sitting(env=EnvConfig(budget=400.0))
    env = one.hosts.example
    block = step_of_a_block(one) / env.fleet.costs.host.train
    first, second = trials_for(env)
    assert first.start == pytest.approx(0.3)
    assert first.end == pytest.approx(0.3 + 5 * (1 + 2 * block) / 400 + 0.05)
    assert second.start == pytest.approx(max(0.6, first.paid))
    assert second.end == pytest.approx(second.start + 7 * (1 + 6 * block) / 400 + 0.05)
    assert first.paid == pytest.approx(2 * first.end - 0.3)
    assert len(trials_for(sitting(env=EnvConfig(budget=60.0)).hosts.example)) == 1, "no budget for a second"
    assert not trials_for(sitting(env=EnvConfig(budget=15.0)).hosts.example)
    assert "probe" not in [arm.name for arm in admitted(sitting(env=EnvConfig(budget=15.0)), "ours", [])]


def step_of_a_block(one: Sitting) -> int:
    four, two = (resized(one, widths).hosts.example.fleet.costs.host.train for widths in (SIZES[1], SIZES[0]))
    return (four - two) // 2


def test_until_they_fork_siblings_are_one_host_and_both_pay_for_both():
    one = sitting(env=EnvConfig(budget=60.0))
    (trial,) = trials = trials_for(one.hosts.example)
    forked = ForkedEnv(one.hosts.forked(1e-2, 2), trials)
    alphas = []

    def listen(actions, step) -> None:
        alphas.append((step.final.spent.clone(), step.final.slots.alpha.clone()))

    evaluate(forked, SideBySide([Doubling(at) for at in branches_of(trials)]), 0.0, on_step=listen)
    at_end = next(alpha for spent, alpha in alphas if float(spent[1]) >= trial.end)
    assert (at_end[1::2, [1, 4]] == 1).all(), "a trial judges twins that have been blended in"
    assert not at_end[0::2].any()
    forked = ForkedEnv(one.hosts.forked(1e-2, 2), trials)
    trace = run_traced(forked, SideBySide([Doubling(at) for at in branches_of(trials)]), 0.0)
    together = (trace.spent <= trial.start + 1e-9).view(len(trace.spent), -1, 2).all(2)
    scores = trace.objective.view(len(trace.spent), -1, 2)
    assert (scores[..., 0] == scores[..., 1])[together].all()
    assert together.any()
    assert not (scores[..., 0] == scores[..., 1]).all()
    budget = float(one.hosts.example.life()[0])
    assert forked.extra.tolist() == pytest.approx([(trial.end - trial.start) * budget] * 6), "the other branch's trial"
    outcome, _ = probed(one.hosts.forked(1e-2, 2), trials, 0.0, 0)
    (run,) = probe(one, NOTHING).runs
    assert torch.equal(run.outcome.score, outcome.score)
    assert outcome.flops.tolist() == pytest.approx([budget] * 3, abs=run.step)


def test_only_policies_that_look_at_contributions_pay_for_measuring_them():
    one = sitting()
    plan = FixedPlan([PlanStep(0, {"op": "GERMINATE", "slot": "s0", "blueprint": "twin"})])
    keeps = FixedPlan([PlanStep(0, {"op": "FOSSILIZE", "slot": "s0"})])
    policies = [Never(), Heuristic(), plan, keeps, Doubling()]
    env = one.hosts.charged(one.hosts.tuning(2, [1e-2] * 5), policies)
    assert env.charges_measuring.tolist() == [False, True, False, True, False] * 2
    evaluate(env, SideBySide(policies), 0.0)
    assert env.fleet.charges_measuring.tolist() == [False, True, False, True, False] * 2


def test_hosts_of_the_teachers_shape_spend_the_budget_too():
    fleet = replace(
        FLEET, task="planted", options={"width": 8, "inputs": 4, "examples": 240}, host="mlp", widths=(4, 4), slots=1
    )
    one = Sitting(Recipe(name="taught", fleets=(fleet,)), replace(fleet, sizes=()), ONE_RATE)
    (run,) = right_size(one, NOTHING).runs
    budget = float(one.hosts.example.life()[0])
    assert run.outcome.flops.tolist() == pytest.approx([budget] * 3, abs=run.step)


def test_all_arms_of_an_exam_on_a_budget_spend_the_same():
    one = sitting()
    arms = admitted(one, "heuristic, ours", [])
    names = [arm.name for arm in arms]
    fixed_sizes = [name_of(widths) for widths in SIZES]
    assert set(names) == {"never", "random", "heuristic", "doubling", *fixed_sizes, "hindsight", "sweep"}
    ours = Heuristic()
    ours.name = "heuristic, ours"
    report, _ = hold(one, [ours], arms)
    budget = float(one.hosts.example.life()[0])
    assert report.budget == budget
    for arm in report.arms:
        assert arm.flops == pytest.approx(budget, rel=0.05), "3 of 40 steps are dear"
    named = report.by_name
    assert named["fixed 2 × 8"].scores == named["never"].scores, "the size it begins with"
    spent = f"Every host of every arm spends {budget:.3g} FLOPs, to the step"
    ends = f"(on average {min(a.flops for a in report.arms) / budget:.3f} to "
    assert f"{spent} {ends}" in about(report)
    third, failing = replace(report.arms[1], sick=1 / 3), replace(report.arms[0], sick=0.1)
    failed = replace(report, arms=(failing, third, *report.arms[2:]))
    assert f"{spent}, unless it fails before, as up to 33% of an arm do {ends}" in about(failed)


def test_an_arm_that_spends_more_is_an_error():
    def arm(*flops: float, sick: float = 0.0) -> ArmResult:
        outcome = Outcome(*torch.zeros(6, len(flops)))._replace(flops=torch.tensor(flops))
        run = ArmRun(outcome._replace(sick=torch.full((len(flops),), sick)), [], [], None, 0.0, step=5.0)
        return ArmResult("odd", [run], 1, 0.1)

    require_equal_compute(100.0, arm(95.0, 105.0))
    require_equal_compute(100.0, arm(20.0, sick=1.0))
    require_equal_compute(None, arm(20.0))
    for flops in (94.0, 106.0):
        with pytest.raises(EsperError, match=r"arm 'odd' spent 6.00% more or less than the budget on a host"):
            require_equal_compute(100.0, arm(100.0, flops))


def test_every_arm_is_held_to_its_own_last_step():
    """A bare host's, and one with all twins, which is dearer by three blocks for each of two."""
    one = sitting(env=EnvConfig(budget=40.0))
    bare = 8 * one.hosts.example.fleet.costs.host.train
    runs = [one.run(one.hosts.scored(1e-2), policy, "arm") for policy in (Never(), Doubling(at=(0.0, 0.1)))]
    assert [run.step for run in runs] == pytest.approx([bare, bare + 6 * 8 * step_of_a_block(one)])


def test_without_a_budget_or_sizes_these_arms_stay_away():
    (report,), _ = hold_exam(
        Recipe(name="plain", fleets=(replace(FLEET, sizes=(), host="transformer", slots=1),)),
        [Never.__new__(type("Ours", (Never,), {"name": "ours"}))],
        ONE_RATE,
    )
    assert set(report.by_name) == {"ours", "never", "random", "heuristic"}
    epochs = replace(FLEET, env=EnvConfig(episode=2))
    assert {"doubling", "probe", "sweep"}.isdisjoint(a.name for a in admitted(sitting(env=epochs.env), "ours", []))
