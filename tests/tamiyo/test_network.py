"""The policy transfers: slots and blueprints are what they are, not where they stand in a list."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline.actions import Head, Op
from esper.leyline.errors import EsperError
from esper.tamiyo import Controller, ControllerConfig, Features
from esper.tamiyo.features import HIDEABLE, HOST_FEATURES, SLOT_FEATURES, hidden, width
from esper.tamiyo.heads import check, entropy, masked, sample
from esper.tamiyo.masks import affordable, relevant, within_budget
from esper.tamiyo.network import DESCRIPTORS, Observation, describe, num_draws

CONTROLLER = Controller(ControllerConfig(hidden=16, slot_hidden=8), rng_seed=2)


def seen(hosts=3, slots=4, blueprints=5, rng_seed=0) -> Observation:
    generator = torch.Generator().manual_seed(rng_seed)
    legal = torch.rand(hosts, len(Op), slots, generator=generator) < 0.5
    legal[:, Op.WAIT] = True
    return Observation(
        Features(
            torch.randn(hosts, width(HOST_FEATURES), generator=generator),
            torch.randn(hosts, slots, width(SLOT_FEATURES), generator=generator),
        ),
        legal,
        torch.ones(hosts, slots, blueprints, dtype=torch.bool),
        torch.randn(hosts, slots, blueprints, DESCRIPTORS, generator=generator),
    )


def act(observation, uniform=None, controller=CONTROLLER):
    hosts, _, slots = observation.legal.shape
    draws = num_draws(slots, observation.affordable.shape[2])
    uniform = torch.full((hosts, draws), 0.5) if uniform is None else uniform
    with torch.no_grad():
        return controller.act(observation, controller.blank(hosts, torch.device("cpu")), uniform)[0]


def judge(observation, choice, controller=CONTROLLER):
    """The same decisions, as sequences of one."""
    one = Observation(Features(*(x[None] for x in observation.features)), *(x[None] for x in observation[1:]))
    with torch.no_grad():
        return controller.judge(one, controller.blank(len(choice.value), torch.device("cpu")), choice.action[None])


def permuted(observation: Observation, slots=None, blueprints=None) -> Observation:
    f, legal, paid, described = observation
    if slots is not None:
        f, legal, paid, described = (
            Features(f.host, f.slots[:, slots]),
            legal[..., slots],
            paid[:, slots],
            described[:, slots],
        )
    if blueprints is not None:
        paid, described = paid[:, :, blueprints], described[:, :, blueprints]
    return Observation(f, legal, paid, described)


def log_probs(observation: Observation, op: Op, slot: int):
    """Of every slot given the op, and of every blueprint given that slot."""
    one = Observation(Features(*(x[None] for x in observation.features)), *(x[None] for x in observation[1:]))
    hosts = len(observation.legal)
    with torch.no_grad():
        x, slots = CONTROLLER.read(one.features, one.exists)
        x = CONTROLLER.remember(x, CONTROLLER.blank(hosts, torch.device("cpu")))
        ops = torch.full((1, hosts), int(op))
        where, _ = CONTROLLER.slot_log_probs(x, slots, one.legal, ops)
        (what, _), _ = CONTROLLER.rest_log_probs(x, slots, one, ops, torch.full((1, hosts), slot))
    return where[0], what[0], CONTROLLER.value(x)[0, :, 0]


def test_permuting_slots_permutes_their_probabilities_and_nothing_else():
    observation, order = seen(), torch.tensor([2, 0, 3, 1])
    there, _, value = log_probs(observation, Op.WAIT, 2)
    here, blueprints, same = log_probs(permuted(observation, slots=order), Op.WAIT, 0)
    torch.testing.assert_close(here, there[:, order])
    torch.testing.assert_close(same, value)
    torch.testing.assert_close(blueprints, log_probs(observation, Op.WAIT, 2)[1])


def test_permuting_blueprints_permutes_their_probabilities():
    observation, order = seen(), torch.tensor([4, 2, 0, 3, 1])
    _, there, _ = log_probs(observation, Op.WAIT, 1)
    _, here, _ = log_probs(permuted(observation, blueprints=order), Op.WAIT, 1)
    torch.testing.assert_close(here, there[:, order])


@pytest.mark.parametrize("group", HIDEABLE)
def test_who_is_blind_to_a_group_decides_the_same_whatever_it_says(group):
    config = replace(CONTROLLER.config, **{group: False})
    blind = Controller(config, rng_seed=2)
    observation = seen()
    told = [
        x.where(hidden(table, [group]).isnan(), x + 1)
        for x, table in zip(observation.features, (HOST_FEATURES, SLOT_FEATURES), strict=True)
    ]
    otherwise = observation._replace(features=Features(*told))
    for decided in (lambda o: act(o, controller=blind).value, lambda o: judge(o, act(o), blind).value):
        assert torch.equal(decided(observation), decided(otherwise))
    assert not torch.equal(act(observation).value, act(otherwise).value)


@pytest.mark.parametrize("group", HIDEABLE)
def test_who_is_told_more_than_the_one_before_decides_as_it_did(group):
    before = Controller(replace(CONTROLLER.config, **{group: False}), rng_seed=2)
    now = Controller(CONTROLLER.config, rng_seed=3)
    now.adopt(before)
    observation = seen()
    here, there = (act(observation, controller=controller) for controller in (now, before))
    assert torch.equal(here.action, there.action)
    torch.testing.assert_close(here.value, there.value)
    torch.testing.assert_close(here.log_probs, there.log_probs)
    same = Controller(before.config, rng_seed=3)
    same.adopt(before)
    assert all(torch.equal(a, b) for a, b in zip(same.parameters(), before.parameters(), strict=True))


@pytest.mark.parametrize("slots", range(1, 9))
def test_any_number_of_slots_and_blueprints(slots):
    choice = act(seen(slots=slots, blueprints=slots + 1))
    assert (choice.action[:, Head.SLOT] < slots).all()
    assert choice.log_probs.isfinite().all()


def test_padding_changes_nothing():
    """Slots and blueprints that another fleet has and this one has not."""
    observation = seen(slots=3, blueprints=4)
    f, legal, paid, described = observation
    wide = Observation(
        Features(f.host, torch.cat([f.slots, torch.full((3, 2, f.slots.shape[2]), 7.0)], 1)),
        torch.cat([legal, torch.zeros(3, len(Op), 2, dtype=torch.bool)], 2),
        torch.nn.functional.pad(paid, (0, 3, 0, 2)),
        torch.nn.functional.pad(described, (0, 0, 0, 3, 0, 2), value=7.0),
    )
    narrow = act(observation)
    padded = act(wide)
    torch.testing.assert_close(padded.value, narrow.value)
    assert torch.equal(padded.action, narrow.action)
    torch.testing.assert_close(padded.log_probs, narrow.log_probs)
    torch.testing.assert_close(judge(wide, padded).entropy, judge(observation, narrow).entropy)


def test_a_blueprint_registered_after_training_can_be_chosen():
    """It is known by what it is: a family and a size."""
    parameters = torch.tensor([[0.5, 2.0], [0.5, 2.0]])
    table = describe(("conv", "my own"), parameters)
    assert table.shape == (2, 2, DESCRIPTORS)
    assert not torch.equal(table[0, 0], table[0, 1])
    observation = seen(hosts=200, slots=2, blueprints=2)._replace(blueprints=table.expand(200, 2, 2, DESCRIPTORS))
    uniform = torch.rand(200, num_draws(2, 2), generator=torch.Generator().manual_seed(0)).clamp(1e-6, 1 - 1e-6)
    assert set(act(observation, uniform).action[:, Head.BLUEPRINT].tolist()) == {0, 1}


@given(st.integers(0, 100_000))
def test_no_illegal_choice_is_ever_sampled(rng_seed):
    observation = seen(hosts=8, rng_seed=rng_seed)
    generator = torch.Generator().manual_seed(rng_seed)
    uniform = torch.rand(8, num_draws(4, 5), generator=generator).clamp(1e-7, 1 - 1e-7)
    action = act(observation, uniform).action
    hosts = torch.arange(8)
    assert observation.legal[hosts, action[:, Head.OP], action[:, Head.SLOT]].all()


@given(st.integers(1, 6), st.integers(0, 100_000))
def test_probabilities_of_legal_choices_sum_to_one(choices, rng_seed):
    generator = torch.Generator().manual_seed(rng_seed)
    logits = 100 * torch.randn(4, choices, generator=generator)
    mask = torch.rand(4, choices, generator=generator) < 0.6
    mask[:, 0] = True
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        found = masked(logits.to(dtype), mask)
        torch.testing.assert_close(found.exp().where(mask, 0.0).sum(1), torch.ones(4))
        assert not found.exp().where(~mask, 0.0).any()
        spread = entropy(found, mask)
        assert ((spread >= 0) & (spread <= 1 + 1e-6)).all()
        assert not spread[mask.sum(1) == 1].any()
    assert (
        sample(masked(logits, mask), torch.full_like(logits, 0.5)).tolist() == masked(logits, mask).argmax(1).tolist()
    )


def test_uniform_choices_have_entropy_one_and_gradients_are_finite():
    logits = torch.zeros(2, 5, requires_grad=True)
    mask = torch.tensor([[True] * 5, [True, False, False, False, False]])
    spread = entropy(masked(logits, mask), mask)
    torch.testing.assert_close(spread, torch.tensor([1.0, 0.0]))
    spread.sum().backward()
    assert logits.grad.isfinite().all()


def test_an_empty_mask_is_an_error():
    with pytest.raises(EsperError, match="head 'slot' has hosts without a single legal choice"):
        check(torch.tensor([[True, False], [False, False]]), "slot")


def test_the_budget_limits_what_may_be_planted():
    sizes = torch.tensor([[0.5, 2.0], [1.0, 4.0]])
    paid = affordable(torch.tensor([0.0, 3.0]), torch.tensor([1.5, 3.2]), sizes)
    assert paid.tolist() == [[[True, False], [True, False]], [[False, False], [False, False]]]
    legal = within_budget(torch.ones(2, len(Op), 2, dtype=torch.bool), paid)
    assert legal[0, Op.GERMINATE].all()
    assert not legal[1, Op.GERMINATE].any()
    assert legal[1, Op.PRUNE].all()


def test_relevance_is_leylines_table():
    for op in Op:
        assert relevant(torch.tensor([int(op)]))[0].tolist() == [head in op.heads for head in Head]


def test_initial_weights_are_what_the_reviews_ask_for():
    assert CONTROLLER.memory.bias_ih_l0[16:32].tolist() == [1.0] * 16
    last = CONTROLLER.op[-1].weight
    torch.testing.assert_close(last @ last.T, 1e-4 * torch.eye(len(Op)), atol=1e-6, rtol=0)
    assert isinstance(CONTROLLER.norm, torch.nn.LayerNorm)
    again = Controller(ControllerConfig(hidden=16, slot_hidden=8), rng_seed=2)
    assert all(torch.equal(a, b) for a, b in zip(CONTROLLER.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("recurrent", [True, False])
def test_a_batch_of_one_is_a_batch(recurrent):
    """E6: one API. Whoever sits beside a host changes nothing of what is decided for it."""
    controller = Controller(ControllerConfig(recurrent=recurrent, hidden=16, slot_hidden=8), rng_seed=2)
    observation = seen(hosts=5)
    draws = torch.rand(5, num_draws(4, 5), generator=torch.Generator().manual_seed(1))
    together = act(observation, draws, controller)
    for n in range(5):
        f = Features(*(x[n : n + 1] for x in observation.features))
        alone = act(Observation(f, *(x[n : n + 1] for x in observation[1:])), draws[n : n + 1], controller)
        assert torch.equal(alone.action[0], together.action[n])
        torch.testing.assert_close(alone.log_probs[0], together.log_probs[n])


def test_acting_needs_no_gradients_and_judging_keeps_them():
    observation = seen()
    one = Observation(Features(*(x[None] for x in observation.features)), *(x[None] for x in observation[1:]))
    blank = CONTROLLER.blank(3, torch.device("cpu"))
    with torch.inference_mode():
        choice, _ = CONTROLLER.act(observation, blank, torch.full((3, num_draws(4, 5)), 0.5))
    assert choice.log_probs.is_inference()
    judged = CONTROLLER.judge(one, blank, choice.action[None].clone())
    assert judged.log_probs.requires_grad
    assert judged.value.requires_grad
