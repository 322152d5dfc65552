"""Seeds in slots of a user's model keep the six promises, for every stream, blueprint and graft."""

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from conftest_growth import bits
from esper.growth import Growth, SlotAction, grow, resume
from esper.growth.slots import SEED
from esper.kasmina import blueprint_names, register_blueprint, unregister_blueprint
from esper.leyline.actions import STYLES
from esper.leyline.errors import EsperError


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.fc2(torch.tanh(self.fc1(x)))))


class CNN(nn.Module):
    def __init__(self, axes: int = 2) -> None:
        super().__init__()
        conv, norm = (nn.Conv2d, nn.BatchNorm2d) if axes == 2 else (nn.Conv1d, nn.BatchNorm1d)
        self.stage = nn.Sequential(conv(3, 8, 3, padding=1), norm(8), nn.ReLU())
        self.conv, self.head, self.axes = conv(8, 8, 3, padding=1), nn.Linear(8, 3), axes

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(self.stage(x)).flatten(2).mean(2))


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(11, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 11)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(self.embed(x).cumsum(1))))


class Kind(NamedTuple):
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    slots: tuple[str, str]
    stream: str

    def inputs(self, rng_seed: int) -> Tensor:
        g = torch.Generator().manual_seed(rng_seed)
        return (
            torch.randint(11, self.shape, generator=g)
            if self.stream == "tokens"
            else torch.randn(self.shape, generator=g)
        )


