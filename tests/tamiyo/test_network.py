"""The controller transfers: it knows slots and blueprints by their descriptors, not by their index."""

import math
from dataclasses import replace
from math import log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline.actions import Head, Op
from esper.leyline.errors import EsperError
from esper.leyline.lifecycle import Stage
from esper.tamiyo import Controller, ControllerConfig, Features
from esper.tamiyo.features import HIDEABLE, HOST_FEATURES, SLOT_FEATURES, features, hidden
from esper.tamiyo.heads import check, entropy, masked, sample
from esper.tamiyo.masks import affordable, relevant, within_budget
from esper.tamiyo.network import (
    TAIL,
    TAIL_SIZES,
    HiddenState,
    Observation,
    at_slot,
    describe,
    look,
    num_draws,
)
from small_views import CPU, SETTING, act, make_view, seen


def controller_of(rng_seed=2, **options) -> Controller:
    return Controller(ControllerConfig(hidden=16, slot_hidden=8, **options), rng_seed)


CONTROLLER = controller_of()


def in_sequence(*observations: Observation) -> Observation:
    """Stack observations into a sequence of decisions."""
    parts = [torch.stack(xs) for xs in zip(*(o.features for o in observations), strict=True)]
    return Observation(Features(*parts), *(torch.stack(xs) for xs in zip(*(o[1:] for o in observations), strict=True)))


def judge(observation, action, controller=CONTROLLER):
    """Judge decisions as sequences of length one."""
    with torch.no_grad():
        return controller.judge(in_sequence(observation), controller.blank(len(action), CPU), action[None])


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
    """Return the log-probabilities of every slot given the op, and of every blueprint given that slot."""
    one = in_sequence(observation)
    hosts = len(observation.legal)
    with torch.no_grad():
        x, slots = CONTROLLER.read(one.features, one.exists)
        x = CONTROLLER.remember(x, CONTROLLER.blank(hosts, CPU))
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
    action = act(blind, observation).action
    for decided in (lambda o: act(blind, o).value, lambda o: judge(o, action, blind).value):
        assert torch.equal(decided(observation), decided(otherwise))
    assert not torch.equal(act(CONTROLLER, observation).value, act(CONTROLLER, otherwise).value)


@pytest.mark.parametrize("group", HIDEABLE)
def test_who_is_told_more_than_the_one_before_decides_as_it_did(group):
    before = Controller(replace(CONTROLLER.config, **{group: False}), rng_seed=2)
    now = Controller(CONTROLLER.config, rng_seed=3)
    now.adopt(before)
    observation = seen()
    here, there = (act(controller, observation) for controller in (now, before))
    assert torch.equal(here.action, there.action)
    torch.testing.assert_close(here.value, there.value)
    torch.testing.assert_close(here.log_probs, there.log_probs)
    same = Controller(before.config, rng_seed=3)
    same.adopt(before)
    assert all(torch.equal(a, b) for a, b in zip(same.parameters(), before.parameters(), strict=True))


@pytest.mark.parametrize("recurrent", [True, False])
def test_probabilities_are_those_of_the_choices_that_were_made(recurrent):
    """Of every head, given what was chosen before it, in the state of memory in which it was chosen."""
    controller, observation = controller_of(recurrent=recurrent), seen(hosts=5)
    affordable = observation.affordable.clone()
    affordable[:, :, 2] = False
    observation = observation._replace(affordable=affordable)
    uniform = torch.rand(5, num_draws(4, 5), generator=torch.Generator().manual_seed(3)).clamp(1e-6, 1 - 1e-6)
    with torch.no_grad():
        _, memory = controller.act(observation, controller.blank(5, CPU), uniform)
        before = HiddenState(*(x.clone() for x in memory))
        choice, _ = controller.act(observation, memory, uniform)
        found = controller.probabilities(observation, memory, choice.action)
        first = controller.probabilities(observation, controller.blank(5, CPU), choice.action)
    assert list(found) == list(Head)
    assert [p.shape[1] for p in found.values()] == [len(Op), 4, 5, *TAIL_SIZES]
    for head, p in found.items():
        torch.testing.assert_close(p.sum(-1), torch.ones(5))
        made = p.gather(1, choice.action[:, head, None])[:, 0]
        torch.testing.assert_close(made, choice.log_probs[:, head].exp())
    assert not found[Head.OP][~observation.legal.any(-1)].any()
    here = observation.legal[torch.arange(5), choice.action[:, Head.OP]]
    assert not found[Head.SLOT][~here].any()
    assert not found[Head.BLUEPRINT][:, 2].any()
    assert all(torch.equal(x, y) for x, y in zip(memory, before, strict=True))
    assert torch.equal(first[Head.OP], found[Head.OP]) != recurrent, "what is remembered counts"


