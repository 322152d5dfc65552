"""Rollouts of a scripted env against hand-computed rewards, ends and bootstrap values."""

import pytest
import torch
from torch import Tensor

from esper.leyline.actions import Head, Op
from esper.leyline.errors import EsperError
from esper.leyline.specs import HostSpec
from esper.leyline.state import Signals
from esper.simic import CollectConfig, LearnConfig, PPOConfig, RewardConfig
from esper.simic.advantages import subtract_group_mean
from esper.simic.rollout import MOST_DECISIONS, Collector, Rollout, collect, record, record_episodes
from esper.simic.train import Training
from esper.tamiyo.features import HOST_FEATURES, View, column_names, empty_history, features, remember
from esper.tamiyo.network import HiddenState, Observation, look
from esper.tamiyo.policies import FixedPlan, Never, PlanStep
from esper.tolaria import EnvConfig, Fleet, FleetEnv, TrainConfig
from esper.tolaria.env import Step
from small_fleets import begun, controller_for, make_env
from toys import toy_task

NOBODY, DIES, TIMED_OUT = "", "dies", "times out"
FATES = ((NOBODY, NOBODY, NOBODY), (DIES, NOBODY, NOBODY), (NOBODY, TIMED_OUT, NOBODY), (NOBODY, NOBODY, NOBODY))
"""Fate of three hosts at each of four decisions."""
PENALTY = 0.25


class Script(FleetEnv):
    """An env with scripted episodes in which all numbers differ."""

    def __init__(self) -> None:
        super().__init__(make_env("mlp", 3).fleet, EnvConfig(episode=9))
        self.blank, self.time, self.ages = super().reset(), 0, [0, 0, 0]
        self.with_group = [True, True, True]

    def reset(self) -> Signals:
        return self.numbers([0.05, 0.06, 0.07], [0.0, 0.0, 0.0])

    def numbers(self, score: list[float], growth: list[float]) -> Signals:
        return self.blank._replace(
            score=torch.tensor(score),
            growth=torch.tensor(growth),
            age=torch.tensor(self.ages),
            loss=torch.tensor(score),
            sibling=torch.tensor(self.with_group),
        )

    def step(self, actions: Tensor) -> Step:
        """Scores where decisions lead are 0.2 + 0.1 t + 0.01 n, growth 1 + t + n; of fresh hosts 0.01 (n + 1) and 0."""
        fate, t = FATES[self.time], self.time
        self.time, self.ages = t + 1, [age + 1 for age in self.ages]
        score, growth = [0.2 + 0.1 * t + 0.01 * n for n in range(3)], [1.0 + t + n for n in range(3)]
        final = self.numbers(score, growth)
        for n in range(3):
            if fate[n]:
                score[n], growth[n], self.ages[n] = 0.01 * (n + 1), 0.0, 0
                self.with_group[n] = fate[n] != DIES  # a terminated host is replaced alone
        died, timed_out = (torch.tensor([f == which for f in fate]) for which in (DIES, TIMED_OUT))
        none = torch.zeros(3, dtype=torch.bool)
        return Step(self.numbers(score, growth), final, PENALTY * died, none, died, timed_out)


def told(terminal: bool = True, rent: float = 0.3) -> tuple[Rollout, Collector]:
    """Collect a rollout; the first episodes pay a rent of 0.1, later ones `rent`."""
    controller = controller_for()
    fleets = begun([Script()], controller, rent=0.1, rng_seed=5, horizon=4, terminal=terminal)
    return collect(fleets, controller, rent, RewardConfig(gamma=0.9)), fleets


