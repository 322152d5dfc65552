"""The update, finding by finding."""

import pytest
import torch

from esper.leyline.actions import Head, Op
from esper.simic import CollectConfig, Learner, PPOConfig, RewardConfig
from esper.simic.ppo import REVIEWED, Lives, cut, loss, losses, select, totals
from esper.simic.rollout import Collector, collect
from small_fleets import controller_for, make_env


@pytest.fixture
def lives(collector) -> tuple[Lives, object]:
    controller = controller_for()
    rollout = collect(collector(controller), controller, 0.0, RewardConfig())
    advantage = torch.randn(rollout.reward.shape, generator=torch.Generator().manual_seed(0))
    return cut(rollout, advantage, rollout.reward, True, controller.blank(7, torch.device("cpu"))), controller


def test_decay_reaches_the_critic_alone_and_every_parameter_is_in_one_group():
    controller = controller_for()
    learner = Learner(controller, PPOConfig(weight_decay=0.1))
    groups = learner.optimizer.param_groups
    members = [id(p) for group in groups for p in group["params"]]
    assert sorted(members) == sorted(id(p) for p in controller.parameters())
    decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    assert decayed == {id(p) for p in controller.value.parameters()}


def test_value_clipping_takes_the_worse_of_both(lives):
    """Values that left the range around the old ones are judged at its edge, if that is worse."""
    lives, controller = lives
    value = controller.judge(lives.seen, lives.memory, lives.old.action).value.detach()
    old = lives.old._replace(value=value - 3.0)
    moved = lives._replace(old=old, returns=value)
    with pytest.warns(UserWarning, match="value_clip"):
        clipping = PPOConfig(value_clip=1.0)
    plain = losses(controller, moved, PPOConfig()).value
    clipped = losses(controller, moved, clipping).value
    assert plain.item() == pytest.approx(0.0, abs=1e-9)
    assert clipped.item() == pytest.approx(0.5 * 4.0 * lives.valid.sum().item(), rel=1e-5)


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"), [(1.5, 1.0, False), (1.5, -1.0, True), (0.5, -1.0, False), (0.5, 1.0, True)]
)
def test_beyond_the_clip_range_nothing_more_is_gained(lives, ratio, advantage, moves):
    """Further in the direction that paid: no gradient. Back from where it did not: the full one."""
    lives, controller = lives
    new = controller.judge(lives.seen, lives.memory, lives.old.action).log_probs.detach()
    shifted = lives.old._replace(log_probs=new - torch.tensor(ratio).log())
    lives = lives._replace(old=shifted, advantage=torch.full_like(lives.advantage, advantage))
    controller.zero_grad()
    losses(controller, lives, PPOConfig()).policy.sum().backward()
    assert any(p.grad.any() for p in controller.op.parameters()) == moves


def test_a_rare_head_gets_the_same_entropy_gradient_as_a_busy_one(lives):
    """The same germinations among few or many other decisions."""
    lives, controller = lives
    action = lives.old.action.clone()
    action[..., Head.OP] = Op.WAIT
    action[0, :2, Head.OP] = Op.GERMINATE
    action[..., Head.SLOT] = 0
    lives = lives._replace(old=lives.old._replace(action=action))
    few = select(lives, torch.arange(2))
    found = []
    for part in (few, lives):
        controller.zero_grad()
        entropy = losses(controller, part, PPOConfig()).entropy[Head.BLUEPRINT] / totals(part).heads[Head.BLUEPRINT]
        entropy.backward()
        found.append([p.grad.clone() for p in controller.blueprint_score.parameters()])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)
    assert any(g.any() for g in found[0])


def test_adding_irrelevant_decisions_changes_no_heads_policy_loss(lives):
    lives, controller = lives
    action = lives.old.action.clone()
    action[..., Head.OP] = Op.WAIT
    action[0, :2, Head.OP] = Op.GERMINATE
    lives = lives._replace(old=lives.old._replace(action=action))
    few = select(lives, torch.arange(2))
    means = [losses(controller, part, PPOConfig()).policy / totals(part).heads.clamp(min=1) for part in (few, lives)]
    torch.testing.assert_close(means[0][Head.BLUEPRINT], means[1][Head.BLUEPRINT])
    assert means[0][Head.ALPHA_SPEED] == 0


def test_minibatches_without_a_heads_decisions_do_not_dilute_what_is_reported_of_it(collector):
    """A policy that hardly moves: many small minibatches say what one large one says."""
    controller = controller_for()
    rollout = collect(collector(controller), controller, 0.0, RewardConfig())
    action = rollout.choice.action.clone()
    action[..., Head.OP] = Op.WAIT
    action[0, 0, Head.OP] = Op.GERMINATE
    rollout = rollout._replace(choice=rollout.choice._replace(action=action))
    found = [Learner(controller_for(), PPOConfig(lr=1e-9, epochs=1, minibatches=m)).update(rollout) for m in (1, 6)]
    assert found[0].samples[Head.BLUEPRINT] == found[1].samples[Head.BLUEPRINT] == 1
    torch.testing.assert_close(found[0].losses.entropy, found[1].losses.entropy, rtol=1e-4, atol=1e-4)


def test_the_loss_is_policy_plus_value_minus_entropy(lives):
    lives, controller = lives
    found, over = losses(controller, lives, PPOConfig()), totals(lives)
    config = PPOConfig(value_coef=0.7)
    policy = (found.policy / over.heads.clamp(min=1)).sum()
    entropy = (found.entropy / over.heads.clamp(min=1)).mean()
    value = found.value / over.decisions
    torch.testing.assert_close(loss(found, over, config, 0.3), policy + 0.7 * value - 0.3 * entropy)


def test_what_follows_a_rollout_is_expected_from_where_it_led():
    """Not from where its last decision was made: the observation, the masks and the memory after it."""
    controller = controller_for()
    fleets = Collector([make_env("mlp", 4, episode=9)], controller, CollectConfig(horizon=3))
    fleets.begin(0.0)
    rollout = collect(fleets, controller, 0.0, RewardConfig())
    with torch.no_grad():
        expected = controller.expect(fleets.observe(True), fleets.memory)
    torch.testing.assert_close(rollout.after[-1], expected)


def test_the_reviewed_systems_defaults_are_a_preset():
    config = PPOConfig(**REVIEWED)
    assert (config.clip, config.value_clip, config.value_coef) == (0.2, 10.0, 0.5)
    assert (config.target_kl, config.max_grad_norm, config.adam_eps) == (0.015, 0.5, 1e-5)
    assert (config.weight_decay, config.epochs, config.gamma, config.lam) == (0.0, 1, 0.995, 0.97)
    assert make_env("mlp", 1).config.episode == 25
