"""The training loop: complete, reproducible reports, and no learning from values that are not finite."""

import dataclasses

import numpy as np
import pytest
import torch

from esper.leyline.actions import Head, Op
from esper.leyline.errors import EsperError
from esper.simic import CollectConfig, LearnConfig, Learner, PPOConfig, RentSchedule, RewardConfig, train_controller
from esper.simic.checkpoint import load_training_run, save_training_run
from esper.simic.normalizers import RunningMeanStd, update_reward_std
from esper.simic.ppo import PPOLosses, UpdateResult
from esper.simic.rollout import Collector, collect
from esper.simic.train import OCCUPIED, Training, outcomes, summarize
from small_fleets import controller_for, make_env


def fleets():
    return [
        make_env("mlp", 4, episode=3, group=2, staggered=True, rng_seed=1),
        make_env("cnn1d", 3, episode=5, staggered=True, rng_seed=2),
    ]


CONFIG = LearnConfig(updates=2, collect=CollectConfig(horizon=4))
NOTHING = torch.full((3,), torch.nan)


def without_times(report):
    return dataclasses.replace(report, seconds={})


def test_reports_are_complete_and_the_same_seed_gives_the_same_ones():
    runs = [[without_times(r) for r in train_controller(fleets(), controller_for(), CONFIG)] for _ in range(2)]
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
            known = [head.approx_kl, head.clip_fraction, head.entropy, head.ratio_min, head.ratio_max]
            assert all(x is None for x in known) == (head.samples == 0)
            assert head.grad_norm_clipped <= head.grad_norm + 1e-9


def test_reports_say_what_the_newest_episodes_of_every_setting_reached(tmp_path):
    """Each setting counts once, however many of its episodes end in an update, and none is forgotten by a stop."""
    config = dataclasses.replace(CONFIG, collect=CollectConfig(horizon=1))
    training, newest, mixes = Training(fleets(), controller_for(), config), {}, set()
    for update in range(12):
        if update % 4 == 3:
            save_training_run(tmp_path / "run", training)
            training = Training(fleets(), controller_for(), config)
            load_training_run(tmp_path / "run", training)
        report = training.step()
        ended = [[life for life in report.lives if (life.host < 4) == first] for first in (True, False)]
        newest |= {n: lives for n, lives in enumerate(ended) if lives}
        for name in ("objective", "score", "growth"):
            means = [np.mean([getattr(life, name) for life in lives]) for lives in newest.values()]
            expected = pytest.approx(np.mean(means), abs=1e-6) if len(means) == 2 else None
            assert getattr(report, name) == expected
        mixes.add(tuple(map(len, ended)))
    assert {(0, 0), (0, 1)} < mixes


def test_a_head_without_samples_says_none(rollouts):
    _, rollout, controller = rollouts()
    learner = Learner(controller, PPOConfig())
    waiting = rollout.choice.action.clone()
    waiting[..., Head.OP] = Op.WAIT
    waited = rollout._replace(choice=rollout.choice._replace(action=waiting))
    learned = learner.update(waited)
    report = summarize(0, outcomes(waited), NOTHING, waited.reward, learned, 0.0, {})
    assert [head.samples for head in report.heads] == [49] + 7 * [0]
    for head in report.heads[1:]:
        assert (head.approx_kl, head.clip_fraction, head.entropy, head.ratio_min, head.ratio_max) == (None,) * 5


@pytest.mark.parametrize("what", ["rewards", "host", "slots"])
def test_nonsense_is_not_learned_from(what, rollouts):
    _, rollout, controller = rollouts()
    learner = Learner(controller, PPOConfig())
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
    report = summarize(0, outcomes(broken), NOTHING, broken.reward, learned, 0.0, {})
    assert report.stopped == learned.stopped
    learner.update(rollout)
    assert not all(torch.equal(a, b) for a, b in zip(before, controller.parameters(), strict=True)), "it learns again"


def test_rewards_that_are_not_finite_leave_no_trace_in_their_scale(rollouts):
    _, rollout, _ = rollouts()
    scale = RunningMeanStd((), torch.device("cpu"))
    update_reward_std(scale, _with_a_nan(rollout.reward))
    assert scale.count == rollout.reward.numel() - 1
    assert scale.std.isfinite()


