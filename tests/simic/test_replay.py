"""Replaying sequences reproduces the stored log-probabilities and values; padding and unused heads do not matter."""

import pytest
import torch

from esper.leyline.actions import Head, Op
from esper.simic import PPOConfig
from esper.simic.ppo import Learner, losses
from esper.simic.sequences import sequence_indices
from esper.tamiyo.masks import relevant
from small_fleets import controller_for, sequences_of


@pytest.mark.parametrize("recurrent", [True, False])
def test_replay_gives_back_what_was_stored_while_acting(rollouts, recurrent):
    """Two consecutive rollouts: episodes are cut by the first one and continue in the second."""
    *both, controller = rollouts(recurrent)
    for rollout in both:
        sequences = sequences_of(rollout, controller)
        new = controller.judge(sequences.seen, sequences.memory, sequences.old.action)
        ratio = (new.log_probs - sequences.old.log_probs).exp()
        assert ((ratio - 1).abs().where(sequences.valid[..., None], 0) <= 1e-5).all()
        assert ((new.value - sequences.old.value).abs().where(sequences.valid, 0) <= 1e-6).all()


def test_every_decision_is_in_exactly_one_sequence(rollouts):
    _, rollout, _ = rollouts()
    t, n, valid = sequence_indices(rollout, whole=True)
    seen = torch.zeros_like(rollout.ended, dtype=torch.long)
    seen.index_put_((t[valid], n[valid]), torch.ones(int(valid.sum()), dtype=torch.long), accumulate=True)
    assert (seen == 1).all()
    assert not rollout.start[t[1:][valid[1:]], n[1:][valid[1:]]].any(), "no sequence continues into the next episode"


def test_every_epoch_holds_each_sequence_once():
    learner = Learner(controller_for(), PPOConfig(minibatches=3, epochs=2))
    parts = list(learner.minibatches(10))
    assert len(parts) == 6
    first, second = torch.cat(parts[:3]).tolist(), torch.cat(parts[3:]).tolist()
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


def test_shuffles_are_the_learners_own():
    """Shuffles depend on the learner's seed alone, and leave the global generator untouched."""
    before = torch.get_rng_state()
    orders = []
    for rng_seed in (1, 1, 2):
        torch.manual_seed(rng_seed + len(orders))
        learner = Learner(controller_for(), PPOConfig(), rng_seed)
        state = torch.get_rng_state()
        orders.append(torch.cat(list(learner.minibatches(20))).tolist())
        assert torch.equal(torch.get_rng_state(), state)
    torch.set_rng_state(before)
    assert orders[0] == orders[1] != orders[2]


def test_a_policy_without_memory_learns_from_single_decisions(rollouts):
    _, rollout, _ = rollouts(recurrent=False)
    t, n, valid = sequence_indices(rollout, whole=False)
    assert valid.shape == (1, 49)
    assert valid.all()
    assert sorted(zip(t[0].tolist(), n[0].tolist(), strict=True)) == [(t, n) for t in range(7) for n in range(7)]


def test_pieces_of_a_minibatch_keep_less_in_memory(rollouts):
    _, rollout, controller = rollouts()
    sequences = sequences_of(rollout, controller)
    largest = {}
    for pieces in (1, 5):
        kept = [0]
        with torch.autograd.graph.saved_tensors_hooks(lambda x, kept=kept: kept.append(x.numel()) or x, lambda x: x):
            Learner(controller, PPOConfig(accumulate=pieces)).step(sequences)
        largest[pieces] = max(kept)
    assert largest[5] < largest[1] / 3


def gradients(controller, sequences, config):
    controller.zero_grad()
    found = losses(controller, sequences, config, 0.01)
    (found.policy.sum() + found.value - found.entropy.sum()).backward()
    return [p.grad.clone() for p in controller.parameters()]


def test_poisoned_padding_changes_no_bit_of_any_gradient(rollouts):
    config, (_, rollout, controller) = PPOConfig(), rollouts()
    sequences = sequences_of(rollout, controller)
    clean = gradients(controller, sequences, config)
    assert not sequences.valid.all()
    poison = sequences.advantage.masked_fill(~sequences.valid, torch.nan)
    returns = sequences.returns.masked_fill(~sequences.valid, torch.nan)
    log_probs = sequences.old.log_probs.masked_fill(~sequences.valid[..., None], torch.nan)
    value = sequences.old.value.masked_fill(~sequences.valid, torch.inf)
    old = sequences.old._replace(log_probs=log_probs, value=value)
    ill = sequences._replace(advantage=poison, returns=returns, old=old)
    assert all(torch.equal(a, b) for a, b in zip(clean, gradients(controller, ill, config), strict=True))


def test_heads_that_the_op_does_not_listen_to_change_no_bit(rollouts):
    """Other choices and poisoned probabilities of irrelevant heads: the same gradients."""
    config, (_, rollout, controller) = PPOConfig(), rollouts()
    sequences = sequences_of(rollout, controller)
    idle = ~relevant(sequences.old.action[..., Head.OP])
    idle[..., Head.SLOT] = False  # other heads are conditioned on the slot, relevant or not
    assert idle[sequences.valid].any()
    clean = gradients(controller, sequences, config)
    ill = sequences._replace(old=sequences.old._replace(log_probs=sequences.old.log_probs.masked_fill(idle, torch.nan)))
    assert all(torch.equal(a, b) for a, b in zip(clean, gradients(controller, ill, config), strict=True))


def test_an_irrelevant_head_gets_exactly_no_gradient(rollouts):
    config, (_, rollout, controller) = PPOConfig(), rollouts()
    sequences = sequences_of(rollout, controller)
    waiting = sequences.old.action.clone()
    waiting[..., Head.OP] = Op.WAIT
    sequences = sequences._replace(old=sequences.old._replace(action=waiting))
    controller.zero_grad()
    losses(controller, sequences, config, 0.01).policy.sum().backward()
    for module in (controller.slot_score, controller.blueprint_score, controller.tail):
        assert all(not p.grad.any() for p in module.parameters())
    assert any(p.grad.any() for p in controller.op.parameters())


@pytest.mark.parametrize("accumulate", [2, 5])
def test_accumulated_gradients_are_those_of_the_whole_minibatch(rollouts, accumulate):
    _, rollout, controller = rollouts()
    sequences = sequences_of(rollout, controller)
    found = []
    for pieces in (1, accumulate):
        learner = Learner(controller_for(), PPOConfig(accumulate=pieces, max_grad_norm=1e9))
        learner.step(sequences)
        found.append([p.grad for p in learner.controller.parameters()])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
