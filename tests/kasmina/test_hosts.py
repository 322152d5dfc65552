"""Hosts: chains with slots, the same weights for the same number, alone or among others, and nobody's random state."""

import numpy as np
import pytest
import torch
from torch import nn

from esper.kasmina import build_host, host_kinds, register_host, unregister_host, weak_host
from esper.kasmina.birth import Nursery
from esper.kasmina.host import num_parameters
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
    inputs = {"mlp": (16,), "cnn1d": (40, 1), "cnn2d": (8, 8, 1), "transformer": (64,)}
    for kind in host_kinds():
        host = build_host(weak_host(kind, inputs[kind], 10))
        assert num_parameters(host) < 5000
        assert host.growth == 0


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
    with pytest.raises(EsperError, match="segment 0 of host 'cnn1d' fails on inputs"):
        build_host(HostSpec("cnn1d", (40,), 5, (8, 8)))
    with pytest.raises(EsperError, match="gives 3 channels; seeds need 4"):
        build_host(HostSpec("mlp", (4,), 5, (3,)))
    with pytest.raises(EsperError, match="inputs must be one or more"):
        HostSpec("mlp", (), 5, (8,))
    assert build_host(HostSpec("transformer", (4,), 5, (50,))).slot_specs[0].channels == 50
    register_host("chancy", lambda spec: [nn.Sequential(nn.Linear(4, 4), nn.Dropout()), nn.Linear(4, 2)], "vector")
    try:
        with pytest.raises(EsperError, match="'chancy' uses Dropout"):
            build_host(HostSpec("chancy", (4,), 2, (4,)))
    finally:
        unregister_host("chancy")
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