def test_an_update_learns_from_rewards_divided_by_their_deviation_so_far():
    """A rollout enters the statistics before the update; episodes that begin in an update pay its rent."""
    config = dataclasses.replace(CONFIG, rent=RentSchedule(start=0.1, end=0.5, updates=2), rng_seed=6)
    training = Training(fleets(), controller_for(), config)
    twin = controller_for()
    learner, gathered = Learner(twin, config.ppo, rng_seed=6), Collector(fleets(), twin, config.collect, rng_seed=6)
    gathered.begin(0.1)
    earned = []
    for rent in (0.1, 0.3, 0.5):
        report = training.step()
        rollout = collect(gathered, twin, rent, config.reward)
        earned.append(rollout.reward.double())
        normalized = rollout.reward / torch.cat(earned).std(correction=0).float()
        learner.update(rollout, normalized)
        assert report.rent == pytest.approx(rent)
        assert report.reward == pytest.approx(rollout.reward.mean().item(), rel=1e-4)
        assert report.reward_normalized == pytest.approx(normalized.mean().item(), rel=1e-4)
        for ours, theirs in zip(training.controller.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_a_report_says_what_happened():
    """Every number of a report, computed from a rollout and an update in which all numbers differ."""
    t, n, h = 2, 3, len(Head)
    at = torch.arange(t * n, dtype=torch.float32).view(t, n)
    by_head = {name: torch.arange(h) / 8 + 10 * i for i, name in enumerate(PPOLosses._fields)}
    found = PPOLosses(**by_head | {"value": torch.tensor(0.75)})
    samples = torch.tensor([6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 7.0, 0.0])
    returns = (at + 1).square()
    learned = UpdateResult(
        losses=found, samples=samples, returns=returns,
        advantage_mean=torch.tensor(0.1), advantage_std=torch.tensor(0.2),
        grad_norm=torch.tensor(8.0), grad_norm_clipped=torch.tensor(2.0), head_grad_norms=torch.arange(h) + 1.0,
        epochs=3, steps=4, stopped="why",
    )  # fmt: skip
    rollout = Collector([make_env("mlp", n, episode=9)], controller := controller_for(), CollectConfig(horizon=t))
    rollout.begin(0.0)
    played = collect(rollout, controller, 0.0, RewardConfig())
    action = torch.zeros(t, n, h, dtype=torch.long)
    action[0, :2, Head.OP], action[1, 2, Head.OP] = int(Op.PRUNE), int(Op.ADVANCE)
    ended = torch.tensor([[False, True, False], [False, False, True]])
    slots = played.seen.features.slots.clone()
    slots[..., OCCUPIED] = 0.0
    slots[0, :, 1, OCCUPIED[0]], slots[1, 0, 1, OCCUPIED[2]] = 1.0, 1.0
    played = played._replace(
        seen=played.seen._replace(features=played.seen.features._replace(slots=slots)),
        choice=played.choice._replace(action=action, value=at), reward=at / 10, ended=ended,
        sick=ended & torch.tensor([True, True, False]), objective=at + 100, score=at + 200, growth=at + 300,
    )  # fmt: skip
    report = summarize(5, outcomes(played), torch.tensor([0.5, 0.25, torch.nan]), at, learned, 0.3, {"collect": 1.5})
    assert (report.update, report.decisions, report.episodes, report.sick) == (5, 6, 2, 1)
    assert (report.objective, report.score, report.growth) == (0.5, 0.25, None)
    assert [dataclasses.astuple(life) for life in report.lives] == [
        (5, 1, 101.0, 201.0, 301.0, True), (5, 2, 105.0, 205.0, 305.0, False),
    ]  # fmt: skip
    assert (report.rent, report.epochs, report.steps, report.stopped) == (0.3, 3, 4, "why")
    assert (report.grad_norm, report.grad_norm_clipped, report.seconds) == (8.0, 2.0, {"collect": 1.5})
    assert report.reward == pytest.approx(0.25)
    assert report.reward_normalized == 2.5
    assert report.returns == pytest.approx(91 / 6)
    assert (report.advantage_mean, report.advantage_std) == (pytest.approx(0.1), pytest.approx(0.2))
    assert report.policy_loss == sum(by_head["policy"]).item()
    assert report.entropy == pytest.approx(sum(by_head["entropy"]).item() / h)
    assert report.approx_kl == sum(by_head["approx_kl"]).item()
    assert report.value_loss == 0.75
    assert report.explained_variance == pytest.approx(
        1 - np.var((returns - at).numpy()) / np.var(returns.numpy()), rel=1e-5
    )
    assert report.ops == {op.name: {Op.WAIT: 3, Op.PRUNE: 2, Op.ADVANCE: 1}.get(op, 0) for op in Op}
    assert report.occupancy == (0.0, pytest.approx(4 / 6))
    for i, (head, told) in enumerate(zip(Head, report.heads, strict=True)):
        assert (told.name, told.samples) == (head.name.lower(), int(samples[i]))
        assert (told.grad_norm, told.grad_norm_clipped) == (i + 1.0, (i + 1) / 4)
        measured = (told.approx_kl, told.clip_fraction, told.entropy, told.ratio_min, told.ratio_max)
        names = ("approx_kl", "clip_fraction", "entropy", "ratio_min", "ratio_max")
        assert measured == tuple(by_head[name][i].item() if samples[i] else None for name in names)


def test_rewards_and_advantages_share_one_discount():
    with pytest.raises(EsperError, match=r"reward\.gamma .* and ppo\.gamma"):
        LearnConfig(reward=RewardConfig(gamma=0.9))


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


def test_rewards_are_reported_as_earned_and_as_learned_from(rollouts):
    """D7: both, and only the normalised ones train."""
    _, rollout, _ = rollouts()
    ends = []
    for earned in (rollout, rollout._replace(reward=rollout.reward + 100.0)):
        twin = controller_for()
        learned = Learner(twin, PPOConfig()).update(earned, 0.5 * rollout.reward)
        report = summarize(0, outcomes(earned), NOTHING, 0.5 * rollout.reward, learned, 0.0, {})
        assert report.reward == pytest.approx(earned.reward.mean().item(), rel=1e-5)
        assert report.reward_normalized == pytest.approx(0.5 * rollout.reward.mean().item(), rel=1e-5)
        ends.append(list(twin.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
