"""Candidate plans, successive halving, and comparisons in which only the policy differs."""

import pytest
import torch

from esper.leyline.actions import Op
from esper.leyline.errors import EsperError
from esper.simic.rewards import objective
from esper.simic.search import compare, pair_plans, random_plans, single_plans, successive_halving
from esper.tamiyo.features import View, empty_history
from esper.tamiyo.policies import FixedPlan, Heuristic, Never, PlanStep, RandomLegal, SideBySide
from small_fleets import make_env


def test_policies_that_do_the_same_fare_the_same_to_the_bit():
    """Hosts of a group have identical weights and see identical batches."""
    plan = FixedPlan([PlanStep(1, {"op": "GERMINATE", "slot": "s0", "blueprint": "mlp", "tempo": 3})])
    policies = [Never(), plan, Never(), RandomLegal()]
    never, planned, again, _ = compare(make_env("mlp", 12, episode=8, group=4), policies, rent=0.02)
    assert never.objective.shape == (3,)
    assert torch.equal(never.objective, again.objective)
    assert not torch.equal(never.score, planned.score)
    assert (planned.growth > 0).all()
    assert not never.growth.any()
    assert len(set(never.score.tolist())) > 1, "groups differ from each other"


def test_every_policy_gets_its_own_hosts():
    env = make_env("mlp", 6, episode=5, group=3)
    slots = [FixedPlan([PlanStep(0, {"op": "GERMINATE", "slot": slot})]) for slot in ("s0", "s1")]
    signals = env.reset()
    policy = SideBySide([*slots, Never()])
    policy.begin(env.setting, 6, torch.device("cpu"))
    flat = torch.zeros(6)
    view = View(signals, empty_history(6, torch.device("cpu")), env.setting, flat, flat + torch.inf)
    actions = policy.decide(view, torch.ones(6, dtype=torch.bool), torch.full((6, 99), 0.5))
    assert actions[:, :2].tolist() == [[Op.GERMINATE, 0], [Op.GERMINATE, 1], [Op.WAIT, 0]] * 2


def test_random_plans_are_legal_different_and_the_same_from_the_same_seed():
    setting = make_env("mlp", 2, episode=10).setting
    plans = random_plans(setting, 30, rng_seed=1)
    texts = [str(plan) for plan in plans]
    assert texts == [str(plan) for plan in random_plans(setting, 30, rng_seed=1)]
    assert len(set(texts)) == 30
    for plan in plans:
        plan.begin(setting, 1, torch.device("cpu"))
        born = {line.action["slot"]: line.decision for line in plan.plan if line.action["op"] == "GERMINATE"}
        assert max(born.values()) < 5, "in the first half"
        hurried = [line for line in plan.plan if line.action["op"] != "GERMINATE"]
        assert all((line.action["op"], line.decision) == ("ADVANCE", born[line.action["slot"]] + 2) for line in hurried)
    times = {line.decision for plan in plans for line in plan.plan if line.action["op"] == "GERMINATE"}
    assert times == set(range(5))
    with pytest.raises(EsperError, match="count must be at least 1"):
        random_plans(setting, 0)


def test_single_plans_are_all_of_them():
    setting = make_env("mlp", 2, episode=10).setting
    plans = single_plans(setting, (0, 5))
    assert len(plans) == 2 * len(setting.space.slots) * len(setting.space.blueprints)
    assert str(plans[0]) == f"0: GERMINATE s0 {setting.space.blueprints[0]}"


def test_groups_must_be_as_large_as_there_are_policies():
    with pytest.raises(EsperError, match=r"group \(1\) must equal the number of policies, 2"):
        compare(make_env("mlp", 4, episode=3), [Never(), Never()], rent=0.0)
    with pytest.raises(EsperError, match="policies must hold at least one"):
        SideBySide([])


def test_successive_halving_gives_the_better_quarter_four_times_as_many_hosts():
    asked = []

    def build(hosts: int, group: int, round: int):
        asked.append((hosts, group, round))
        return make_env("mlp", hosts * group, episode=2, group=group, rng_seed=round)

    plans = random_plans(build(1, 1, 0).setting, 9, rng_seed=2)
    asked.clear()
    (found,), episodes = successive_halving(build, plans, [0.02], room=10)
    assert asked == [(2, 5, 0), (2, 4, 0), (8, 1, 1), (8, 1, 1), (8, 1, 1)]
    assert episodes == 2 * 9 + 8 * 3
    halves = ((build(2, 5, 0), plans[:5]), (build(2, 4, 0), plans[5:]))
    means = [outcome.objective.mean() for env, part in halves for outcome in compare(env, part, 0.02)]
    better = [plans[i] for i in sorted(range(9), key=lambda i: -means[i])[:3]]
    means = [compare(build(8, 1, 1), [plan], 0.02)[0].objective.mean() for plan in better]
    assert found == [better[means.index(max(means))]]
    assert successive_halving(build, plans, [0.02], best=3, room=10)[0] == [better], "the best first"
    (four,), _ = successive_halving(build, plans, [0.02], best=4, room=10)
    assert four[:3] == better
    assert len(four) == 4, "a quarter would be too few"
    assert successive_halving(build, plans, [0.02], best=9) == ([plans], 0), "nothing to choose"


