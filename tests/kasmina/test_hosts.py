"""Hosts: chains with slots, the same weights for the same number, alone or among others, and nobody's random state."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from esper.kasmina import build_host, host_kinds, register_host, unregister_host, weak_host
from esper.kasmina.birth import Nursery
from esper.kasmina.host import num_parameters
from esper.kasmina.slots import build_seed
from esper.leyline.actions import Graft
from esper.leyline.errors import EsperError
from esper.leyline.rng import Purpose, key
from esper.leyline.specs import HostSpec
from esper.tolaria import Fleet, HostTrainer
from toys import SPECS, toy_task

TOKENS = ("transformer", "gpt")


@pytest.mark.parametrize("kind", SPECS)
def test_a_host_answers_every_example(kind):
    spec = SPECS[kind]
    host = build_host(spec)
    x = torch.zeros(5, *spec.inputs, dtype=torch.long if kind in TOKENS else None)
    expected = (5, *spec.inputs, spec.outputs) if kind in TOKENS else (5, spec.outputs)
    assert host(x).shape == expected
    assert len(host.slots) == spec.slots * len(spec.widths)
    assert [slot.channels for slot in host.slot_specs] == [width for width in spec.widths for _ in range(spec.slots)]


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("slots", [1, 3, 5])
def test_slots_have_one_source(kind, slots):
    spec = HostSpec(kind, SPECS[kind].inputs, 3, (4,) * slots)
    host = build_host(spec)
    names = tuple(f"s{i}" for i in range(slots))
    assert tuple(slot.name for slot in host.slot_specs) == names == host.space.slots
    assert len(host.slots) == len(host.segments) - 1 == slots


@pytest.mark.parametrize("kind", SPECS)
def test_a_hosts_weights_depend_on_its_number_alone(kind):
    spec = SPECS[kind]
    keys = key(torch.tensor([4, 5, 6]), Purpose.HOST_WEIGHTS)
    together = Nursery(build_host(spec), lambda: build_host(spec), keys.device).bear(keys)
    for n, rng_seed in enumerate((4, 5, 6)):
        alone = dict(build_host(spec, rng_seed).named_parameters())
        assert alone.keys() == together.keys()
        assert all(torch.equal(alone[name], together[name][n]) for name in alone)
    different = [name for name, p in build_host(spec, 4).named_parameters() if not torch.equal(p, together[name][1])]
    assert different
    for name, p in build_host(spec, 4).named_parameters():
        assert (name in different) != bool((p == p.flatten()[0]).all())


@pytest.mark.parametrize("kind", SPECS)
def test_building_a_host_never_disturbs_the_random_state(kind):
    torch.manual_seed(1), np.random.seed(1)
    expected = torch.rand(2).tolist(), np.random.rand()
    torch.manual_seed(1), np.random.seed(1)
    build_host(SPECS[kind], 3)
    assert (torch.rand(2).tolist(), np.random.rand()) == expected


@pytest.mark.parametrize("kind", SPECS)
def test_initial_streams_are_neither_dead_nor_wild(kind, rng):
    spec = SPECS[kind]
    if kind in TOKENS:
        x = torch.randint(spec.outputs, (64, *spec.inputs), generator=rng)
    else:
        x = torch.randn(64, *spec.inputs, generator=rng)
    out = build_host(spec, 1)(x)
    assert 0.01 < out.std() < 3


def test_the_weak_presets():
    """Their parameters, counted by hand: segments, and the head behind them."""
    transformer_block = (32 + 16 * 48 + 16 * 16 + 16) + (32 + 2 * (16 * 16 + 16))
    gpt_block = (64 + 32 * 96 + 32 * 32 + 32) + (64 + 32 * 128 + 128 + 128 * 32 + 32)
    residual_blocks = [(2 * c + 9 * c * c) + (2 * c + 9 * c * c) for c in (8, 16)]
    expected = {
        "mlp": ((16,), (16 * 8 + 8) + (8 * 8 + 8) + (8 * 10 + 10)),
        "cnn1d": ((40, 1), (5 * 8 + 16) + 2 * (5 * 8 * 8 + 16) + (8 * 10 + 10)),
        "cnn2d": ((8, 8, 1), (9 * 8 + 16) + 2 * (9 * 8 * 8 + 16) + (8 * 10 + 10)),
        "transformer": ((64,), (10 * 16 + 64 * 16) + 2 * transformer_block + (32 + 16 * 10 + 10)),
        "gpt": ((64,), (10 * 32 + 64 * 32) + 2 * gpt_block + (64 + 32 * 10 + 10)),
        "resnet": ((8, 8, 1), 9 * 8 + 9 * 8 * 16 + sum(residual_blocks) + (2 * 16 + 16 * 10 + 10)),
    }
    for kind in host_kinds():
        inputs, parameters = expected[kind]
        assert num_parameters(build_host(weak_host(kind, inputs, 10))) == parameters


def test_growth_is_measured_against_the_bare_host():
    """A low-rank seed of 8 channels is a map to 2 and one back."""
    host = build_host(SPECS["mlp"])
    bare, seed = (6 * 8 + 8) + (8 * 8 + 8) + (8 * 3 + 3), (8 * 2 + 2) + (2 * 8 + 8)
    assert host.growth == 0
    for s in range(2):
        host.slot(s).plant(build_seed(host.slot_specs[s], "low_rank", Graft.ADD))
        assert host.growth == (s + 1) * seed / bare


def plain_mlp(x, p):
    for _ in range(2):
        x = functional.linear(x, next(p), next(p)).relu()
    return functional.linear(x, next(p), next(p))


def plain_cnn1d(x, p):
    x = x.movedim(-1, 1)
    for _ in range(2):
        x = functional.conv1d(x, next(p).movedim((-1, -2), (0, 1)), stride=2, padding=2)
        x = functional.group_norm(x, 2, next(p), next(p)).relu()
    return functional.linear(x.mean(2), next(p), next(p))


def plain_cnn2d(x, p):
    x = x.movedim(-1, 1)
    for _ in range(2):
        x = functional.conv2d(x, next(p).movedim((-1, -2), (0, 1)), padding=1)
        x = functional.max_pool2d(functional.group_norm(x, 2, next(p), next(p)).relu(), 2)
    return functional.linear(x.mean((2, 3)), next(p), next(p))


def plain_transformer(x, p):
    """32 channels are two heads of 16."""
    x = next(p)[x] + next(p)
    for _ in range(2):
        q, k, v = functional.linear(norm(x, p), next(p)).unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + functional.linear(mixed, next(p), next(p))
        hidden = functional.gelu(functional.linear(norm(x, p), next(p), next(p)))
        x = x + functional.linear(hidden, next(p), next(p))
    return functional.linear(norm(x, p), next(p), next(p))


def plain_resnet(x, p):
    """The second block continues the first stage; the third begins another."""
    x = x.movedim(-1, 1)
    for new_stage, stride in ((True, 1), (False, 1), (True, 2)):
        if new_stage:
            x = functional.conv2d(x, kernel(p), stride=stride, padding=1)
        body = functional.group_norm(x, 2, next(p), next(p)).relu()
        body = functional.conv2d(body, kernel(p), padding=1)
        body = functional.group_norm(body, 2, next(p), next(p)).relu()
        x = x + functional.conv2d(body, kernel(p), padding=1)
    x = functional.group_norm(x, 2, next(p), next(p)).relu()
    return functional.linear(x.mean((2, 3)), next(p), next(p))


def kernel(p):
    return next(p).movedim((-1, -2), (0, 1))


def norm(x, p):
    return functional.layer_norm(x, x.shape[-1:], next(p), next(p))


PLAIN = {
    "mlp": (HostSpec("mlp", (6,), 3, (8, 5)), plain_mlp),
    "cnn1d": (HostSpec("cnn1d", (11, 2), 3, (8, 10)), plain_cnn1d),
    "cnn2d": (HostSpec("cnn2d", (8, 9, 2), 3, (8, 10)), plain_cnn2d),
    "transformer": (HostSpec("transformer", (6,), 5, (32, 32)), plain_transformer),
    "gpt": (HostSpec("gpt", (6,), 5, (32, 32), slots=3), plain_transformer),
    "resnet": (HostSpec("resnet", (8, 9, 2), 3, (8, 8, 10)), plain_resnet),
}


@pytest.mark.parametrize("kind", SPECS)
def test_a_bare_host_is_the_plain_network_it_says_it_is(kind, rng):
    spec, plain = PLAIN[kind]
    host = build_host(spec).double()
    for p in host.parameters():
        p.data.uniform_(-1, 1, generator=rng)
    x = torch.randn(4, *spec.inputs, generator=rng, dtype=torch.float64)
    x = torch.randint(5, (4, *spec.inputs), generator=rng) if kind in TOKENS else x
    parameters = iter(list(host.parameters()))
    torch.testing.assert_close(host(x), plain(x, parameters))
    assert next(parameters, None) is None


@pytest.mark.parametrize("slots", [2, 3])
@pytest.mark.parametrize("kind", SPECS)
def test_several_slots_behind_a_segment_change_nothing_else(kind, slots, rng):
    """The same weights, the same outputs, and as many slots behind every segment but the last."""
    one = build_host(HostSpec(kind, SPECS[kind].inputs, 5, (8, 8)), rng_seed=3)
    several = build_host(HostSpec(kind, SPECS[kind].inputs, 5, (8, 8), slots=slots), rng_seed=3)
    x = torch.randn(4, *one.spec.inputs, generator=rng)
    x = torch.randint(5, x.shape, generator=rng) if kind in TOKENS else x
    assert torch.equal(one(x), several(x))
    shapes = [slot.shape for slot in one.slot_specs]
    assert [slot.shape for slot in several.slot_specs] == [shape for shape in shapes for _ in range(slots)]
    assert several.space.slots == tuple(f"s{i}" for i in range(2 * slots))
    assert several.blocks == tuple(block for block in one.blocks for _ in range(slots))


def test_a_block_of_ones_own_can_be_copied():
    """At the end of every segment, wherever a sequence hides it; a segment that ends otherwise is refused."""

    def build(spec):
        deep = nn.Sequential(nn.Linear(4, 6), nn.Sequential(nn.ReLU(), nn.Linear(6, 6)))
        return [deep, nn.Linear(6, 6), nn.Linear(6, spec.outputs)]

    register_host("mine", build, "vector", block=lambda channels: nn.Linear(channels, channels))
    register_host("odd", lambda spec: build(spec)[::2], "vector", block=lambda channels: nn.Linear(channels, 3))
    try:
        host = build_host(HostSpec("mine", (4,), 2, (6, 6)))
        assert host.blocks == ("segments.0.1.1", "segments.1")
        assert host.space.blueprints[-1] == "twin"
        assert build_seed(host.slot_specs[0], "twin", Graft.REPLACE).f.weight.shape == (6, 6)
        with pytest.raises(EsperError, match=r"segments.0.1.1 of host 'odd' does not end with its block"):
            build_host(HostSpec("odd", (4,), 2, (6,)))
    finally:
        unregister_host("mine")
        unregister_host("odd")
    with pytest.raises(EsperError, match="slot 's0' has no block in front of it that could be copied"):
        build_seed(build_host(SPECS["mlp"]).slot_specs[0], "twin", Graft.REPLACE)


def test_a_host_of_ones_own_in_one_line():
    register_host("mine", lambda spec: [nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, spec.outputs)], "vector")
    try:
        host = build_host(HostSpec("mine", (4,), 2, (5, 5)), rng_seed=1)
        assert host.space.slots == ("s0", "s1")
        again = build_host(HostSpec("mine", (4,), 2, (5, 5)), rng_seed=1)
        other = build_host(HostSpec("mine", (4,), 2, (5, 5)), rng_seed=2)
        x = torch.ones(1, 4)
        assert torch.equal(host(x), again(x))
        assert not torch.equal(host(x), other(x))
    finally:
        unregister_host("mine")


NEEDS = {"cnn1d": "(length, channels)", "cnn2d": "(height, width, channels)", "transformer": "(context,)"}
NEEDS |= {"resnet": NEEDS["cnn2d"], "gpt": NEEDS["transformer"]}
SHAPES = [(2,), (40, 1), (8, 8, 1), (4, 8, 8, 1)]


@pytest.mark.parametrize("inputs", SHAPES, ids=str)
@pytest.mark.parametrize("kind", host_kinds())
def test_inputs_of_another_shape_are_refused_with_the_shape_that_is_needed(kind, inputs):
    """An mlp takes all shapes."""
    needed = NEEDS.get(kind)
    if needed is None or needed.count(" ") + 1 == len(inputs):
        assert len(build_host(HostSpec(kind, inputs, 3, (8, 8))).slots) == 2
        return
    expected = f"host kind '{kind}' needs inputs of shape {needed}, not {inputs}: use another kind (mlp"
    for refuse in (lambda: build_host(HostSpec(kind, inputs, 3, (8, 8))), lambda: weak_host(kind, inputs, 3)):
        with pytest.raises(EsperError) as error:
            refuse()
        assert str(error.value).startswith(expected)
        assert error.value.__cause__ is None


@pytest.mark.parametrize("kind", SPECS)
def test_tokens_and_numbers_are_not_taken_for_each_other(kind):
    """By hosts alone and in fleets, before anything is trained."""
    tokens = kind in TOKENS
    task = toy_task(kind)
    x = task.train.x.float() if tokens else task.train.x.long()
    task = task._replace(train=task.train._replace(x=x))
    needed, given = ("token ids", "numbers") if tokens else ("numbers", "token ids")
    for train in (lambda: HostTrainer(SPECS[kind], task), lambda: Fleet(SPECS[kind], task, range(2))):
        with pytest.raises(EsperError, match=rf"host kind '{kind}' needs {needed} .* of shape .*, not {given} .*: use"):
            train()


def test_impossible_hosts_are_refused():
    with pytest.raises(EsperError, match="unknown host kind 'cnn3d': did you mean 'cnn"):
        build_host(HostSpec("cnn3d", (4,), 2, (5,)))
    with pytest.raises(EsperError, match="already exists"):
        register_host("mlp", lambda spec: [], "vector")
    with pytest.raises(EsperError, match="widths of a transformer must be equal"):
        build_host(HostSpec("transformer", (8,), 5, (8, 16)))
    with pytest.raises(EsperError, match="gives 3 channels: seeds need at least 4"):
        build_host(HostSpec("mlp", (4,), 5, (3,)))
    with pytest.raises(EsperError, match="inputs must be one or more"):
        HostSpec("mlp", (), 5, (8,))
    assert build_host(HostSpec("transformer", (4,), 5, (50,))).slot_specs[0].channels == 50
    register_host("flat", lambda spec: [nn.Linear(4, 4), nn.Linear(4, 2)], "image")
    register_host("short", lambda spec: [nn.Linear(4, 2)], "vector")
    try:
        with pytest.raises(EsperError, match=r"'flat' gives shape \(4,\), but stream 'image' has 3 axes"):
            build_host(HostSpec("flat", (4,), 2, (4,)))
        with pytest.raises(EsperError, match=r"segment 0 of host 'flat' fails on inputs \(5,\)"):
            build_host(HostSpec("flat", (5,), 2, (4,)))
        with pytest.raises(EsperError, match="'short' has 1 segments: it needs two"):
            build_host(HostSpec("short", (4,), 2, (4,)))
    finally:
        unregister_host("flat")
        unregister_host("short")


@pytest.mark.parametrize("layer", [nn.Dropout(), nn.BatchNorm1d(4), nn.Sequential(nn.AlphaDropout())])
def test_a_host_may_not_depend_on_chance_or_on_the_rest_of_its_batch(layer):
    register_host("chancy", lambda spec: [nn.Sequential(nn.Linear(4, 4), layer), nn.Linear(4, 2)], "vector")
    try:
        with pytest.raises(EsperError, match=r"'chancy' uses \w+: hosts may not use dropout or batch"):
            build_host(HostSpec("chancy", (4,), 2, (4,)))
    finally:
        unregister_host("chancy")
