"""Arms of exams on a budget: fixed sizes, hindsight, the sweep, doubling and probing, all for the same FLOPs."""

import math
from dataclasses import replace

import pytest
import torch

from esper.exam.arms import admitted
from esper.exam.config import ExamConfig
from esper.exam.holding import dearest_step, hold, hold_exam, require_equal_compute
from esper.exam.probing import AT, BRANCHES, LENGTH, ForkedEnv, chosen_branch, probe, probed
from esper.exam.runs import ArmResult, ArmRun, Traced, run_traced
from esper.exam.sitting import Played, Sitting
from esper.exam.sizes import fixed, growth_of, hindsight, name_of, resized, rungs, sweep, tried
from esper.kasmina import LifecycleConfig
from esper.kasmina.host import num_parameters
from esper.kasmina.hosts import build_host
from esper.leyline.errors import EsperError
from esper.recipes.config import FleetConfig, Recipe
from esper.simic.evaluation import Outcome, evaluate
from esper.tamiyo.policies import Doubling, Heuristic, Never, SideBySide, levels
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
    env = sitting().hosts.scored(1e-2)
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
    assert first[0] < 0.1 + 0.06, "as soon as it is due"
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
    """By hand, for three sizes: rounds of a third each, over three, two and one of them."""
    one = sitting(replace(ONE_RATE, price=0.05))
    arm = sweep(one, NOTHING)
    (run,) = arm.runs
    parts = [1 / 9, 1 / 6, 1 / 3]
    whole = sum(parts)
    worth, last, steps = [], [], []
    for widths in SIZES:
        other = resized(one, widths, whole)
        price = 0.05 * math.log1p(growth_of(one, widths))
        trace = run_traced(other.hosts.scored(1e-2), Never(), 0.05)
        worth.append([trace.at(end) - price for end in (parts[0] / whole, (parts[0] + parts[1]) / whole)])
        last.append(trace.outcome._replace(objective=trace.outcome.objective - price))
        steps.append(8 * other.hosts.example.fleet.costs.host.train)
    budget = float(one.hosts.example.life()[0])
    for n in range(3):
        order = sorted(range(3), key=lambda k: -float(worth[k][0][n]))
        left = sorted(order[:2], key=lambda k: -float(worth[k][1][n]))
        assert float(run.outcome.score[n]) == float(last[left[0]].score[n])
        assert float(run.outcome.objective[n]) == pytest.approx(float(last[left[0]].objective[n]))
        shares = {order[2]: parts[0], left[1]: parts[0] + parts[1], left[0]: whole}
        assert float(run.outcome.flops[n]) == pytest.approx(sum(shares.values()) * budget, abs=sum(steps))
    assert sum([parts[0], parts[0] + parts[1], whole]) == pytest.approx(1.0)


def traced(worth: dict[float, list[float]]) -> Traced:
    """One group of four siblings, with J after two decisions, at these shares of the budget."""
    spent = torch.tensor([[share] * 4 for share in worth])
    nothing = Outcome(*torch.zeros(6, 4))
    return Traced(spent, torch.tensor(list(worth.values())), nothing, None, 0.0)


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
    assert chosen_branch(traced({AT[0] + LENGTH: first, AT[1] + LENGTH: second})).tolist() == [branch]


def test_until_they_fork_siblings_are_one_host_and_both_pay_for_both():
    one = sitting()
    env = one.hosts.forked(1e-2, 4)
    forked = ForkedEnv(env.fleet, env.config)
    trace = run_traced(forked, SideBySide([Doubling(at) for at in BRANCHES]), 0.0)
    before = trace.spent < AT[0]
    scores = trace.objective.view(len(trace.spent), -1, 4)
    together = before.view(len(before), -1, 4).all(2)
    assert (scores == scores[:, :, :1])[together].all()
    assert together.any()
    assert not (scores == scores[:, :, :1]).all()
    budget = float(env.life()[0])
    assert forked.extra.tolist() == pytest.approx([2 * LENGTH * budget] * 12), "two trials of the other branch"
    outcome, _ = probed(one.hosts.forked(1e-2, 4), 0.0, 0)
    assert outcome.flops.tolist() == pytest.approx([budget] * 3, abs=dearest_step(one))
    (run,) = probe(one, NOTHING).runs
    assert torch.equal(run.outcome.score, outcome.score)


def test_all_arms_of_an_exam_on_a_budget_spend_the_same():
    one = sitting()
    arms = admitted(one, "heuristic, ours", [])
    names = [arm.name for arm in arms]
    fixed_sizes = [name_of(widths) for widths in SIZES]
    assert set(names) == {"never", "random", "heuristic", "doubling", "probe", *fixed_sizes, "hindsight", "sweep"}
    ours = Heuristic()
    ours.name = "heuristic, ours"
    report, _ = hold(one, [ours], arms)
    budget = float(one.hosts.example.life()[0])
    assert report.budget == budget
    for arm in report.arms:
        assert arm.flops == pytest.approx(budget, abs=dearest_step(one))
    named = report.by_name
    assert named["fixed 2 × 8"].scores == named["never"].scores, "the size it begins with"


def test_an_arm_that_spends_more_is_an_error():
    def arm(*flops: float, sick: float = 0.0) -> ArmResult:
        outcome = Outcome(*torch.zeros(6, len(flops)))._replace(flops=torch.tensor(flops))
        run = ArmRun(outcome._replace(sick=torch.full((len(flops),), sick)), [], [], None, 0.0)
        return ArmResult("odd", [run], 1, 0.1)

    require_equal_compute(100.0, 5.0, [arm(95.0, 105.0)])
    require_equal_compute(100.0, 5.0, [arm(20.0, sick=1.0)])
    for flops in (94.0, 106.0):
        with pytest.raises(EsperError, match=r"arm 'odd' spent 6.00% more or less than the budget on a host"):
            require_equal_compute(100.0, 5.0, [arm(100.0, flops)])


def test_without_a_budget_or_sizes_these_arms_stay_away():
    (report,), _ = hold_exam(
        Recipe(name="plain", fleets=(replace(FLEET, sizes=(), host="transformer", slots=1),)),
        [Never.__new__(type("Ours", (Never,), {"name": "ours"}))],
        ONE_RATE,
    )
    assert set(report.by_name) == {"ours", "never", "random", "heuristic"}
    epochs = replace(FLEET, env=EnvConfig(episode=2))
    assert {"doubling", "probe", "sweep"}.isdisjoint(a.name for a in admitted(sitting(env=epochs.env), "ours", []))
