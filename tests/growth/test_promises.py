"""The six promises to a user's model, over toys and real models."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conftest_growth import KINDS, Kind, bits, run
from esper.growth import Doubling, Growth, grow, resume
from esper.growth.compute import as_call

OPTIMIZERS = {
    "adamw": lambda ps: torch.optim.AdamW(ps, 1e-2),
    "fused": lambda ps: torch.optim.AdamW(ps, 1e-2, fused=True),
    "foreach": lambda ps: torch.optim.Adam(ps, 1e-2, foreach=True),
    "sgd": lambda ps: torch.optim.SGD(ps, 1e-2, momentum=0.9),
    "adafactor": lambda ps: torch.optim.Adafactor(ps, 1e-2),
}


def made(kind: Kind, optimizer: str = "adamw", depth: int = 2, **options: Any) -> tuple[nn.Module, Growth]:
    torch.manual_seed(1)
    model = kind.make(depth)
    return model, grow(
        model, OPTIMIZERS[optimizer](model.parameters()), total=100, blend=4, policy=Doubling((0.9,)), **options
    )


def train(kind: Kind, growth: Growth, steps: int, first: int = 0) -> list[float]:
    """Plain steps with batches and dropout of their own, so that two runs can be compared."""
    losses = []
    for step in range(first, first + steps):
        torch.manual_seed(1000 + step)
        growth.model.train()
        loss = run(growth.model, kind.inputs(step)).square().mean()
        loss.backward()
        growth.optimizer.step()
        growth.optimizer.zero_grad()
        growth.step(loss)
        losses.append(loss.item())
    return losses


def answer(kind: Kind, model: nn.Module) -> Tensor:
    model.eval()
    with torch.no_grad():
        return run(model, kind.inputs(99)).clone()


def contents(growth: Growth) -> dict[str, Any]:
    """Everything about a model and its optimizer, by name."""
    names = {id(p): name for name, p in growth.model.named_parameters()}
    state = {names[id(p)]: dict(values) for p, values in growth.optimizer.state.items()}
    groups = [[names[id(p)] for p in group["params"]] for group in growth.optimizer.param_groups]
    return {"model": dict(growth.model.state_dict()), "state": state, "groups": groups}


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.fixture(params=KINDS)
def kind(request) -> Kind:
    return KINDS[request.param]


def test_the_chains_are_found(kind):
    _model, growth = made(kind, example=kind.inputs())
    assert growth.depth == kind.chains
    assert all(chain.shape is not None for chain in growth.chains)


def test_attaching_changes_no_output_bit(kind):
    torch.manual_seed(1)
    plain = kind.make(2)
    before = answer(kind, plain)
    model, growth = made(kind)
    assert torch.equal(bits(answer(kind, model)), bits(before))
    assert model.state_dict().keys() == plain.state_dict().keys()
    growth.see(as_call(kind.inputs()))
    assert torch.equal(bits(answer(kind, model)), bits(before))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_birth_changes_no_output_bit_and_every_parameter_is_in_the_optimizer_once(kind, optimizer):
    model, growth = made(kind, optimizer)
    train(kind, growth, 3)
    before, groups = answer(kind, model), len(growth.optimizer.param_groups)
    assert growth.deepen()
    assert torch.equal(bits(answer(kind, model)), bits(before))
    assert growth.depth == {name: 2 * depth for name, depth in kind.chains.items()}
    train(kind, growth, 2, first=3)
    held = [id(p) for group in growth.optimizer.param_groups for p in group["params"]]
    live = {id(p) for p in model.parameters()}
    assert len(held) == len(set(held))
    assert set(held) == live
    assert len(growth.optimizer.param_groups) == groups
    assert {id(p) for p in growth.optimizer.state} == live


def test_a_twin_starts_as_a_copy_with_its_moments(kind):
    _model, growth = made(kind)
    train(kind, growth, 3)
    growth.deepen()
    for birth in growth.births:
        for twin, source in zip(birth.twins, birth.before, strict=True):
            assert type(twin) is type(source)
            for new, old in zip(twin.parameters(), source.parameters(), strict=True):
                assert torch.equal(new, old)
                assert same(dict(growth.optimizer.state[new]), dict(growth.optimizer.state[old]))
                assert new is old or growth.optimizer.state[new] is not growth.optimizer.state[old]
    train(kind, growth, 2, first=3)
    assert any(
        not torch.equal(n, o)
        for b in growth.births
        for t, s in zip(b.twins, b.before, strict=True)
        for n, o in zip(t.parameters(), s.parameters(), strict=True)
    )


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("when", [2, 4, 6, 9])
def test_save_load_and_the_next_step_is_identical(kind, optimizer, when, tmp_path):
    """Before a birth, in the middle of a blend, after it; 3 steps, birth, blend of 4 steps."""
    if optimizer not in ("adamw", "sgd") and when != 6:
        return

    def go(growth: Growth, first: int, last: int) -> list[float]:
        losses = []
        for step in range(first, last):
            if step == 3:
                growth.deepen()
            losses += train(kind, growth, 1, first=step)
        return losses

    _model, growth = made(kind, optimizer)
    go(growth, 0, when)
    growth.save(tmp_path / "saved")
    torch.manual_seed(7)
    again = resume(kind.make(2), lambda m: OPTIMIZERS[optimizer](m.parameters()), tmp_path / "saved")
    assert same(contents(again), contents(growth))
    assert (again.steps, again.spent, again.progress, again.depth) == (
        growth.steps,
        growth.spent,
        growth.progress,
        growth.depth,
    )
    assert go(again, when, when + 5) == go(growth, when, when + 5)
    assert same(contents(again), contents(growth))
    assert again.log == growth.log
    assert again.policy.state_dict() == growth.policy.state_dict()


def test_finish_leaves_an_ordinary_model_of_the_larger_depth(kind):
    model, growth = made(kind)
    train(kind, growth, 3)
    growth.deepen()
    train(kind, growth, 6, first=3)
    before = answer(kind, model)
    finished = growth.finish()
    assert finished is model
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not any("esper" in name for name in (*vars(module), *module._buffers))
        assert not type(module).__module__.startswith("esper")
    assert (answer(kind, model) - before).abs().max() < 1e-6
    fresh = kind.make(4)
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(answer(kind, fresh), answer(kind, model))


def test_undo_restores_structure_and_optimizer(kind):
    model, growth = made(kind)
    train(kind, growth, 3)
    before, then = contents(growth), answer(kind, model)
    kept = {name: x.clone() for name, x in before["model"].items()}
    growth.deepen()
    for _ in growth.births[:]:
        growth.undo()
    after = contents(growth)
    assert same(after["model"], kept)
    assert after["groups"] == before["groups"]
    assert after["state"].keys() == before["state"].keys()
    assert torch.equal(bits(answer(kind, model)), bits(then))
    assert growth.depth == kind.chains
    train(kind, growth, 2, first=3)


def test_a_model_that_is_moved_or_cast_in_mid_blend_blends_on(kind):
    model, growth = made(kind)
    train(kind, growth, 3)
    growth.deepen()
    model.double().float()
    train(kind, growth, 2, first=3)
    assert {round(float(twin._esper_alpha), 6) for birth in growth.births for twin in birth.twins} == {0.5}
    train(kind, growth, 2, first=5)
    assert not growth.is_blending


def test_modules_that_are_frozen_in_evaluation_mode_stay_so():
    """Fine-tuning keeps batch norm in evaluation mode; attaching, counting and growing leave it there."""
    kind = KINDS["resnet"]
    model = kind.make(2).train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    modes = [module.training for module in model.modules()]
    growth = grow(
        model, OPTIMIZERS["sgd"](model.parameters()), total=9, policy=lambda growth: None, example=kind.inputs()
    )
    assert [module.training for module in model.modules()] == modes
    assert growth.deepen()
    assert {m.training for m in model.modules() if isinstance(m, nn.BatchNorm2d)} == {False}
    growth.undo()
    growth.undo()
    assert [module.training for module in model.modules()] == modes