def test_every_decision_earns_what_it_led_to():
    """The reward is gamma * J after the decision - J before it, minus the penalty of a failed host."""
    rollout, _ = told()
    before = [0.05, 0.06, 0.07]
    rent = [0.1, 0.1, 0.1]
    for t in range(4):
        for n in range(3):
            j = 0.2 + 0.1 * t + 0.01 * n - rent[n] * torch.tensor(2.0 + t + n).log().item()
            penalty = PENALTY if FATES[t][n] == DIES else 0.0
            assert rollout.reward[t, n].item() == pytest.approx(0.9 * j - before[n] - penalty, abs=1e-6), (t, n)
            assert rollout.objective[t, n].item() == pytest.approx(j, abs=1e-6)
            assert rollout.score[t, n].item() == pytest.approx(0.2 + 0.1 * t + 0.01 * n)
            assert rollout.growth[t, n].item() == pytest.approx(1.0 + t + n)
            before[n], rent[n] = (0.01 * (n + 1), 0.3) if FATES[t][n] else (j, rent[n])
    assert rollout.sick.tolist() == [[f == DIES for f in fate] for fate in FATES]
    assert rollout.ended.tolist() == [[f != NOBODY for f in fate] for fate in FATES]
    assert rollout.start.tolist() == [[True] * 3, *([f != NOBODY for f in fate] for fate in FATES[:-1])]
    assert rollout.comparable.tolist() == [[True] * 3] * 2 + [[False, True, True]] * 2


def test_rent_is_fixed_for_life():
    rollout, fleets = told()
    told_rent = rollout.seen.features.host[..., column_names(HOST_FEATURES).index("rent")] / 10
    expected = [[0.1, 0.1, 0.1], [0.1, 0.1, 0.1], [0.3, 0.1, 0.1], [0.3, 0.3, 0.1]]
    torch.testing.assert_close(told_rent, torch.tensor(expected))
    torch.testing.assert_close(fleets.states[0].rent, torch.tensor([0.3, 0.3, 0.1]))


@pytest.mark.parametrize("terminal", [True, False])
def test_death_time_limit_and_a_cut_are_told_apart(terminal):
    """Termination is not bootstrapped; a time limit is, from the truncated host's final signals, unless it is terminal;
    the horizon is, from the observation after the last decision; elsewhere the next decision's value follows."""
    rollout, fleets = told(terminal)
    controller = controller_for()
    following = [*rollout.choice.value[1:].tolist(), expected_at_the_end(fleets, controller)]
    for t in range(4):
        for n in range(3):
            if FATES[t][n] == DIES or (FATES[t][n] == TIMED_OUT and terminal):
                expected = 0.0
            elif FATES[t][n] == TIMED_OUT:
                expected = expected_where_it_led(rollout, controller, t, n)
                assert abs(expected - following[t][n]) > 1e-4, "a fresh host would be worth something else"
            else:
                expected = following[t][n]
            assert rollout.after[t, n].item() == pytest.approx(expected, abs=1e-5), (t, n)


def expected_at_the_end(fleets: Collector, controller) -> list[float]:
    with torch.no_grad():
        return controller.expect(fleets.observe(), fleets.memory).tolist()


def expected_where_it_led(rollout: Rollout, controller, last: int, n: int) -> float:
    """Return the value of an episode's final signals, given its own decisions."""
    env = Script()
    history = remember(empty_history(3, torch.device("cpu")), env.reset(), torch.ones(3, dtype=torch.bool))
    for _ in range(last + 1):
        final = env.step(torch.zeros(3, len(Head), dtype=torch.long)).final
        history = remember(history, final, torch.zeros(3, dtype=torch.bool))
    view = View(final, history, env.setting, torch.full((3,), 0.1), torch.full((3,), torch.inf))
    memory = HiddenState(*(torch.zeros_like(x) for x in rollout.memory))
    with torch.no_grad():
        for t in range(last + 1):
            seen = rollout.seen
            x, _ = controller.read(type(seen.features)(*(part[t] for part in seen.features)), seen.exists[t])
            _, memory = controller.remember_one(x, memory)
        return controller.expect(Observation(*look(view), rollout.seen.blueprints[0]), memory)[n].item()