PRICES = (0.0, 0.05, 0.5)


class GrowsWhereCheap:
    """A policy that reads the rent, and grows where it is below 0.2."""

    name = "grows where cheap"

    def __init__(self) -> None:
        self.plan, self.rents = FixedPlan([PlanStep(0, {"op": "GERMINATE", "slot": "s1"})]), set()

    def begin(self, setting, num_hosts, device):
        self.plan.begin(setting, num_hosts, device)

    def decide(self, view, fresh, uniform):
        return torch.where(view.rent[:, None] < 0.2, self.plan.decide(view, fresh, uniform), self.plan.wait(view))


class Fails(Never):
    """A policy that never grows, and whose hosts all fail at the second decision."""

    env = None

    def decide(self, view, fresh, uniform):
        if view.signals.age[0] == 1:
            self.env.fleet.trunk.flat[self.place :: self.env.config.group] = torch.nan
        return super().decide(view, fresh, uniform)


def contest():
    """Return 16 policies, one that reads the rent and one that fails among them, and a builder of hosts for them."""
    fails, asked = Fails(), []

    def build(hosts: int, group: int, round: int):
        asked.append((hosts, group, round))
        fails.env = make_env("mlp", hosts * group, episode=8, group=group, rng_seed=round, penalty=0.02)
        return fails.env

    plans = random_plans(make_env("mlp", 1, episode=8).setting, 12, rng_seed=2)
    fails.place = 2  # the one that reads the rent stands behind it
    return [Never(), Heuristic(), fails, GrowsWhereCheap(), *plans], build, asked


def test_a_round_ranks_at_every_price_as_a_comparison_at_that_price():
    """From one life of each policy, failed ones included; those that read the rent live once at each price."""
    policies, build, asked = contest()
    found, episodes = successive_halving(build, policies, PRICES, best=15)
    assert asked == [(2, 18, 0)]
    assert episodes == 2 * 18
    orders = []
    for price, winners in zip(PRICES, found, strict=True):
        outcomes = compare(build(2, 16, 0), policies, price)
        assert [bool(outcome.sick.all()) for outcome in outcomes] == [isinstance(policy, Fails) for policy in policies]
        means = [outcome.objective.mean() for outcome in outcomes]
        orders.append(sorted(range(16), key=lambda i, means=means: -means[i])[:15])
        assert [policies.index(policy) for policy in winners] == orders[-1]
    assert len({tuple(order) for order in orders}) == 3, "prices matter"


@pytest.mark.parametrize("rng_seed", [0, 1, 4])
def test_what_is_left_at_one_price_counts_at_all_so_that_winners_grow_less_as_prices_rise(rng_seed):
    policies, asked, prices = random_plans(make_env("mlp", 1, episode=8).setting, 15, rng_seed), [], (0.0, *PRICES[1:])

    def build(hosts: int, group: int, round: int):
        asked.append((hosts, group, round))
        return make_env("mlp", hosts * group, episode=8, group=group, rng_seed=round)

    found, episodes = successive_halving(build, policies, prices)
    playing, left, grown, rounds = list(range(15)), [], [], list(asked)
    assert [hosts for hosts, _, _ in rounds] == [2, 8]
    assert episodes == sum(hosts * group for hosts, group, _ in rounds)
    for (hosts, group, round), count in zip(rounds, (4, 1), strict=True):
        assert group == len(playing)
        outcomes = compare(build(hosts, 15, round), policies, 0.0)
        means = [[objective(outcome, price).mean().item() for outcome in outcomes] for price in prices]
        left = [sorted(playing, key=lambda i, mean=mean: -mean[i])[:count] for mean in means]
        playing = sorted({i for those in left for i in those})
        grown = [outcome.growth.log1p().mean().item() for outcome in outcomes]
    assert [[policies.index(winner) for winner in winners] for winners in found] == left
    assert [grown[i] for (i,) in left] == sorted((grown[i] for (i,) in left), reverse=True)
    assert len({i for (i,) in left}) > 1, "prices matter"


def test_pairs_are_of_two_slots():
    setting = make_env("mlp", 2, episode=8).setting
    pairs = pair_plans(setting, (0, 2), 20, rng_seed=1)
    assert len(pairs) == 20
    assert all(len({line.action["slot"] for line in pair.plan}) == 2 for pair in pairs)
    assert [str(p) for p in pairs] == [str(p) for p in pair_plans(setting, (0, 2), 20, rng_seed=1)]
    every = pair_plans(setting, (0,), 10_000)
    assert len(every) == len(setting.space.blueprints) ** 2, "two slots, any blueprint in each"
