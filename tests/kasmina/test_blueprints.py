"""Blueprints: what is registered becomes a choice; what could not live in a slot is refused with the reason."""

import pytest
import torch
from torch import nn

from esper.kasmina import blueprint, blueprint_names, build_host, register_blueprint, unregister_blueprint
from esper.kasmina.blueprints.probe import probe
from esper.kasmina.blueprints.registry import BUILT_IN
from esper.kasmina.host import num_parameters
from esper.kasmina.layers import CausalAttention, Linear, Norm
from esper.leyline.actions import Graft
from esper.leyline.errors import EsperError
from esper.leyline.specs import SlotSpec, Stream
from esper.tolaria import host_training
from toys import SPECS, plant_in_training, toy_trainer

SIZES = {
    "vector": {
        "norm": 16,
        "low_rank": (8 * 2 + 2) + (2 * 8 + 8),
        "mlp": (8 * 32 + 32) + (32 * 8 + 8),
        "gated_mlp": 2 * (8 * 16 + 16) + (16 * 8 + 8),
    },
    "signal": {
        "norm": 16,
        "attention": (8 * 4 + 4) + (4 * 8 + 8),
        "conv_small": 8 * 8 + 8,
        "conv_light": 5 * 8 * 8 + 8,
        "conv_heavy": 5 * 8 * 32 + 64 + (5 * 32 * 8 + 8),
        "depthwise": (5 * 8 + 8) + (8 * 8 + 8),
        "bottleneck": 8 * 4 + 8 + 5 * 4 * 4 + 8 + (4 * 8 + 8),
    },
    "image": {
        "norm": 16,
        "attention": (8 * 4 + 4) + (4 * 8 + 8),
        "conv_small": 8 * 8 + 8,
        "conv_light": 9 * 8 * 8 + 8,
        "conv_heavy": 9 * 8 * 32 + 64 + (9 * 32 * 8 + 8),
        "depthwise": (9 * 8 + 8) + (8 * 8 + 8),
        "bottleneck": 8 * 4 + 8 + 9 * 4 * 4 + 8 + (4 * 8 + 8),
    },
    "tokens": {
        "norm": 16,
        "lora": 8 * 4 + 4 * 8,
        "lora_large": 8 * 16 + 16 * 8,
        "attention": 16 + 8 * 24 + (8 * 8 + 8),
        "mlp_small": 16 + (8 * 8 + 8) + (8 * 8 + 8),
        "mlp": 16 + (8 * 32 + 32) + (32 * 8 + 8),
    },
}
"""Parameters over 8 channels: kernel × inputs × outputs + biases, layer by layer."""


@pytest.fixture
def registered():
    names: list[tuple[str, str]] = []

    def register(name, build, stream="vector"):
        register_blueprint(name, build, stream)
        names.append((name, stream))

    yield register
    for name, stream in names:
        unregister_blueprint(name, stream)


@pytest.mark.parametrize("stream", Stream)
def test_the_catalogue_and_what_each_kind_of_seed_weighs(stream):
    shape = {"vector": (8,), "image": (5, 5, 8)}.get(stream, (5, 8))
    slot = SlotSpec("s0", stream, shape)
    sizes = {name: num_parameters(blueprint(name, stream).build(slot)) for name in blueprint_names(stream)}
    assert sizes == SIZES[stream]


@pytest.mark.parametrize(("name", "build", "stream"), [(row[0], row[2], s) for row in BUILT_IN for s in row[3]])
def test_built_in_blueprints_pass_the_probe(name, build, stream):
    probe(name, build, stream)


def test_one_line_makes_a_choice_of_the_blueprint_head(registered):
    registered("mine", lambda slot: nn.Linear(slot.channels, slot.channels))
    host = build_host(SPECS["mlp"])
    assert host.space.blueprints[-1] == "mine"
    trainer = toy_trainer("mlp")
    plant_in_training(trainer, "mine", Graft.GATE)
    before = [p.clone() for p in trainer.host.slot(0).parameters()]
    host_training.train_epoch(trainer)
    assert not any(torch.equal(a, b) for a, b in zip(before, trainer.host.slot(0).parameters(), strict=True))


def test_foreign_modules_are_born_from_keys_too(registered):
    """A newborn of plain torch layers depends on the host's number and its birth, not on the global state."""
    registered("mine", lambda slot: nn.Linear(slot.channels, slot.channels))

    def weights(rng_seed: int) -> torch.Tensor:
        trainer = toy_trainer("mlp", rng_seed=rng_seed)
        plant_in_training(trainer, "mine", Graft.ADD)
        return trainer.host.slot(0).seed.f.weight.detach()

    first = weights(1)
    torch.rand(5)
    assert torch.equal(first, weights(1))
    assert not torch.equal(first, weights(2))


class Shrink(nn.Module):
    def __init__(self, slot):
        super().__init__()
        self.map = nn.Linear(slot.channels, slot.channels - 1)

    def forward(self, x):
        return self.map(x)