KINDS = {
    "mlp": Kind(MLP, (4, 6), ("fc1", "fc2"), "vector"),
    "cnn": Kind(CNN, (2, 3, 6, 6), ("stage", "conv"), "image"),
    "signal": Kind(lambda: CNN(1), (2, 3, 9), ("stage", "conv"), "signal"),
    "tokens": Kind(Tokens, (2, 7), ("embed", "mix"), "tokens"),
}
CASES = [(k, b, s) for k, kind in KINDS.items() for b, s in product(blueprint_names(kind.stream), STYLES)]
FEW = [(k, b, s) for i, (k, b, s) in enumerate(CASES) if i % 3 == 0]


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """Matrices with weight decay, vectors without."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    return torch.optim.AdamW([{"params": matrices}, {"params": vectors, "weight_decay": 0.0}], 1e-2)


def made(kind: Kind, **options: Any) -> Growth:
    torch.manual_seed(1)
    model = kind.make()
    options = {"total": 300, "policy": lambda growth: None, "slots": kind.slots, "decisions": 60} | options
    return grow(model, adamw(model), example=kind.inputs(0), **options)


def train(kind: Kind, growth: Growth, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        growth.model.train()
        loss = growth.model(kind.inputs(growth.steps)).square().mean()
        loss.backward()
        growth.optimizer.step()
        growth.optimizer.zero_grad()
        growth.step(loss)
        losses.append(loss.item())
    return losses


@torch.no_grad()
def answer(kind: Kind, model: nn.Module) -> Tensor:
    return model.eval()(kind.inputs(99)).clone()


def assert_every_parameter_is_held_once(growth: Growth) -> None:
    held = [id(p) for group in growth.optimizer.param_groups for p in group["params"]]
    assert len(held) == len(set(held))
    assert set(held) == {id(p) for p in growth.model.parameters()}
    assert len(growth.optimizer.param_groups) == 2
    assert {p.ndim > 1 for p in growth.optimizer.param_groups[0]["params"]} == {True}
    assert {p.ndim > 1 for p in growth.optimizer.param_groups[1]["params"]} == {False}


@pytest.mark.parametrize(("name", "blueprint", "style"), CASES)
def test_planting_changes_no_output_bit_and_the_seed_learns(name, blueprint, style):
    kind = KINDS[name]
    growth = made(kind)
    train(kind, growth, 2)
    before = answer(kind, growth.model)
    assert growth.plant(kind.slots[0], blueprint, style=style)
    assert torch.equal(bits(answer(kind, growth.model)), bits(before))
    assert_every_parameter_is_held_once(growth)
    (planted,) = growth.slots.planted
    weights = [p.detach().clone() for p in planted.parameters()]
    train(kind, growth, 8)
    assert float(planted.alpha) > 0
    assert all(not torch.equal(p, w) for p, w in zip(planted.parameters(), weights, strict=True))
    assert {id(p) for p in growth.optimizer.state} == {id(p) for p in growth.model.parameters()}


@pytest.mark.parametrize(("name", "blueprint", "style"), CASES)
def test_finish_leaves_plain_modules_that_agree_and_train_on(name, blueprint, style):
    kind = KINDS[name]
    growth = made(kind, governed=False, total=1000, decisions=250)
    train(kind, growth, 1)
    for slot in kind.slots:
        assert growth.plant(slot, blueprint, style=style, alpha_target="0.7")
    train(kind, growth, 20)
    assert [round(float(p.alpha), 4) for p in growth.slots.planted] == [0.7, 0.7]
    before = answer(kind, growth.model)
    model = growth.finish()
    assert isinstance(model, type(kind.make()))
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not type(module).__module__.startswith("esper")
        assert not any("esper" in key for key in (*vars(module), *module._modules, *module._buffers))
    assert (answer(kind, model) - before).abs().max() < 1e-5
    assert_every_parameter_is_held_once(growth)
    state = {id(p): s["exp_avg"].shape for p, s in growth.optimizer.state.items()}
    assert all(state[id(p)] == p.shape for p in model.parameters() if id(p) in state)
    model.train()
    model(kind.inputs(3)).square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    growth.optimizer.step()


@pytest.mark.parametrize(("name", "blueprint", "style"), FEW)
def test_a_finished_model_goes_through_torch_export(name, blueprint, style):
    kind = KINDS[name]
    growth = made(kind)
    train(kind, growth, 1)
    growth.plant(kind.slots[1], blueprint, style=style)
    train(kind, growth, 12)
    model = growth.finish().eval()
    exported = torch.export.export(model, (kind.inputs(99),)).module()
    torch.testing.assert_close(exported(kind.inputs(98)), model(kind.inputs(98)))


def test_a_linear_seed_is_folded_into_the_layer_before_it():
    kind = KINDS["mlp"]
    growth = made(kind)
    train(kind, growth, 1)
    growth.plant("fc1", "low_rank")
    growth.plant("fc2", "mlp")
    train(kind, growth, 15)
    model = growth.finish()
    assert type(model.fc1) is nn.Linear
    assert type(model.fc2) is nn.Sequential
    assert model.fc1.weight.shape == (8, 6)


def test_a_shared_weight_is_not_folded_into():
    kind = KINDS["tokens"]
    torch.manual_seed(1)
    model = Tokens()
    model.tied = nn.Linear(8, 8, bias=False)
    model.tied.weight = model.mix.weight
    growth = grow(
        model, adamw(model), total=50, slots="mix", example=kind.inputs(0), decisions=10, policy=lambda g: None
    )
    train(kind, growth, 1)
    growth.plant("mix", "lora")
    train(kind, growth, 15)
    before, weight = answer(kind, model), model.tied.weight.clone()
    growth.finish()
    assert torch.equal(model.tied.weight, weight)
    assert (answer(kind, model) - before).abs().max() < 1e-5


@pytest.mark.parametrize(("name", "blueprint", "style"), FEW)
def test_save_load_and_the_next_step_is_identical(name, blueprint, style, tmp_path):
    """One run is saved soon after a planting and twice later, and resumed each time."""
    kind = KINDS[name]

    def go(growth: Growth, steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            if growth.steps == 2:
                growth.plant(kind.slots[0], blueprint, style=style)
            losses += train(kind, growth, 1)
        return losses

    growth = made(kind)
    for when in (3, 9, 16):
        go(growth, when - growth.steps)
        growth.save(tmp_path / str(when))
        torch.manual_seed(5)
        again = resume(kind.make(), adamw, tmp_path / str(when), policy=lambda growth: None)
        assert go(again, 6) == go(growth, 6)
        ours, theirs = growth.model.state_dict(), again.model.state_dict()
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[k], theirs[k]) for k in ours)
        assert again.log == growth.log
        assert again.slots.describe() == growth.slots.describe()
        again.undo()
        assert again.slots.planted == []


@pytest.mark.parametrize("name", KINDS)
def test_undo_takes_a_planting_and_a_removal_back(name):
    kind = KINDS[name]
    growth = made(kind)
    train(kind, growth, 2)
    names = list(growth.model.state_dict())
    growth.plant(kind.slots[0], blueprint_names(kind.stream)[-1])
    train(kind, growth, 25)
    held = len(growth.optimizer.state)
    kept = {id(p): s["exp_avg"].clone() for p, s in growth.optimizer.state.items()}
    before = answer(kind, growth.model)
    assert growth.prune(kind.slots[0])
    growth.undo()
    assert len(growth.slots.planted) == 1, "what was taken back is the pruning, not the planting"
    assert growth.prune(kind.slots[0])
    growth.slots.tick(growth)  # the next decision
    assert growth.slots.planted == []
    assert list(growth.model.state_dict()) == names
    growth.undo()
    assert len(growth.optimizer.state) == held
    assert all(torch.equal(kept[id(p)], s["exp_avg"]) for p, s in growth.optimizer.state.items())
    growth.slots.move(growth)
    assert torch.equal(bits(answer(kind, growth.model)), bits(before))
    assert_every_parameter_is_held_once(growth)
    growth.undo()
    assert list(growth.model.state_dict()) == names
    assert_every_parameter_is_held_once(growth)
    train(kind, growth, 2)


def test_divergence_after_a_planting_is_taken_back():
    kind = KINDS["mlp"]
    growth = made(kind)
    train(kind, growth, 3)
    kept = {name: x.clone() for name, x in growth.model.state_dict().items()}
    growth.plant("fc1", "mlp")
    train(kind, growth, 1)
    growth.step(torch.tensor(torch.nan))
    assert growth.log[-1].kind == "rollback"
    assert growth.slots.planted == []
    assert all(torch.equal(kept[name], x) for name, x in growth.model.state_dict().items())
    assert_every_parameter_is_held_once(growth)


def test_a_silent_seed_full_of_nan_harms_nothing():
    kind = KINDS["cnn"]
    growth = made(kind)
    before = answer(kind, growth.model)
    growth.plant("conv", "conv_light")
    for p in growth.slots.planted[0].parameters():
        p.data.fill_(torch.nan)
    assert torch.equal(bits(answer(kind, growth.model)), bits(before))
    growth.model(kind.inputs(1)).square().mean().backward()
    assert all(bool(p.grad.isfinite().all()) for p in growth.model.parameters() if p.grad is not None)


def test_a_blueprint_of_the_users_own_can_be_planted():
    def build(slot: Any) -> nn.Module:
        layer = nn.Linear(slot.channels, slot.channels)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        return layer

    register_blueprint("mine", build, "image")
    try:
        kind = KINDS["cnn"]
        growth = made(kind, seeds="mine")
        train(kind, growth, 1)
        assert growth.plant("conv", "mine")
        train(kind, growth, 12)
        before = answer(kind, growth.model)
        assert (answer(kind, growth.finish()) - before).abs().max() < 1e-5
    finally:
        unregister_blueprint("mine", "image")


class Odd(nn.Module):
    """Modules behind which no seed fits."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.narrow, self.unused = nn.Linear(6, 8), nn.Linear(8, 2), nn.Linear(8, 8)
        self.pair, self.conv, self.twice = nn.LSTM(8, 8, batch_first=True), nn.Conv2d(1, 4, 1), nn.ReLU()
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.twice(self.fc(x))
        h = h + self.pair(h[:, None])[0][:, 0]
        image = self.conv(h[:, None, :, None])
        return self.head(h + self.twice(image).mean((1, 3))) + self.narrow(h).sum(1, keepdim=True)


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        ("nothing", "unknown slot 'nothing'"),
        ("fc[", "unknown slot"),
        ("narrow", "seeds need 4 channels, and it has 2"),
        ("unused", "the model does not call this module"),
        ("pair", "takes several inputs or returns no tensor"),
        ("twice", "its stream changes shape within one pass"),
        (("fc", "conv"), "slots lie in different streams"),
        (("fc", "fc.*"), None),
    ],
)
def test_slots_that_cannot_be_used_are_refused_before_anything_changes(slots, message):
    model = Odd()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    x = torch.randn(3, 6)
    if message is None:
        grow(model, adamw(model), total=9, slots=slots, example=x, policy=lambda g: None).finish()
    else:
        with pytest.raises(EsperError, match=message):
            grow(model, adamw(model), total=9, slots=slots, example=x)
    assert all(torch.equal(before[name], x) for name, x in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks or "_esper_growth" in vars(m) for m in model.modules())