def test_what_is_seen_of_a_fresh_host_is_its_own():
    """History, score and rent of its predecessor are not observed."""
    rollout, _ = told()
    env = Script()
    env.time, env.ages = 1, [1, 1, 1]
    fresh = env.step(torch.zeros(3, len(Head), dtype=torch.long)).signals
    history = remember(empty_history(3, torch.device("cpu")), fresh, torch.ones(3, dtype=torch.bool))
    view = View(fresh, history, env.setting, torch.full((3,), 0.3), torch.full((3,), torch.inf))
    expected = features(view)
    torch.testing.assert_close(rollout.seen.features.host[2, 0], expected.host[0])
    assert not torch.allclose(rollout.seen.features.host[2, 1], expected.host[1]), "the others have a history"


def test_a_host_without_a_single_legal_choice_is_refused_before_anything_is_played():
    env = Script()
    env.blank = env.blank._replace(legal=env.blank.legal.clone())
    env.blank.legal[1] = False
    fleets = Collector([env], controller_for(), CollectConfig(horizon=2))
    with pytest.raises(EsperError, match="head 'op' has hosts without a single legal choice"):
        fleets.begin(0.0)


def test_groups_of_different_fleets_stay_apart():
    envs = [make_env("mlp", 4, group=2), make_env("cnn1d", 3), make_env("mlp", 4, group=2)]
    fleets = Collector(envs, controller_for(), CollectConfig())
    assert fleets.groups.tolist() == [0, 0, 1, 1, 2, 3, 4, 5, 5, 6, 6]


def test_luck_differs_by_host_decision_and_seed():
    envs = [make_env("mlp", 4)]
    collectors = [Collector(envs, controller_for(), CollectConfig(), rng_seed=seed) for seed in (5, 5, 6)]
    first, again, other = ([fleets.draws() for _ in range(2)] for fleets in collectors)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    rows = torch.cat([*first, *other])
    assert len(rows.unique(dim=0)) == len(rows) == 16
    assert all(len(row.unique()) == len(row) for row in rows)


def test_nothing_is_planted_beyond_the_budget():
    for budget, plants in ((1e-6, False), (100.0, True)):
        controller = controller_for()
        fleets = begun([make_env("mlp", 8, episode=4)], controller, horizon=3, budget=budget)
        assert fleets.observe().legal[:, Op.GERMINATE].any() == plants
        rollout = collect(fleets, controller, 0.0, RewardConfig())
        assert rollout.growth.any() == plants


def one_slot_env(hosts: int) -> FleetEnv:
    spec = HostSpec("mlp", (6,), 3, (8,))
    return FleetEnv(
        Fleet(spec, toy_task("mlp", 64, 32), range(hosts), TrainConfig(batch_size=32)), EnvConfig(episode=4)
    )


def test_fleets_of_unlike_hosts_are_padded_and_padding_is_never_chosen():
    envs, controller = [one_slot_env(12), make_env("cnn1d", 3, episode=4)], controller_for()
    sizes = [len(env.setting.space.blueprints) for env in envs]
    assert sizes[0] != sizes[1]
    fleets = begun(envs, controller, horizon=4)
    seen = fleets.observe()
    assert seen.exists.tolist() == [[True, False]] * 12 + [[True, True]] * 3
    assert not seen.legal[:12, :, 1].any()
    assert not seen.affordable[:12, 1].any()
    smaller = slice(12) if sizes[0] < sizes[1] else slice(12, None)
    assert not seen.affordable[smaller, :, min(sizes) :].any()
    assert not seen.blueprints[smaller, :, min(sizes) :].any()
    actions = collect(fleets, controller, 0.0, RewardConfig()).choice.action
    assert not actions[:, :12, Head.SLOT].any()
    assert actions[:, 12:, Head.SLOT].any()
    germinated = actions[..., Head.OP] == Op.GERMINATE
    for size, hosts in zip(sizes, (slice(12), slice(12, None)), strict=True):
        assert (actions[:, hosts, Head.BLUEPRINT][germinated[:, hosts]] < size).all()


