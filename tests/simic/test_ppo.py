"""The PPO update against a reference implementation and hand-computed terms."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import plain_ppo
from esper.leyline.actions import Head, Op
from esper.simic import Learner, PPOConfig, RewardConfig
from esper.simic.ppo import REVIEWED, decision_counts, head_grad_norms, loss, losses
from esper.simic.rollout import collect
from esper.simic.sequences import Sequences, select
from esper.tamiyo import Controller
from small_fleets import begun, controller_for, make_env, sequences_of


@pytest.fixture
def sequences(rollouts) -> tuple[Sequences, Controller]:
    _, rollout, controller = rollouts()
    advantage = torch.randn(rollout.reward.shape, generator=torch.Generator().manual_seed(0))
    return sequences_of(rollout, controller, advantage), controller


WEIGHTS = {
    head.name.lower(): weight for head, weight in zip(Head, (1.0, 3.0, 0.5, 2.0, 1.5, 4.0, 0.25, 1.0), strict=True)
}


@pytest.mark.parametrize(("recurrent", "group_baseline"), [(True, True), (False, False)])
def test_an_update_is_plain_ppo(rollouts, recurrent, group_baseline):
    """Two updates equal the reference implementation with every coefficient set: weights, gradients and numbers."""
    _, rollout, controller = rollouts(recurrent)
    rewards = 30.0 * rollout.reward + torch.linspace(-1, 1, rollout.reward.numel()).view_as(rollout.reward)
    config = PPOConfig(
        lr=0.01, lr_end=0.005, entropy_coef=0.1, entropy_end=0.02, anneal=2, gamma=0.9, lam=0.8, value_coef=0.7,
        clip=0.1, entropy_weights=WEIGHTS, max_grad_norm=0.4, minibatches=3, weight_decay=0.3, adam_eps=1e-3,
        group_baseline=group_baseline,
    )  # fmt: skip
    twin = controller_for(recurrent)
    critic = [p for name, p in twin.named_parameters() if name.startswith("value.")]
    actor = [p for name, p in twin.named_parameters() if not name.startswith("value.")]
    groups = [{"params": actor, "weight_decay": 0.0}, {"params": critic, "weight_decay": 0.3}]
    optimizer = torch.optim.AdamW(groups, lr=0.01, eps=1e-3)
    learner, generator = Learner(controller, config, rng_seed=4), torch.Generator().manual_seed(4)
    for lr, entropy_coef in ((0.01, 0.1), (0.0075, 0.06)):
        for group in optimizer.param_groups:
            group["lr"] = lr
        expected = plain_ppo.update(twin, optimizer, rollout, rewards, config, generator, entropy_coef)
        found = learner.update(rollout, rewards)
        assert expected.grad_norm > expected.grad_norm_clipped
        assert (found.epochs, found.steps, found.stopped) == (2, 6, None)
        for name in ("grad_norm", "grad_norm_clipped", "head_grad_norms", "samples", "advantage_mean", "advantage_std"):
            assert getattr(found, name).tolist() == pytest.approx(getattr(expected, name), rel=1e-3, abs=1e-6), name
        assert found.losses.approx_kl.tolist() == pytest.approx(expected.approx_kl, rel=1e-2, abs=1e-6)
        for (name, ours), theirs in zip(controller.named_parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=2e-5, msg=f"gradient of {name}")
            torch.testing.assert_close(ours, theirs, rtol=0, atol=5e-5, msg=name)


def test_losses_are_the_sums_of_every_decision_and_head(sequences):
    """Computed decision by decision and head by head, with old probabilities that are far away."""
    sequences, controller = sequences
    generator = torch.Generator().manual_seed(1)
    shape = sequences.old.log_probs.shape
    sequences = sequences._replace(
        old=sequences.old._replace(log_probs=sequences.old.log_probs + torch.randn(shape, generator=generator))
    )
    config = PPOConfig(value_clip=0.05, epochs=1, entropy_floor=0.03)
    with torch.no_grad():
        new, found = (
            controller.judge(sequences.seen, sequences.memory, sequences.old.action),
            losses(controller, sequences, config, 0.02),
        )
    sums = {name: [0.0] * len(Head) for name in ("policy", "entropy", "entropy_bonus", "approx_kl", "clip_fraction")}
    ratios: list[list[float]] = [[] for _ in Head]
    value = 0.0
    for t, q in sequences.valid.nonzero().tolist():
        goal, old = sequences.returns[t, q], sequences.old.value[t, q]
        near = old + (new.value[t, q] - old).clamp(-0.05, 0.05)
        value += 0.5 * max((new.value[t, q] - goal) ** 2, (near - goal) ** 2).item()
        for head in Op(int(sequences.old.action[t, q, Head.OP])).heads:
            ratio = (new.log_probs[t, q, head] - sequences.old.log_probs[t, q, head]).exp().item()
            advantage = sequences.advantage[t, q].item()
            sums["policy"][head] -= min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage)
            sums["entropy"][head] += new.entropy[t, q, head].item()
            floor = 0.03 * min(1 / new.legal[t, q, head].item(), 3.0)
            sums["entropy_bonus"][head] += max(floor, 0.02) * new.entropy[t, q, head].item()
            sums["approx_kl"][head] += ratio - 1 - math.log(ratio)
            sums["clip_fraction"][head] += not 0.8 <= ratio <= 1.2
            ratios[head].append(ratio)
    for name, expected in sums.items():
        assert getattr(found, name).tolist() == pytest.approx(expected, rel=1e-3, abs=1e-4), name
    assert found.value.item() == pytest.approx(value, rel=1e-4)
    assert found.ratio_min.tolist() == pytest.approx([min(seen, default=math.inf) for seen in ratios], rel=1e-4)
    assert found.ratio_max.tolist() == pytest.approx([max(seen, default=-math.inf) for seen in ratios], rel=1e-4)


def test_an_update_stops_before_the_step_once_kl_exceeds_its_budget(rollouts):
    """The KL of all relevant heads together, against 1.5 times the target; what was seen is reported all the same."""
    _, rollout, _ = rollouts()
    far = rollout._replace(choice=rollout.choice._replace(log_probs=rollout.choice.log_probs - 0.3))
    heads = {head for op in rollout.choice.action[..., Head.OP].flatten().tolist() for head in Op(op).heads}
    kl = len(heads) * (math.exp(0.3) - 1 - 0.3)
    for share, stops in ((1.4, False), (1.6, True)):
        controller = controller_for()
        before = [p.clone() for p in controller.parameters()]
        found = Learner(controller, PPOConfig(target_kl=kl / share, epochs=1, minibatches=1)).update(far)
        unmoved = all(torch.equal(a, b) for a, b in zip(before, controller.parameters(), strict=True))
        assert (unmoved, found.stopped is not None, found.steps) == (stops, stops, 1 - stops)
        assert found.losses.approx_kl.sum().item() == pytest.approx(kl, rel=1e-3)
        assert found.losses.ratio_max[Head.OP].item() == pytest.approx(math.exp(0.3), rel=1e-3)
        assert found.grad_norm > 0
    controller = controller_for()
    before = [p.clone() for p in controller.parameters()]
    found = Learner(controller, PPOConfig(target_kl=1e-3, minibatches=3)).update(far)
    assert "target_kl" in (found.stopped or "")
    assert (found.epochs, found.steps) == (1, 0)
    assert all(torch.equal(a, b) for a, b in zip(before, controller.parameters(), strict=True))


@pytest.mark.parametrize("head", Head)
def test_gradient_norms_are_those_of_each_head(head):
    controller = controller_for()
    for p in controller.parameters():
        p.grad = torch.zeros_like(p)
    own = {Head.OP: "op.0.weight", Head.SLOT: "slot_score.out.weight", Head.BLUEPRINT: "blueprint_score.item.bias"}
    first_row = {Head.STYLE: 0, Head.TEMPO: 4, Head.ALPHA_TARGET: 7, Head.ALPHA_SPEED: 10, Head.ALPHA_CURVE: 14}
    place = controller.get_parameter(own.get(head, "tail.2.weight")).grad
    place.view(-1)[place[0].numel() * first_row.get(head, 0)] = 3.0
    assert head_grad_norms(controller).tolist() == [3.0 * (other is head) for other in Head]


def test_every_parameter_is_in_one_group():
    controller = controller_for()
    members = [p for group in Learner(controller, PPOConfig()).optimizer.param_groups for p in group["params"]]
    assert len(members) == len(list(controller.parameters()))
    assert set(members) == set(controller.parameters())


def test_value_clipping_takes_the_worse_of_both(sequences):
    """A value outside of the clip range is evaluated at its edge, if that error is larger."""
    sequences, controller = sequences
    value = controller.judge(sequences.seen, sequences.memory, sequences.old.action).value.detach()
    old = sequences.old._replace(value=value - 3.0)
    moved = sequences._replace(old=old, returns=value)
    with pytest.warns(UserWarning, match="value_clip"):
        clipping = PPOConfig(value_clip=1.0)
    plain = losses(controller, moved, PPOConfig(), 0.01).value
    clipped = losses(controller, moved, clipping, 0.01).value
    assert plain.item() == pytest.approx(0.0, abs=1e-9)
    assert clipped.item() == pytest.approx(0.5 * 4.0 * sequences.valid.sum().item(), rel=1e-5)


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"), [(1.5, 1.0, False), (1.5, -1.0, True), (0.5, -1.0, False), (0.5, 1.0, True)]
)
def test_beyond_the_clip_range_nothing_more_is_gained(sequences, ratio, advantage, moves):
    """Moving further in the improving direction has no gradient; moving back has the full one."""
    sequences, controller = sequences
    new = controller.judge(sequences.seen, sequences.memory, sequences.old.action).log_probs.detach()
    shifted = sequences.old._replace(log_probs=new - torch.tensor(ratio).log())
    sequences = sequences._replace(old=shifted, advantage=torch.full_like(sequences.advantage, advantage))
    controller.zero_grad()
    losses(controller, sequences, PPOConfig(), 0.01).policy.sum().backward()
    assert any(p.grad.any() for p in controller.op.parameters()) == moves


def test_a_rare_head_gets_the_same_entropy_gradient_as_a_busy_one(sequences):
    """The same germinations among few or many other decisions."""
    sequences, controller = sequences
    action = sequences.old.action.clone()
    action[..., Head.OP] = Op.WAIT
    action[0, :2, Head.OP] = Op.GERMINATE
    action[..., Head.SLOT] = 0
    sequences = sequences._replace(old=sequences.old._replace(action=action))
    few = select(sequences, torch.arange(2))
    found = []
    for part in (few, sequences):
        controller.zero_grad()
        entropy = (
            losses(controller, part, PPOConfig(), 0.01).entropy[Head.BLUEPRINT]
            / decision_counts(part).heads[Head.BLUEPRINT]
        )
        entropy.backward()
        found.append([p.grad.clone() for p in controller.blueprint_score.parameters()])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)
    assert any(g.any() for g in found[0])


def test_adding_irrelevant_decisions_changes_no_heads_policy_loss(sequences):
    sequences, controller = sequences
    action = sequences.old.action.clone()
    action[..., Head.OP] = Op.WAIT
    action[0, :2, Head.OP] = Op.GERMINATE
    sequences = sequences._replace(old=sequences.old._replace(action=action))
    few = select(sequences, torch.arange(2))
    means = [
        losses(controller, part, PPOConfig(), 0.01).policy / decision_counts(part).heads.clamp(min=1)
        for part in (few, sequences)
    ]
    torch.testing.assert_close(means[0][Head.BLUEPRINT], means[1][Head.BLUEPRINT])
    assert means[0][Head.ALPHA_SPEED] == 0


def test_minibatches_without_a_heads_decisions_do_not_dilute_what_is_reported_of_it(rollouts):
    """With a tiny learning rate, many small minibatches report what one large one does."""
    _, rollout, _ = rollouts()
    action = rollout.choice.action.clone()
    action[..., Head.OP] = Op.WAIT
    action[0, 0, Head.OP] = Op.GERMINATE
    rollout = rollout._replace(choice=rollout.choice._replace(action=action))
    found = [Learner(controller_for(), PPOConfig(lr=1e-9, epochs=1, minibatches=m)).update(rollout) for m in (1, 6)]
    assert found[0].samples[Head.BLUEPRINT] == found[1].samples[Head.BLUEPRINT] == 1
    torch.testing.assert_close(found[0].losses.entropy, found[1].losses.entropy, rtol=1e-4, atol=1e-4)


def test_a_learning_rate_that_falls_to_nothing_ends_learning(rollouts):
    _, rollout, controller = rollouts()
    learner = Learner(controller, PPOConfig(lr_end=0.0, anneal=2))
    moved = []
    for _ in range(3):
        before = {name: weight.clone() for name, weight in controller.state_dict().items()}
        learner.update(rollout)
        moved.append(sum(float((w - before[name]).abs().sum()) for name, w in controller.state_dict().items()))
    assert moved[0] > moved[1] > moved[2] == 0


def test_the_loss_is_policy_plus_value_minus_entropy(sequences):
    sequences, controller = sequences
    found, counts = losses(controller, sequences, PPOConfig(), 0.3), decision_counts(sequences)
    config = PPOConfig(value_coef=0.7)
    policy = (found.policy / counts.heads.clamp(min=1)).sum()
    entropy = (found.entropy / counts.heads.clamp(min=1)).mean()
    value = found.value / counts.decisions
    torch.testing.assert_close(loss(found, counts, config), policy + 0.7 * value - 0.3 * entropy)


def test_what_follows_a_rollout_is_expected_from_where_it_led():
    """The bootstrap uses the observation, masks and hidden state after the last decision."""
    controller = controller_for()
    fleets = begun([make_env("mlp", 4, episode=9)], controller, horizon=3)
    rollout = collect(fleets, controller, 0.0, RewardConfig())
    with torch.no_grad():
        expected = controller.expect(fleets.observe(), fleets.memory)
    torch.testing.assert_close(rollout.after[-1], expected)


def test_the_reviewed_systems_defaults_are_a_preset():
    config = PPOConfig(**REVIEWED)
    assert (config.clip, config.value_clip, config.value_coef) == (0.2, 10.0, 0.5)
    assert (config.target_kl, config.max_grad_norm, config.adam_eps) == (0.015, 0.5, 1e-5)
    assert (config.weight_decay, config.epochs, config.gamma, config.lam) == (0.0, 1, 0.995, 0.97)
    assert make_env("mlp", 1).config.episode == 25


@pytest.mark.parametrize(("legal", "coefficient"), [(1.0, 0.02), (1 / 2, 0.04), (1 / 13, 0.06)])
def test_the_entropy_floor_rises_as_choices_shrink_up_to_three_times(legal, coefficient):
    config = PPOConfig(entropy_floor=0.02)
    share = torch.full((2, 3, len(Head)), legal)
    torch.testing.assert_close(config.floor_entropy_coef(0.01, share), torch.full_like(share, coefficient))
    torch.testing.assert_close(config.floor_entropy_coef(1.0, share), torch.ones_like(share))
    assert PPOConfig().floor_entropy_coef(0.01, share) == 0.01


def test_one_legal_choice_has_no_entropy_to_raise(sequences):
    sequences, controller = sequences
    legal = sequences.seen.legal.clone()
    legal[..., Op.WAIT + 1 :, :] = False
    waiting = sequences.old.action.clone()
    waiting[..., Head.OP] = Op.WAIT
    sequences = sequences._replace(
        seen=sequences.seen._replace(legal=legal), old=sequences.old._replace(action=waiting)
    )
    found = losses(controller, sequences, PPOConfig(entropy_floor=0.5), 0.0)
    assert found.entropy_bonus[Head.OP] == 0
    controller.zero_grad()
    found.entropy_bonus.sum().backward()
    assert not any(p.grad.any() for p in controller.op.parameters())


def test_a_floor_reaches_the_gradient(sequences):
    sequences, controller = sequences
    gradients = []
    for config in (PPOConfig(), PPOConfig(entropy_floor=0.5)):
        controller.zero_grad()
        losses(controller, sequences, config, 0.0).entropy_bonus.sum().backward()
        gradients.append(sum(p.grad.abs().sum() for p in controller.op.parameters()).item())
    assert gradients[0] == 0 < gradients[1]


COMPILED = """
import torch
from esper.simic import CollectConfig, Learner, PPOConfig, RewardConfig
from esper.simic.rollout import Collector, collect
from small_fleets import begun, controller_for, make_env, sequences_of

ends = []
for backend in (None, "eager"):
    controller = controller_for()
    fleets = begun([make_env("mlp", 4, episode=3, staggered=True)], controller, horizon=4)
    rollout = collect(fleets, controller, 0.0, RewardConfig())
    learner = Learner(controller, PPOConfig(compile=backend, minibatches=1))
    assert (learner.losses is not None) and (backend is None or hasattr(learner.losses, "_torchdynamo_orig_callable"))
    learner.update(rollout)
    ends.append([p.detach().clone() for p in controller.parameters()])
for a, b in zip(*ends):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
"""


def test_a_compiled_update_agrees_with_an_eager_one():
    """In a process of its own: the type checks of the tests cannot be compiled."""
    tests = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", COMPILED], cwd=tests, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