def test_bad_actions_on_slots():
    kind = KINDS["mlp"]
    growth = made(kind, max_parameters=175)
    with pytest.raises(EsperError, match="unknown choice of head slot 'fc3'"):
        growth.plant("fc3", "mlp")
    with pytest.raises(EsperError, match="unknown choice of head blueprint 'conv'"):
        growth.plant("fc1", "conv")
    with pytest.raises(EsperError, match="unknown op 'GROW'"):
        SlotAction("GROW")
    with pytest.raises(EsperError, match="stream of shape"):
        made(kind, stream="image")
    assert not growth.prune("fc1"), "there is no seed"
    assert not growth.plant("fc1", "mlp"), "above max_parameters"
    assert growth.plant("fc1", "norm")
    assert not growth.plant("fc1", "norm"), "the slot is taken"
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2)))
    slotless = grow(model, adamw(model), total=9, example=torch.randn(2, 4))
    with pytest.raises(EsperError, match="no slots"):
        slotless.plant("0", "mlp")


def test_names_are_matched_exactly_then_by_their_end_then_as_expressions():
    model = nn.Sequential()
    model.add_module("a", nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    model.add_module("b", nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))

    def found(*slots: str) -> list[str]:
        growth = grow(model, adamw(model), total=9, slots=slots, example=torch.randn(2, 4), policy=lambda g: None)
        growth.finish()
        return list(growth.slots.modules)

    assert found("a.0") == ["a.0"]
    assert found("1") == ["a.1", "b.1"]
    assert found(r"b\.\d") == ["b.0", "b.1"]
    assert found("a") == ["a"]
    assert SEED not in dict(model.named_modules())