@pytest.mark.parametrize("slots", range(1, 9))
def test_any_number_of_slots_and_blueprints(slots):
    choice = act(CONTROLLER, seen(slots=slots, blueprints=slots + 1))
    assert (choice.action[:, Head.SLOT] < slots).all()
    assert choice.log_probs.isfinite().all()


def test_padding_changes_nothing():
    """Padding stands for slots and blueprints that only another fleet has."""
    observation = seen(slots=3, blueprints=4)
    f, legal, paid, described = observation
    wide = Observation(
        Features(f.host, torch.cat([f.slots, torch.full((3, 2, f.slots.shape[2]), 7.0)], 1)),
        torch.cat([legal, torch.zeros(3, len(Op), 2, dtype=torch.bool)], 2),
        torch.nn.functional.pad(paid, (0, 3, 0, 2)),
        torch.nn.functional.pad(described, (0, 0, 0, 3, 0, 2), value=7.0),
    )
    narrow, padded = act(CONTROLLER, observation), act(CONTROLLER, wide)
    torch.testing.assert_close(padded.value, narrow.value)
    assert torch.equal(padded.action, narrow.action)
    torch.testing.assert_close(padded.log_probs, narrow.log_probs)
    torch.testing.assert_close(judge(wide, padded.action).entropy, judge(observation, narrow.action).entropy)


def test_descriptors_by_hand():
    """A one-hot family, or the place for unknown ones, the size in a slot, and on a budget the cost."""
    sizes, costs = torch.tensor([[0.5, 2.0, 0.0], [1.0, 3.0, 4.0]]), torch.tensor([[1.0, 0.0, 3.0], [2.0, 0.5, 0.0]])
    setting = SETTING._replace(families=("conv", "my own", "norm"), seed_parameters=sizes)
    table = describe(setting)
    conv, other, norm = [0, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 1], [1, 0, 0, 0, 0, 0]
    expected = [
        [[*conv, log(1.5), 0], [*other, log(3), 0], [*norm, 0, 0]],
        [[*conv, log(2), 0], [*other, log(4), 0], [*norm, log(5), 0]],
    ]
    torch.testing.assert_close(table, torch.tensor(expected))
    charged = describe(setting._replace(seed_costs=costs))
    torch.testing.assert_close(charged[..., :-1], table[..., :-1])
    torch.testing.assert_close(charged[..., -1], torch.log1p(costs))


def test_a_blueprint_registered_after_training_can_be_chosen():
    """The controller knows it by its family and size."""
    sizes = torch.tensor([[0.5, 2.0], [0.5, 2.0]])
    table = describe(SETTING._replace(families=("conv", "my own"), seed_parameters=sizes))
    observation = seen(hosts=200, slots=2, blueprints=2)._replace(blueprints=table.expand(200, *table.shape))
    uniform = torch.rand(200, num_draws(2, 2), generator=torch.Generator().manual_seed(0)).clamp(1e-6, 1 - 1e-6)
    assert set(act(CONTROLLER, observation, uniform).action[:, Head.BLUEPRINT].tolist()) == {0, 1}


@given(st.integers(0, 100_000))
def test_no_illegal_choice_is_ever_sampled(rng_seed):
    """Nor is a blueprint that is not affordable, unless none is."""
    generator = torch.Generator().manual_seed(rng_seed)
    paid = torch.rand(8, 4, 5, generator=generator) < 0.4
    observation = seen(hosts=8, rng_seed=rng_seed)._replace(affordable=paid)
    uniform = torch.rand(8, num_draws(4, 5), generator=generator).clamp(1e-7, 1 - 1e-7)
    op, slot, blueprint, *_ = act(CONTROLLER, observation, uniform).action.unbind(1)
    hosts = torch.arange(8)
    assert observation.legal[hosts, op, slot].all()
    assert (paid[hosts, slot, blueprint] | ~paid[hosts, slot].any(1)).all()