def test_every_fleet_is_recorded_under_its_own_policy():
    """One fleet follows a plan in every episode, the other never grows; log-probabilities are 0."""
    envs = [make_env("mlp", 2, episode=2), make_env("cnn1d", 3, episode=2)]
    plan = FixedPlan([PlanStep(0, {"op": "GERMINATE", "slot": "s1", "blueprint": "mlp"})])
    fleets = begun(envs, controller_for(), horizon=4)
    rollout = record(fleets, [plan, Never()], 0.0, RewardConfig())
    ops = rollout.choice.action[..., Head.OP]
    assert ops.tolist() == [[Op.GERMINATE] * 2 + [Op.WAIT] * 3, [Op.WAIT] * 5] * 2
    assert (rollout.choice.action[[0, 2], :2, Head.SLOT] == 1).all()
    assert not rollout.choice.log_probs.any()
    assert not rollout.choice.value.any()
    assert not rollout.after.any()


def test_every_life_draws_its_price_and_keeps_it():
    """Of three, for each host anew, and the same again from the same seed."""
    prices, controller = (0.0, 0.25, 0.5), controller_for()
    told = []
    for rng_seed in (5, 5, 6):
        envs = [make_env("mlp", 30, episode=2), make_env("cnn1d", 10, episode=3)]
        fleets = begun(envs, controller, rent=9.0, rng_seed=rng_seed, horizon=12, prices=prices)
        rollout = collect(fleets, controller, 9.0, RewardConfig())
        told.append(rollout.seen.features.host[..., column_names(HOST_FEATURES).index("rent")] / 10)
    paid, again, other = told
    assert torch.equal(paid, again)
    assert not torch.equal(paid, other)
    for price in prices:
        assert 0.2 < (paid == price).float().mean() < 0.47
    assert torch.equal(paid[1:][~rollout.start[1:]], paid[:-1][~rollout.start[1:]]), "for life"
    changed = (paid[1:] != paid[:-1])[rollout.start[1:]].float().mean()
    assert 0.5 < changed < 0.83, "two of three new prices are others"
    j = rollout.score - other * rollout.growth.log1p()
    torch.testing.assert_close(rollout.objective, j)
    with pytest.raises(EsperError, match="prices must not be negative"):
        CollectConfig(prices=(0.0, -0.1))


def on_a_budget(hosts: int, group: int = 1, budget: float = 6) -> FleetEnv:
    return FleetEnv(make_env("mlp", hosts).fleet, EnvConfig(budget=budget, group=group))


def test_the_progress_that_is_paid_for_sums_up_to_what_was_reached():
    """Over a life on a budget, whatever its price and however long: J at the end - J at the beginning."""
    fleets = begun([on_a_budget(12)], controller_for(), horizon=14, prices=(0.0, 0.3))
    before = fleets.states[0]
    rollout = collect(fleets, controller_for(), 0.0, RewardConfig(gamma=1.0))
    assert len({int(n) for n in rollout.ended.float().argmax(0)}) > 1, "lives of different lengths"
    first = before.signals.score - before.rent * before.signals.growth.log1p()
    for n in range(12):
        last = int(rollout.ended[:, n].float().argmax())
        assert not rollout.sick[last, n]
        total = rollout.reward[: last + 1, n].sum().item()
        assert total == pytest.approx(rollout.objective[last, n].item() - first[n].item(), abs=1e-5)


def test_returns_are_not_discounted_on_a_budget():
    """Discounts per decision would reward hosts that grow, and so make fewer."""
    with pytest.raises(
        EsperError, match=r"gamma must be 1 where episodes have a budget, not 0\.995.*learn\.ppo\.gamma"
    ):
        Training([on_a_budget(2)], controller_for(), LearnConfig())
    with pytest.raises(EsperError, match="gamma must be 1"):
        record_episodes(on_a_budget(2), [Never()], controller_for(), 0.0, RewardConfig(), 0)
    Training([on_a_budget(2)], controller_for(), LearnConfig(ppo=PPOConfig(gamma=1.0), reward=RewardConfig(gamma=1.0)))
    Training([make_env("mlp", 2, episode=2)], controller_for(), LearnConfig())