def dead_end(slot):
    return nn.Sequential(Linear(slot.channels, 8, zero=True), nn.ReLU(), Linear(8, slot.channels, zero=True))


class KeyBias(nn.Module):
    """A bias on the keys shifts all logits of a query alike, and the softmax cancels it."""

    def __init__(self, slot):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(slot.channels, slot.channels) for _ in range(3))

    def forward(self, x):
        logits = self.query(x) @ self.key(x).transpose(-1, -2)
        return logits.softmax(-1) @ self.value(x)


class Backwards(nn.Module):
    """Lets every position see the mean of the sentence."""

    def __init__(self, slot):
        super().__init__()
        self.map = nn.Linear(slot.channels, slot.channels)

    def forward(self, x):
        return self.map(x) + self.map(x).mean(1, keepdim=True)


class Stateful(nn.Module):
    def __init__(self, slot):
        super().__init__()
        self.map = nn.Linear(slot.channels, slot.channels)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        if self.calls.item() < 0:
            return x
        return self.map(x)


class RandomBuffer(nn.Module):
    def __init__(self, slot):
        super().__init__()
        self.map = nn.Linear(slot.channels, slot.channels)
        self.register_buffer("noise", torch.randn(slot.channels))

    def forward(self, x):
        return self.map(x) * self.noise


class Elsewhere(nn.Linear):
    """Computes with a reference of its own, which stacking does not reach."""

    def __init__(self, slot):
        super().__init__(slot.channels, slot.channels)
        self.kept = [self.weight]

    def forward(self, x):
        return nn.functional.linear(x, self.kept[0], self.bias)


def frozen(slot):
    return nn.Linear(slot.channels, slot.channels).requires_grad_(False)


class Explodes(nn.Linear):
    def __init__(self, slot):
        super().__init__(slot.channels, slot.channels)

    def forward(self, x):
        return super().forward(x) / 0


@pytest.mark.parametrize(
    ("build", "stream", "reason"),
    [
        (Shrink, "vector", r"must keep the shape \(3, 16\) of the stream, but returns \(3, 15\)"),
        (lambda slot: nn.Linear(-1, slot.channels), "vector", "cannot be built"),
        (lambda slot: nn.ReLU(), "vector", "no parameters"),
        (lambda slot: slot.channels, "vector", "must return a torch.nn.Module"),
        (dead_end, "vector", "no gradient reaches 0.weight, 0.bias, 2.weight"),
        (KeyBias, "signal", "no gradient reaches key.bias"),
        (lambda slot: nn.Sequential(nn.Linear(16, 16), nn.Dropout()), "vector", "or on chance"),
        (lambda slot: nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16)), "vector", "batch statistics"),
        (Backwards, "tokens", "a position depends on later ones"),
        (Stateful, "vector", "stacked with torch.func.vmap it fails"),
        (Elsewhere, "vector", "stacked with torch.func.vmap it gives other results"),
        (lambda slot: nn.Linear(slot.channels, 16), "vector", r"must keep the shape \(3, 6\) of the stream"),
        (RandomBuffer, "vector", "the buffer noise differs between two seeds"),
        (frozen, "vector", "weight, bias has requires_grad=False"),
        (Explodes, "vector", "not finite"),
        (lambda slot: CausalAttention(slot.channels), "vector", "fails on a vector stream"),
    ],
)
def test_what_could_not_live_in_a_slot_is_refused_with_the_reason(build, stream, reason):
    before = blueprint_names(stream)
    with pytest.raises(EsperError, match=reason):
        register_blueprint("bad", build, stream)
    assert blueprint_names(stream) == before


def test_a_blueprint_that_fails_on_one_of_its_streams_is_registered_for_none():
    with pytest.raises(EsperError, match="a position depends on later ones"):
        register_blueprint("bad", Backwards, ["vector", "tokens"])
    assert "bad" not in blueprint_names("vector")


def test_names_are_checked():
    with pytest.raises(EsperError, match="already exists"):
        register_blueprint("norm", lambda slot: Norm(slot.channels), "vector")
    with pytest.raises(EsperError, match="unknown stream 'vectors': did you mean 'vector'"):
        register_blueprint("mine", lambda slot: Norm(slot.channels), "vectors")
    with pytest.raises(
        EsperError, match="unknown blueprint for signal streams 'conv_heavi': did you mean 'conv_heavy'"
    ):
        blueprint("conv_heavi", "signal")


def test_a_blueprint_needs_a_stream():
    with pytest.raises(EsperError, match="is empty: name at least one of"):
        register_blueprint("mine", lambda slot: Norm(slot.channels), [])


def test_registering_leaves_the_random_state_alone(registered):
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    registered("mine", lambda slot: nn.Linear(slot.channels, slot.channels))
    assert torch.equal(torch.rand(2), expected)
