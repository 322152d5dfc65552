"""The loop: reports with every field filled, the same from the same seed, and nothing learned from nonsense."""

import dataclasses

import pytest
import torch

from esper.leyline.actions import Head, Op
from esper.leyline.errors import EsperError
from esper.simic import CollectConfig, LearnConfig, Learner, PPOConfig, RewardConfig, train
from esper.simic.normalizers import Running, spread
from esper.simic.rollout import Collector, collect
from esper.simic.train import summarize
from small_fleets import controller_for, make_env


def fleets():
    return [
        make_env("mlp", 4, episode=3, group=2, staggered=True, rng_seed=1),
        make_env("cnn1d", 3, episode=5, staggered=True, rng_seed=2),
    ]


CONFIG = LearnConfig(updates=2, collect=CollectConfig(horizon=4))


def without_times(report):
    return dataclasses.replace(report, seconds={})


def test_reports_are_complete_and_the_same_seed_gives_the_same_ones():
    runs = [[without_times(r) for r in train(fleets(), controller_for(), CONFIG)] for _ in range(2)]
    assert runs[0] == runs[1]
    for update, report in enumerate(runs[0]):
        assert report.update == update
        assert report.decisions == 4 * 7 == sum(report.ops.values())
        assert set(report.ops) == {op.name for op in Op}
        assert [head.name for head in report.heads] == [head.name.lower() for head in Head]
        assert report.heads[Head.OP].samples == 28
        assert report.episodes > 0
        assert 0 <= report.score <= 1
        assert report.steps == 8
        assert report.stopped is None
        for head in report.heads:
            known = [head.kl, head.clip_fraction, head.entropy, head.ratio_min, head.ratio_max]
            assert all(x is None for x in known) == (head.samples == 0)
            assert head.gradient_clipped <= head.gradient + 1e-9


def test_a_head_without_samples_says_none():
    controller = controller_for()
    learner = Learner(controller, PPOConfig())
    gathered = Collector(fleets(), controller, CollectConfig(horizon=3))
    gathered.begin(0.0)
    rollout = collect(gathered, controller, 0.0, RewardConfig())
    waiting = rollout.choice.action.clone()
    waiting[..., Head.OP] = Op.WAIT
    learned = learner.update(rollout._replace(choice=rollout.choice._replace(action=waiting)))
    assert learned.samples[Head.OP] == 21
    assert not learned.samples[Head.SLOT :].any()


def test_a_small_kl_budget_stops_an_update_and_says_why():
    config = dataclasses.replace(CONFIG, ppo=PPOConfig(target_kl=1e-9, epochs=4, lr=0.05))
    first = next(iter(train(fleets(), controller_for(), config)))
    assert "target_kl" in first.stopped
    assert first.steps < 16
    assert first.kl > 0


@pytest.mark.parametrize("terminal", [True, False])
def test_the_end_of_a_life_is_worth_nothing_or_what_would_have_followed(terminal):
    controller = controller_for()
    gathered = Collector(fleets(), controller, CollectConfig(horizon=6, terminal=terminal))
    gathered.begin(0.0)
    rollout = collect(gathered, controller, 0.0, RewardConfig())
    assert rollout.ended.any()
    assert (rollout.after[rollout.ended] == 0).all() == terminal
    going_on = ~rollout.ended[:-1]
    assert torch.equal(rollout.after[:-1][going_on], rollout.choice.value[1:][going_on])


@pytest.mark.parametrize("what", ["rewards", "host", "slots"])
def test_nonsense_is_not_learned_from(what):
    controller = controller_for()
    learner = Learner(controller, PPOConfig())
    gathered = Collector(fleets(), controller, CollectConfig(horizon=3))
    gathered.begin(0.0)
    rollout = collect(gathered, controller, 0.0, RewardConfig())
    before = [p.clone() for p in controller.parameters()]
    if what == "rewards":
        broken = rollout._replace(reward=_with_a_nan(rollout.reward))
    else:
        features = rollout.seen.features
        features = features._replace(**{what: _with_a_nan(getattr(features, what))})
        broken = rollout._replace(seen=rollout.seen._replace(features=features))
    learned = learner.update(broken)
    assert learned.stopped is not None
    assert what in learned.stopped
    assert learned.steps == 0
    assert all(torch.equal(a, b) for a, b in zip(before, controller.parameters(), strict=True))
    report = summarize(0, broken, broken.reward, learned, 0.0, {})
    assert report.stopped == learned.stopped
    learner.update(rollout)
    assert not all(torch.equal(a, b) for a, b in zip(before, controller.parameters(), strict=True)), "life goes on"