def test_recorded_episodes_pay_the_price_of_their_policy():
    """Later lives of a host, too, which on a budget begin when the first is over; and they are worth what it says."""
    plan, prices = FixedPlan([PlanStep(0, {"op": "GERMINATE", "slot": "s0", "blueprint": "mlp"})]), (0.0, 0.1, 0.3)
    controller, rewards = controller_for(), RewardConfig(gamma=1.0)
    rollout = record_episodes(on_a_budget(6, group=3), [plan, Never(), plan], controller, prices, rewards, 0)
    paid = rollout.seen.features.host[..., column_names(HOST_FEATURES).index("rent")] / 10
    assert rollout.start[1:, 2].any(), "it grows, so that another life begins"
    rents = torch.tensor(prices * 2)
    torch.testing.assert_close(paid, rents.expand_as(paid))
    torch.testing.assert_close(rollout.objective, rollout.score - rents * rollout.growth.log1p())
    for i, (policy, price) in enumerate(zip((plan, Never(), plan), prices, strict=True)):
        alone = record_episodes(on_a_budget(2), [policy], controller, price, rewards, 0)
        first = alone.start.cumsum(0) == 1
        torch.testing.assert_close(rollout.reward[:, i::3].where(first, 0.0), alone.reward.where(first, 0.0))
    with pytest.raises(EsperError, match="one for each of the 3 policies, not 2 prices"):
        record_episodes(on_a_budget(3, group=3), [plan] * 3, controller, (0.0, 0.1), rewards, 0)


def test_siblings_pay_the_same_price_and_are_compared_life_by_life():
    """Four groups of three on a budget, over several lives: each life of a group has one price, at whatever time."""
    prices = (0.0, 0.1, 0.2, 0.3)
    fleets = begun([on_a_budget(12, group=3)], controller_for(), horizon=30, prices=prices)
    rollout = collect(fleets, controller_for(), 0.0, RewardConfig(gamma=1.0))
    paid = rollout.seen.features.host[..., column_names(HOST_FEATURES).index("rent")] / 10
    assert rollout.comparable.all()
    life, age = rollout.moment // MOST_DECISIONS, rollout.moment % MOST_DECISIONS
    assert torch.equal(age == 0, rollout.start)
    assert int((life[-1] - life[0]).min()) >= 2
    drawn = {}
    for t in range(30):
        for n in range(12):
            drawn.setdefault((n // 3, int(life[t, n])), set()).add(round(float(paid[t, n]), 6))
    assert all(len(of_life) == 1 for of_life in drawn.values())
    assert len(set.union(*drawn.values())) == 4, "lives and groups differ"
    aligned = (rollout.moment.view(30, 4, 3) == rollout.moment.view(30, 4, 3)[..., :1]).all()
    assert not aligned, "siblings drift apart"
    ones = subtract_group_mean(torch.ones_like(rollout.reward), rollout.groups, rollout.comparable, rollout.moment)
    assert (ones == 0).float().mean() > 0.7, "most decisions have a sibling's to compare with"
    later = collect(fleets, controller_for(), 0.0, RewardConfig(gamma=1.0))
    for _ in range(4):
        later = collect(fleets, controller_for(), 0.0, RewardConfig(gamma=1.0))
    ones = subtract_group_mean(torch.ones_like(later.reward), later.groups, later.comparable, later.moment)
    assert (ones == 0).float().mean() > 0.5, "and siblings do not lose each other"


def test_episodes_counted_in_epochs_are_compared_at_the_same_time():
    fleets = begun([make_env("mlp", 4, episode=2)], controller_for(), horizon=3)
    assert collect(fleets, controller_for(), 0.0, RewardConfig()).moment is None
