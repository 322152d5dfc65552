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
from toys import SPECS


@pytest.mark.parametrize("kind", SPECS)
def test_a_host_answers_every_example(kind):
    spec = SPECS[kind]
    host = build_host(spec)
    x = torch.zeros(5, *spec.inputs, dtype=torch.long if kind == "transformer" else None)
    expected = (5, *spec.inputs, spec.outputs) if kind == "transformer" else (5, spec.outputs)
    assert host(x).shape == expected
    assert len(host.slots) == len(spec.widths)
    assert [slot.channels for slot in host.slot_specs] == list(spec.widths)


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
    if kind == "transformer":
        x = torch.randint(spec.outputs, (64, *spec.inputs), generator=rng)
    else:
        x = torch.randn(64, *spec.inputs, generator=rng)
    out = build_host(spec, 1)(x)
    assert 0.01 < out.std() < 3


def test_the_weak_presets():
    """Their parameters, counted by hand: segments, and the head behind them."""
    transformer_block = (32 + 16 * 48 + 16 * 16 + 16) + (32 + 2 * (16 * 16 + 16))
    expected = {
        "mlp": ((16,), (16 * 8 + 8) + (8 * 8 + 8) + (8 * 10 + 10)),
        "cnn1d": ((40, 1), (5 * 8 + 16) + 2 * (5 * 8 * 8 + 16) + (8 * 10 + 10)),
        "cnn2d": ((8, 8, 1), (9 * 8 + 16) + 2 * (9 * 8 * 8 + 16) + (8 * 10 + 10)),
        "transformer": ((64,), (10 * 16 + 64 * 16) + 2 * transformer_block + (32 + 16 * 10 + 10)),
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


def norm(x, p):
    return functional.layer_norm(x, x.shape[-1:], next(p), next(p))


PLAIN = {
    "mlp": (HostSpec("mlp", (6,), 3, (8, 5)), plain_mlp),
    "cnn1d": (HostSpec("cnn1d", (11, 2), 3, (8, 10)), plain_cnn1d),
    "cnn2d": (HostSpec("cnn2d", (8, 9, 2), 3, (8, 10)), plain_cnn2d),
    "transformer": (HostSpec("transformer", (6,), 5, (32, 32)), plain_transformer),
}


@pytest.mark.parametrize("kind", SPECS)
def test_a_bare_host_is_the_plain_network_it_says_it_is(kind, rng):
    spec, plain = PLAIN[kind]
    host = build_host(spec).double()
    for p in host.parameters():
        p.data.uniform_(-1, 1, generator=rng)
    x = torch.randn(4, *spec.inputs, generator=rng, dtype=torch.float64)
    x = torch.randint(5, (4, *spec.inputs), generator=rng) if kind == "transformer" else x
    parameters = iter(list(host.parameters()))
    torch.testing.assert_close(host(x), plain(x, parameters))
    assert next(parameters, None) is None


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


def test_impossible_hosts_are_refused():
    with pytest.raises(EsperError, match="unknown host kind 'cnn3d': did you mean 'cnn"):
        build_host(HostSpec("cnn3d", (4,), 2, (5,)))
    with pytest.raises(EsperError, match="exists already"):
        register_host("mlp", lambda spec: [], "vector")
    with pytest.raises(EsperError, match="widths of a transformer must all be the same"):
        build_host(HostSpec("transformer", (8,), 5, (8, 16)))
    with pytest.raises(EsperError, match=r"host 'cnn1d' .* cannot take inputs of shape .*: its segment 0 fails"):
        build_host(HostSpec("cnn1d", (40,), 5, (8, 8)))
    with pytest.raises(EsperError, match="gives 3 channels; seeds need 4"):
        build_host(HostSpec("mlp", (4,), 5, (3,)))
    with pytest.raises(EsperError, match="inputs must be one or more"):
        HostSpec("mlp", (), 5, (8,))
    assert build_host(HostSpec("transformer", (4,), 5, (50,))).slot_specs[0].channels == 50
    register_host("flat", lambda spec: [nn.Linear(4, 4), nn.Linear(4, 2)], "image")
    register_host("short", lambda spec: [nn.Linear(4, 2)], "vector")
    try:
        with pytest.raises(EsperError, match="which is no image stream"):
            build_host(HostSpec("flat", (4,), 2, (4,)))
        with pytest.raises(EsperError, match="at least two segments"):
            build_host(HostSpec("short", (4,), 2, (4,)))
    finally:
        unregister_host("flat")
        unregister_host("short")


@pytest.mark.parametrize("layer", [nn.Dropout(), nn.BatchNorm1d(4), nn.Sequential(nn.AlphaDropout())])
def test_a_host_may_not_depend_on_chance_or_on_the_rest_of_its_batch(layer):
    register_host("chancy", lambda spec: [nn.Sequential(nn.Linear(4, 4), layer), nn.Linear(4, 2)], "vector")
    try:
        with pytest.raises(EsperError, match=r"'chancy' uses \w+: no dropout and no batch statistics in hosts"):
            build_host(HostSpec("chancy", (4,), 2, (4,)))
    finally:
        unregister_host("chancy")