def test_rewards_that_are_not_finite_leave_no_trace_in_their_scale():
    gathered = Collector(fleets(), controller := controller_for(), CollectConfig(horizon=3))
    gathered.begin(0.0)
    rollout = collect(gathered, controller, 0.0, RewardConfig())
    scale = Running((), torch.device("cpu"))
    spread(scale, _with_a_nan(rollout.reward))
    assert scale.count == rollout.reward.numel() - 1
    assert scale.std.isfinite()


def test_a_rollout_is_in_the_scale_of_rewards_before_it_is_learned_from():
    """D1: one defined point. Features need no statistics: they are ratios by themselves, stored as they were seen."""
    controller = controller_for()
    gathered = Collector(fleets(), controller, CollectConfig(horizon=3))
    gathered.begin(0.0)
    rollout = collect(gathered, controller, 0.0, RewardConfig())
    scale = Running((), torch.device("cpu"))
    divided = rollout.reward / spread(scale, rollout.reward)
    assert divided.std(unbiased=False).item() == pytest.approx(1.0, rel=1e-3)


def _with_a_nan(x):
    x = x.clone()
    x[1, 2] = torch.nan
    return x


BAD = {
    "clip must be positive": {"clip": 0.0},
    "gamma must be above 0 and at most 1": {"gamma": 1.5},
    "unknown head 'opp'": {"entropy_weights": {"opp": 1.0}},
    "every head needs a value": {"entropy_weights": {"op": 1.0}},
    "entropy_coef must not be negative": {"entropy_coef": -0.1},
}


@pytest.mark.parametrize("message", BAD)
def test_impossible_configs_fail_with_the_fields_name(message):
    with pytest.raises(EsperError, match=message):
        PPOConfig(**BAD[message])


@pytest.mark.parametrize(
    ("field", "value"), [("gamma", 0.5), ("clip", 0.4), ("entropy_coef", 0.5), ("value_clip", 10.0)]
)
def test_unusual_configs_warn(field, value):
    with pytest.warns(UserWarning, match="unusual"):
        PPOConfig(**{field: value})


def test_entropy_coefficient_and_learning_rate_anneal():
    config = PPOConfig(entropy_coef=0.04, entropy_end=0.0, lr=0.04, lr_end=0.02, anneal=10)
    assert [config.entropy_at(update) for update in (0, 5, 10, 99)] == [0.04, 0.02, 0.0, 0.0]
    assert [config.lr_at(update) for update in (0, 5, 10, 99)] == [0.04, 0.03, 0.02, 0.02]
    assert PPOConfig(lr=0.04, anneal=10).lr_at(99) == 0.04


def test_a_rollout_holds_exactly_its_horizon():
    """C8: nothing is written into a buffer, so nothing can be written beyond its end."""
    controller = controller_for()
    gathered = Collector(fleets(), controller, CollectConfig(horizon=3))
    gathered.begin(0.0)
    for _ in range(2):
        rollout = collect(gathered, controller, 0.0, RewardConfig())
        assert {len(x) for x in (rollout.reward, rollout.ended, rollout.choice.action, rollout.seen.legal)} == {3}


def test_rewards_are_reported_as_earned_and_as_learned_from():
    """D7: both, and only the normalised ones train."""
    controller = controller_for()
    gathered = Collector(fleets(), controller, CollectConfig(horizon=3))
    gathered.begin(0.0)
    rollout = collect(gathered, controller, 0.0, RewardConfig())
    ends = []
    for earned in (rollout, rollout._replace(reward=rollout.reward + 100.0)):
        twin = controller_for()
        learned = Learner(twin, PPOConfig()).update(earned, 0.5 * rollout.reward)
        report = summarize(0, earned, 0.5 * rollout.reward, learned, 0.0, {})
        assert report.reward == pytest.approx(earned.reward.mean().item(), rel=1e-5)
        assert report.reward_normalized == pytest.approx(0.5 * rollout.reward.mean().item(), rel=1e-5)
        ends.append(list(twin.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