def test_every_choice_has_a_uniform_number_of_its_own():
    """In the order of heads and choices: a number close to 1 decides its head."""
    sizes = (len(Op), 3, 4, *TAIL_SIZES)
    draws = num_draws(3, 4)
    assert draws == sum(sizes)
    one = seen(hosts=1, slots=3, blueprints=4)._replace(legal=torch.ones(1, len(Op), 3, dtype=torch.bool))
    same = Observation(
        Features(*(x.expand(draws, *x.shape[1:]) for x in one.features)),
        *(x.expand(draws, *x.shape[1:]) for x in one[1:]),
    )
    action = act(CONTROLLER, same, 0.5 + (0.5 - 1e-6) * torch.eye(draws))
    places = [(head, choice) for head, size in zip(Head, sizes, strict=True) for choice in range(size)]
    assert [action.action[n, head].item() for n, (head, _) in enumerate(places)] == [choice for _, choice in places]


def test_samples_follow_their_probabilities(rng):
    probabilities = torch.tensor([0.5, 0.0, 0.3, 0.2])
    log_probs = masked(probabilities.log().nan_to_num(neginf=9.0), probabilities > 0)
    taken = sample(log_probs.expand(20_000, 4), torch.rand(20_000, 4, generator=rng))
    torch.testing.assert_close(taken.bincount(minlength=4) / 20_000, probabilities, rtol=0, atol=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_illegal_choices_are_impossible_in_every_precision(dtype):
    """Even with very low logits of legal choices; their log-probability is finite, so that ratios are never NaN."""
    logits = torch.tensor([[-60_000.0, -60_000.0, 0.0], [1.0, 2.0, 3.0]]).to(dtype)
    found = masked(logits, torch.tensor([True, True, False]).expand(2, 3))
    expected = torch.tensor([[log(1 / 2), log(1 / 2)], [-log(1 + math.e), -log(1 + 1 / math.e)]])
    torch.testing.assert_close(found[:, :2], expected, rtol=0, atol=1e-6)
    assert not found[:, 2].exp().any()
    assert found.isfinite().all()


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


def test_entropy_by_hand():
    """Divided by that of a uniform legal choice; 0 with one legal choice. Gradients are finite."""
    probabilities = torch.tensor([[0.2] * 5, [0.5, 0.25, 0.25, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0, 0.0], [1.0, 0, 0, 0, 0]])
    logits = probabilities.log().nan_to_num(neginf=0.0).requires_grad_()
    mask = probabilities > 0
    spread = entropy(masked(logits, mask), mask)
    torch.testing.assert_close(spread, torch.tensor([1.0, 1.5 * log(2) / log(3), 1.0, 0.0]))
    spread.sum().backward()
    assert logits.grad.isfinite().all()


def test_an_empty_mask_is_an_error():
    with pytest.raises(EsperError, match="head 'slot' has hosts without a single legal choice"):
        check(torch.tensor([[True, False], [False, False]]), "slot")


def test_the_budget_limits_what_may_be_planted():
    """A seed that uses up the budget exactly is affordable."""
    sizes = torch.tensor([[0.5, 2.0], [1.0, 4.0]])
    paid = affordable(torch.tensor([0.0, 3.0, 3.0]), torch.tensor([1.0, 3.5, 3.2]), sizes)
    first, none = [True, False], [False, False]
    assert paid.tolist() == [[first, first], [first, none], [none, none]]
    everything = torch.ones(3, len(Op), 2, dtype=torch.bool)
    legal = within_budget(everything, paid)
    assert legal[:, Op.GERMINATE].tolist() == [[True, True], [True, False], [False, False]]
    assert legal[:, [op for op in Op if op != Op.GERMINATE]].all()
    assert everything.all(), "what the fleet says is left as it is"


def test_looking_keeps_to_the_budget():
    """Seeds cost 0.1 to 0.4, 0.5 to 1.8 and 0.9 to 2 in the three slots."""
    view = make_view([[Stage.DORMANT, Stage.DORMANT, Stage.HOLDING]] * 2, growth=[0.0, 1.0], budget=[0.45, 1.55])
    found, legal, paid = look(view)
    assert all(torch.equal(a, b) for a, b in zip(found, features(view), strict=True))
    assert legal[:, Op.GERMINATE].tolist() == [[True, False, False], [True, True, False]]
    assert torch.equal(legal[:, Op.PRUNE], view.signals.legal[:, Op.PRUNE])
    assert paid.sum(2).tolist() == [[4, 0, 0], [4, 1, 0]]


def test_judged_shares_of_legal_choices_by_hand():
    """The second host plants nothing, so that any blueprint is legal."""
    legal = torch.zeros(2, len(Op), 4, dtype=torch.bool)
    legal[:, Op.WAIT] = legal[0, Op.GERMINATE, 1] = legal[0, Op.PRUNE, 2:] = True
    paid = torch.zeros(2, 4, 5, dtype=torch.bool)
    paid[0, 1, :2] = True
    action = torch.zeros(2, len(Head), dtype=torch.long)
    action[0, : Head.STYLE] = torch.tensor([Op.GERMINATE, 1, 0])
    judged = judge(seen(hosts=2)._replace(legal=legal, affordable=paid), action)
    rest = [1.0] * len(TAIL)
    torch.testing.assert_close(judged.legal[0], torch.tensor([[3 / 6, 1 / 4, 2 / 5, *rest], [1 / 6, 1, 1, *rest]]))
    choice = torch.tensor([[1.0, 0.0, 1.0, *rest], [0.0, 1.0, 1.0, *rest]])
    torch.testing.assert_close(judged.entropy[0], choice, rtol=0, atol=1e-3)  # new policies are almost uniform


def test_relevance_is_leylines_table():
    for op in Op:
        assert relevant(torch.tensor([int(op)]))[0].tolist() == [head in op.heads for head in Head]


def assert_orthogonal(weight, gain):
    small = weight if len(weight) <= weight.shape[1] else weight.T
    torch.testing.assert_close(small @ small.T, gain**2 * torch.eye(len(small)), rtol=0, atol=1e-5 * gain**2)


POLICY_OUTPUTS = ("op.2", "slot_score.out", "blueprint_score.out", "tail.2")


@pytest.mark.parametrize("recurrent", [True, False])
def test_initial_weights_are_what_the_reviews_ask_for(recurrent):
    before = torch.get_rng_state()
    controller, again = (controller_of(recurrent=recurrent) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before), "no one else's numbers are used up"
    assert all(torch.equal(a, b) for a, b in zip(controller.parameters(), again.parameters(), strict=True))
    gains = dict.fromkeys(POLICY_OUTPUTS, 0.01) | {"value.2": 1.0}
    layers = {name: layer for name, layer in controller.named_modules() if isinstance(layer, torch.nn.Linear)}
    assert gains.keys() < layers.keys()
    for name, layer in layers.items():
        drawn = layer.weight.detach()
        assert int((drawn == 0).all(0).sum()) == (name in ("trunk.0", "blueprint.0")), "the columns of budgets"
        assert_orthogonal(drawn[:, (drawn != 0).any(0)], gains.get(name, math.sqrt(2)))
        assert not layer.bias.any()
    assert {layers[f"{head}.0"].out_features for head in ("op", "tail", "value")} == {8}, "half the width of the trunk"
    if controller.memory is not None:
        for weight in (controller.memory.weight_ih_l0, controller.memory.weight_hh_l0):
            for gate in weight.detach().split(16):
                assert_orthogonal(gate, 1.0)
        bias = controller.memory.bias_ih_l0 + controller.memory.bias_hh_l0
        assert bias.view(4, 16).unique(dim=1).tolist() == [[0.0], [1.0], [0.0], [0.0]], "to forget is the second gate"


@pytest.mark.parametrize("recurrent", [True, False])
@pytest.mark.parametrize("layer_norm", [True, False])
def test_layer_norm_follows_the_memory_or_the_trunk(recurrent, layer_norm, rng):
    controller = controller_of(recurrent=recurrent, layer_norm=layer_norm)
    x, memory = torch.randn(1, 5, 16, generator=rng), HiddenState(*torch.randn(2, 5, 16, generator=rng))
    for out in (controller.remember(x, memory)[0], controller.remember_one(x[0], memory)[0]):
        plain = (out.mean(1).abs() < 1e-5) & ((out.var(1, correction=0) - 1).abs() < 1e-2)
        assert plain.tolist() == [layer_norm] * 5


def test_later_heads_know_the_earlier_choices():
    """A slot is chosen for an op, a blueprint for a slot, and the rest for both."""
    observation = seen()
    observation = observation._replace(legal=torch.ones_like(observation.legal))
    plain = torch.zeros(3, len(Head), dtype=torch.long)
    before = judge(observation, plain).log_probs
    knows = {Head.OP: {Head.SLOT, *TAIL}, Head.SLOT: {Head.BLUEPRINT, *TAIL}, Head.BLUEPRINT: set(), TAIL[0]: set()}
    for head, others in knows.items():
        action = plain.clone()
        action[:, head] = 1
        same = (judge(observation, action).log_probs == before).all(1)[0]
        assert {other for other in Head if not same[other]} - {head} == others


def test_at_slot_takes_each_hosts_own_slot():
    x, slot = torch.arange(12).view(2, 3, 2), torch.tensor([2, 0])
    assert at_slot(x, slot).tolist() == [[4, 5], [6, 7]]
    assert at_slot(x.view(1, 2, 3, 2, 1), slot[None]).tolist() == [[[[4], [5]], [[6], [7]]]]


@pytest.mark.parametrize("recurrent", [True, False])
def test_judging_a_life_repeats_what_was_thought_while_acting(recurrent, rng):
    """The sequence begins within an episode, from the hidden state at that point."""
    controller = controller_of(recurrent=recurrent)
    life = [seen(rng_seed=decision) for decision in range(4)]
    start = memory = HiddenState(*(torch.randn(x.shape, generator=rng) for x in controller.blank(3, CPU)))
    choices, expected = [], []
    with torch.no_grad():
        for now in life:
            expected.append(controller.expect(now, memory))
            choice, memory = controller.act(now, memory, torch.rand(3, num_draws(4, 5), generator=rng))
            choices.append(choice)
        action, log_probs, value = (torch.stack(xs) for xs in zip(*choices, strict=True))
        judged = controller.judge(in_sequence(*life), start, action)
    torch.testing.assert_close(judged.log_probs, log_probs, rtol=0, atol=1e-6)
    torch.testing.assert_close(judged.value, value, rtol=0, atol=1e-6)
    torch.testing.assert_close(torch.stack(expected), value, rtol=0, atol=1e-6)


@pytest.mark.parametrize("recurrent", [True, False])
def test_a_batch_of_one_is_a_batch(recurrent):
    """E6: one API. A host's decisions do not depend on the other hosts of its batch."""
    controller = controller_of(recurrent=recurrent)
    observation = seen(hosts=5)
    draws = torch.rand(5, num_draws(4, 5), generator=torch.Generator().manual_seed(1))
    together = act(controller, observation, draws)
    for n in range(5):
        f = Features(*(x[n : n + 1] for x in observation.features))
        alone = act(controller, Observation(f, *(x[n : n + 1] for x in observation[1:])), draws[n : n + 1])
        assert torch.equal(alone.action[0], together.action[n])
        torch.testing.assert_close(alone.log_probs[0], together.log_probs[n])


def test_acting_needs_no_gradients_and_judging_keeps_them():
    observation, blank = seen(), CONTROLLER.blank(3, CPU)
    with torch.inference_mode():
        choice, _ = CONTROLLER.act(observation, blank, torch.full((3, num_draws(4, 5)), 0.5))
    assert choice.log_probs.is_inference()
    judged = CONTROLLER.judge(in_sequence(observation), blank, choice.action[None].clone())
    assert judged.log_probs.requires_grad
    assert judged.value.requires_grad
