"""Promises of growth that the other tests leave open: each test here was written for a mutant that no other names."""

import json
import math
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conftest_growth import GPT, KINDS, WIDTH, Block, bits, llama, nested
from esper.growth import Doubling, Growth, WarmupStableDecay, grow, resume
from esper.growth.attaching import config_of
from esper.growth.policies import Plateau
from esper.growth.watch import Watch
from esper.leyline.errors import EsperError, FileError

X = torch.randint(32, (2, 8), generator=torch.Generator().manual_seed(0))
FEATURES = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


def never(_growth: Growth) -> None:
    return None


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), 1e-2)


def attached(model: nn.Module, **options: Any) -> Growth:
    return grow(model, adamw(model), **{"total": 100, "blend": 4, "policy": never} | options)


def made(**options: Any) -> Growth:
    torch.manual_seed(1)
    return attached(GPT(), **options)


def step(growth: Growth, loss: float | None = None, batches: int = 1, x: Tensor = X) -> None:
    """Make a training step, and tell the growth its loss or another."""
    growth.model.train()
    found = torch.zeros(())
    for _ in range(batches):
        found = growth.model(x).square().mean()
        found.backward()
    growth.optimizer.step()
    growth.optimizer.zero_grad()
    growth.step(found if loss is None else torch.tensor(loss))


def steps(growth: Growth, count: int, loss: float | None = None) -> None:
    for _ in range(count):
        step(growth, loss)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: x.clone() for name, x in model.state_dict().items()}


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@torch.no_grad()
def answer(model: nn.Module, x: Tensor = X) -> Tensor:
    return model.eval()(x).clone()


# Birth.


def test_a_silent_twin_that_overflows_is_not_heard():
    growth = made(example=X)
    before = answer(growth.model)
    growth.deepen()
    for twin in growth.births[0].twins:
        for parameter in twin.parameters():
            parameter.data.fill_(torch.inf)
    assert torch.equal(bits(answer(growth.model)), bits(before))


def test_a_twin_stands_right_behind_the_block_it_copies():
    growth = made(example=X)
    first, second = growth.model.blocks
    growth.deepen()
    one, two = growth.births[0].twins
    assert [id(block) for block in growth.model.blocks] == [id(first), id(one), id(second), id(two)]
    assert torch.equal(one.up.weight, first.up.weight)
    assert torch.equal(two.up.weight, second.up.weight)


def test_what_a_block_shares_with_the_model_stays_shared():
    kind = KINDS["tuples"]
    model = kind.make(2)
    growth = attached(model, example=kind.inputs())
    growth.deepen()
    assert {id(block.shared.weight) for block in model.layers} == {id(model.table.weight)}


def test_a_chain_is_not_deepened_in_mid_blend():
    growth = made(example=X)
    assert growth.deepen()
    assert not growth.deepen()
    assert growth.depth == {"blocks": 4}
    steps(growth, 4)
    assert growth.deepen()


# Optimizer.


def test_a_twin_has_moments_of_its_own():
    growth = made()
    steps(growth, 2)
    growth.deepen()
    held = [x for state in growth.optimizer.state.values() for x in state.values()]
    assert len({x.data_ptr() for x in held}) == len(held)


def test_frozen_weights_stay_frozen_and_out_of_the_optimizer():
    torch.manual_seed(1)
    model = GPT()
    for block in model.blocks:
        block.n1.requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)
    growth = grow(model, optimizer, total=100, blend=2, policy=never)
    frozen = model.blocks[0].n1.weight.clone()
    step(growth)
    growth.deepen()
    steps(growth, 3)
    held = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters() if p.requires_grad)
    assert all(torch.equal(block.n1.weight, frozen) for block in model.blocks)


def test_groups_made_of_named_parameters_keep_true_names():
    torch.manual_seed(1)
    model = GPT()
    optimizer = torch.optim.AdamW(model.named_parameters(), 1e-2)
    growth = grow(model, optimizer, total=100, blend=4, example=X, policy=never)

    def true_names() -> bool:
        names = {id(p): name for name, p in model.named_parameters()}
        (group,) = optimizer.param_groups
        return group["param_names"] == [names[id(p)] for p in group["params"]]

    growth.deepen()
    assert true_names()
    growth.undo()
    assert true_names()


# Captures, and saving.


def test_a_capture_can_be_restored_twice_and_blends_on_where_it_was():
    growth = made()
    steps(growth, 3)
    growth.deepen()
    steps(growth, 2)
    then, model, spent = growth.capture(), weights(growth.model), growth.spent
    moments = {name: x.clone() for name, x in then.tensors.items()}
    for _ in range(2):
        steps(growth, 3)
        assert not growth.is_blending
        growth.restore(then)
        assert equal(weights(growth.model), model)
        assert {float(twin._esper_alpha) for twin in growth.births[0].twins} == {0.5}
        assert equal(then.tensors, moments), "a capture stays what it was"
        names = {id(p): name for name, p in growth.model.named_parameters()}
        for p, state in growth.optimizer.state.items():
            assert all(torch.equal(x, moments[f"state/{names[id(p)]}/{part}"]) for part, x in state.items())
    assert growth.spent > spent


def test_going_back_to_before_the_first_step_leaves_no_moments():
    growth = made(example=X)
    then = growth.capture()
    steps(growth, 2)
    growth.restore(then)
    assert len(growth.optimizer.state) == 0


def test_parameters_keep_their_order_in_the_groups_over_a_resume(tmp_path):
    """State dictionaries of optimizers go by position."""
    growth = made(blend=1)
    step(growth)
    growth.deepen()
    step(growth)
    growth.optimizer.param_groups[0]["params"].reverse()
    growth.save(tmp_path)
    again = resume(GPT(), adamw, tmp_path, policy=never)

    def order(of: Growth) -> list[str]:
        names = {id(p): name for name, p in of.model.named_parameters()}
        return [names[id(p)] for p in of.optimizer.param_groups[0]["params"]]

    assert order(again) == order(growth)


def test_a_resumed_run_has_the_saved_rates_and_their_peaks(tmp_path):
    growth = made()
    step(growth)
    growth.optimizer.param_groups[0]["lr"] = 3e-3
    growth.report(0.7)
    step(growth)
    growth.save(tmp_path)
    again = resume(GPT(), adamw, tmp_path, policy=never)
    assert again.optimizer.param_groups[0]["lr"] == 3e-3
    assert again.measure() == 0.7
    with pytest.warns(UserWarning, match="below half of its peak"):
        resume(GPT(), lambda m: torch.optim.AdamW(m.parameters(), 1e-4), tmp_path, policy=never).deepen()


def test_a_resumed_run_rolls_back_as_the_saved_one_would(tmp_path):
    growth = made()
    steps(growth, 3)
    before = weights(growth.model)
    usual = float(growth.average)
    growth.deepen()
    step(growth, 2.5 * usual)
    growth.save(tmp_path)
    again = resume(GPT(), adamw, tmp_path, policy=never)
    ends = []
    for run in (growth, again):
        while run.log[-1].kind != "rollback":
            step(run, 2.5 * usual)
            assert run.steps < 12
        ends.append(run.steps)
        assert run.depth == {"blocks": 2}
        assert equal(weights(run.model), before)
    assert ends[0] == ends[1] > 4


def test_a_resumed_policy_makes_the_same_decisions(tmp_path):
    def policy() -> Doubling:
        return Doubling((0.05, 0.5))

    growth = made(policy=policy(), blend=1)
    steps(growth, 10)
    assert growth.depth == {"blocks": 4}
    growth.save(tmp_path)
    again = resume(GPT(), adamw, tmp_path)
    for run in (growth, again):
        while not run.done:
            step(run)
    assert again.log == growth.log
    assert again.depth == {"blocks": 8}


@pytest.mark.parametrize("blocked", ["growth-000000002-1.safetensors", "growth.json"])
def test_a_save_that_fails_leaves_the_one_before(tmp_path, blocked):
    growth = made()
    step(growth)
    growth.save(tmp_path)
    kept = weights(growth.model)
    step(growth)
    (tmp_path / f".{blocked}.partial").mkdir()
    with pytest.raises(FileError, match="cannot write"):
        growth.save(tmp_path)
    again = resume(GPT(), adamw, tmp_path, policy=never)
    assert again.steps == 1
    assert equal(weights(again.model), kept)


def test_a_second_save_at_the_same_step_that_fails_leaves_the_first(tmp_path):
    growth = made()
    step(growth)
    growth.save(tmp_path)
    growth.deepen()
    (tmp_path / ".growth.json.partial").mkdir()
    with pytest.raises(FileError, match="cannot write"):
        growth.save(tmp_path)
    assert resume(GPT(), adamw, tmp_path, policy=never).depth == {"blocks": 2}
    (tmp_path / ".growth.json.partial").rmdir()
    growth.save(tmp_path)
    assert resume(GPT(), adamw, tmp_path, policy=never).depth == {"blocks": 4}
    assert len(list(tmp_path.glob("*.safetensors"))) == 1


def test_folders_of_a_newer_version_are_refused(tmp_path):
    growth = made()
    step(growth)
    growth.save(tmp_path)
    manifest = json.loads((tmp_path / "growth.json").read_text())
    (tmp_path / "growth.json").write_text(json.dumps(manifest | {"version": 2}))
    model = GPT()
    before = weights(model)
    with pytest.raises(FileError, match=r"was written by a newer Esper \(version 2\): upgrade Esper"):
        resume(model, adamw, tmp_path, policy=never)
    assert equal(before, weights(model))


# Finish.


def test_finishing_in_mid_blend_leaves_an_ordinary_model():
    growth = made()
    steps(growth, 2)
    growth.deepen()
    step(growth)
    model = growth.finish()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert not any("esper" in name for m in model.modules() for name in (*vars(m), *m._buffers))
    fresh = GPT(4)
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(answer(fresh), answer(model))
    assert [event.kind for event in growth.log][-2:] == ["blended", "finish"]


def test_the_names_of_a_blending_model_are_those_of_a_deeper_one():
    growth = made(example=X)
    growth.deepen()
    assert growth.model.state_dict().keys() == GPT(4).state_dict().keys()


class Configured(nn.Module):
    """Has a config with the number and the kinds of its layers, as models of `transformers` have."""

    def __init__(self) -> None:
        super().__init__()
        kinds = ["full", "sliding", "full"]
        self.config = SimpleNamespace(num_hidden_layers=3, layer_types=kinds, num_heads=3)
        self.layers = nn.ModuleList(Block() for _ in kinds)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[: self.config.num_hidden_layers]:
            x = layer(x)
        return x


def test_a_config_follows_the_depth_and_kinds_of_layers():
    model = Configured()
    growth = attached(model, example=torch.randn(2, 5, WIDTH))
    growth.deepen()
    assert model.config.num_hidden_layers == 6
    assert model.config.layer_types == ["full", "full", "sliding", "sliding", "full", "full"]
    assert model.config.num_heads == 3
    growth.undo()
    assert model.config.num_hidden_layers == 3
    assert model.config.layer_types == ["full", "sliding", "full"]


def test_blocks_of_transformers_are_numbered_anew():
    model = llama(2)
    growth = attached(model, example=KINDS["llama"].inputs())
    growth.deepen()
    assert [layer.self_attn.layer_idx for layer in model.model.layers] == [0, 1, 2, 3]
    growth.undo()
    assert [layer.self_attn.layer_idx for layer in model.model.layers] == [0, 1]


# Undo.


def test_undo_takes_the_last_of_two_births_back():
    growth = made(blend=1)
    step(growth)
    growth.deepen()
    step(growth)
    blocks = list(growth.model.blocks)
    growth.deepen()
    growth.undo()
    assert [id(block) for block in growth.model.blocks] == [id(block) for block in blocks]
    assert growth.depth == {"blocks": 4}
    growth.undo()
    assert growth.depth == {"blocks": 2}
    with pytest.raises(EsperError, match="nothing to undo"):
        growth.undo()


def test_after_an_undo_there_is_nothing_to_roll_back_to():
    growth = made()
    steps(growth, 2)
    growth.deepen()
    step(growth)
    growth.undo()
    kept = weights(growth.model)
    with pytest.raises(EsperError, match="the loss is not finite at step 4"):
        growth.step(torch.tensor(torch.nan))
    assert equal(weights(growth.model), kept), "what was learned since the birth stays"


# The budget.


def test_growing_before_the_first_step_leaves_the_budget_alone():
    growth = made(example=X, total=10)
    budget, cost = growth.budget, growth.step_cost
    assert budget == 10 * cost
    growth.deepen()
    assert growth.step_cost > cost
    step(growth)
    assert growth.budget == budget
    assert growth.spent == growth.step_cost


def test_a_step_of_several_batches_costs_all_of_them_after_a_birth():
    growth = made()
    step(growth, batches=3)
    growth.deepen()
    expected = growth.step_cost
    before = growth.spent
    step(growth, batches=3)
    assert growth.spent - before == expected == growth.step_cost


@pytest.mark.parametrize(("budget", "count"), [(4.4, 4), (4.6, 5)])
def test_a_run_ends_at_the_step_nearest_to_its_budget(budget, count):
    cost = made(example=X).step_cost
    growth = made(total=None, flops=budget * cost)
    while not growth.done:
        step(growth)
    assert growth.steps == count
    assert growth.progress == min(count / budget, 1.0)


def test_a_budget_in_epochs_is_one_in_steps():
    growth = made(total=None, epochs=2.5, steps_per_epoch=4, example=X)
    assert growth.budget == 10 * growth.step_cost
    with pytest.raises(EsperError, match="epochs needs steps_per_epoch"):
        config_of(None, None, 2.0, None)
    with pytest.raises(EsperError, match="give one budget"):
        config_of(5, None, 2.0, 4)
    with pytest.raises(EsperError, match="give one budget"):
        config_of(None, 1e9, 2.0, 4)


# Refusals.


def test_a_chain_with_slots_in_its_blocks_is_not_deepened():
    growth = made(slots=("up",), example=X)
    assert growth.depth == {}
    assert [(refusal.name, refusal.reason) for refusal in growth.refusals] == [
        ("blocks", "slots were named inside its blocks")
    ]
    assert not growth.deepen()


@pytest.mark.parametrize("option", ["max_parameters", "blend", "decisions"])
def test_limits_and_lengths_below_one_are_refused(option):
    with pytest.raises(EsperError, match=f"{option} must be at least 1, not 0"):
        made(**{option: 0})


def test_a_validation_loss_must_be_one_finite_number():
    for wrong in (math.nan, math.inf, torch.ones(2)):
        growth = made(evaluate=lambda wrong=wrong: wrong)
        with pytest.raises(EsperError, match="evaluate must return one finite number, a validation loss"):
            step(growth)
    with pytest.raises(EsperError, match="metric must be a finite number, not nan"):
        made().report(math.nan)


# Policies.


def test_doublings_come_at_their_shares_of_the_compute():
    growth = attached(nested(), policy=Doubling((0.2, 0.25, 0.8)), blend=8, max_growth=8)
    while not growth.done:
        step(growth, x=FEATURES)
    births = [event for event in growth.log if event.kind == "deepen"]
    assert [event.depth["1"] for event in births] == [4, 8, 16]
    assert births[0].step == 20
    assert births[1].step == 28, "due while the first is being blended in, and made when that is over"
    assert 0.8 <= births[2].progress < 0.85
    assert growth.steps < 70
    assert growth.spent == pytest.approx(growth.budget, rel=0.05)


def follow(metric: Callable[[float], float], policy: Plateau) -> list[float]:
    """Report a metric that depends on the progress, and return when chains were doubled."""
    growth = attached(nested(), policy=policy, blend=1)
    found: list[float] = []
    while not growth.done:
        growth.report(metric(growth.progress))
        step(growth, x=FEATURES)
        if len(growth.births) > len(found):
            found.append(growth.progress)
    return found


def test_a_plateau_is_a_metric_that_stops_improving():
    assert follow(lambda progress: 1 - progress, Plateau(0.05)) == []
    assert follow(lambda progress: -1 - progress, Plateau(0.05)) == [], "below zero"
    (first, *_), tolerance = follow(lambda progress: max(1 - progress, 0.7), Plateau(0.1)), 0.03
    assert first == pytest.approx(0.4, abs=tolerance), "a tenth after the metric has stopped"
    (first, *_) = follow(lambda progress: -1 + 0.1 * progress, Plateau(0.1))
    assert first == pytest.approx(0.1, abs=tolerance), "getting worse is no improvement, below zero neither"
    (first, *_) = follow(lambda progress: 1 - 1e-4 * progress, Plateau(0.1))
    assert first == pytest.approx(0.1, abs=tolerance), "neither is a millionth"


def test_a_plateau_late_in_the_run_is_left_alone():
    assert follow(lambda progress: max(1 - progress, 0.35), Plateau(0.1, until=0.7)) == []
    found = follow(lambda progress: 1.0, Plateau(0.1, until=0.5))
    assert len(found) == 2
    assert found[-1] <= 0.5
    assert all(b - a >= 0.1 for a, b in pairwise(found))


def test_the_model_is_evaluated_as_often_as_it_is_decided_about():
    kind = KINDS["resnet"]
    torch.manual_seed(1)
    model = kind.make(2)
    seen: list[tuple[float, bool, bool]] = []

    def evaluate() -> float:
        modes = {module.training for module in model.modules()}
        seen.append((growth.progress, modes == {False}, torch.is_grad_enabled()))
        return 1.0

    growth = grow(model, adamw(model), total=40, decisions=5, policy=never, evaluate=evaluate)
    (x,) = kind.inputs()
    model.stem.eval()
    while not growth.done:
        loss = model(x).square().mean()
        loss.backward()
        growth.optimizer.step()
        growth.optimizer.zero_grad()
        growth.step(loss)
    assert [share for share, _, _ in seen] == [0.025, 0.2, 0.4, 0.6, 0.8]
    assert all(evaluating and not gradients for _, evaluating, gradients in seen)
    assert model.training
    assert not model.stem.training
    assert [point.metric for point in growth.history].count(1.0) == 5


# The governor.


def test_a_negative_loss_is_no_divergence():
    growth = made()
    steps(growth, 3, loss=-5.0)
    growth.deepen()
    steps(growth, 7, loss=-4.9)
    assert growth.depth == {"blocks": 4}
    growth.undo()
    growth.deepen()
    steps(growth, 6, loss=2.0)
    assert growth.depth == {"blocks": 2}, "far above what was usual"


def test_chains_that_grow_together_are_rolled_back_together():
    kind = KINDS["resnet"]
    torch.manual_seed(1)
    growth = attached(kind.make(2))
    (x,) = kind.inputs()
    step(growth, x=x)
    kept = weights(growth.model)
    growth.deepen()
    assert growth.depth == {"layer1": 4, "layer2.1": 4}
    step(growth, x=x)
    growth.step(torch.tensor(torch.nan))
    assert growth.depth == {"layer1": 2, "layer2.1": 2}
    assert equal(weights(growth.model), kept)


def test_a_birth_is_watched_for_twice_its_blend_and_then_stays():
    for wait, taken_back in ((7, True), (8, False)):
        growth = made()
        steps(growth, 3)
        growth.deepen()
        steps(growth, wait)
        if taken_back:
            growth.step(torch.tensor(torch.nan))
            assert growth.depth == {"blocks": 2}
        else:
            with pytest.raises(EsperError, match="the loss is not finite"):
                growth.step(torch.tensor(torch.nan))
            assert growth.depth == {"blocks": 4}


def test_a_rollback_leaves_learning_rates_and_spent_compute_alone():
    growth = made()
    steps(growth, 3)
    growth.deepen()
    step(growth)
    growth.optimizer.param_groups[0]["lr"] = 8e-3
    spent, cost = growth.spent, growth.step_cost
    growth.step(torch.tensor(torch.nan))
    assert growth.log[-1].kind == "rollback"
    assert growth.optimizer.param_groups[0]["lr"] == 8e-3
    assert growth.spent == spent + cost
    assert growth.step_cost < cost, "the next step is that of the smaller model"


def test_a_loss_that_is_not_finite_does_not_spoil_the_average():
    watch = Watch()
    assert watch.see(torch.tensor(2.0), 1) is None
    assert watch.see(torch.tensor(torch.nan), 2) != 2.0
    assert watch.average == 2.0
    assert watch.see(torch.tensor(4.0), 3) is None
    assert watch.average == pytest.approx(2.1)


def test_without_a_governor_nothing_is_rolled_back():
    growth = made(governed=False)
    steps(growth, 3)
    growth.deepen()
    step(growth)
    with pytest.raises(EsperError, match="the loss is not finite at step 5"):
        growth.step(torch.tensor(torch.nan))
    assert growth.depth == {"blocks": 4}


# Slots and seeds.


class MLP(nn.Module):
    def __init__(self, first: type[nn.Linear] = nn.Linear) -> None:
        super().__init__()
        self.fc1, self.fc2, self.head = first(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.fc2(torch.tanh(self.fc1(x)))))


class Scaled(nn.Linear):
    """A layer whose forward pass does more than multiply."""

    def forward(self, input: Tensor) -> Tensor:
        return torch.sinh(super().forward(input))


def planted(model: nn.Module | None = None, **options: Any) -> Growth:
    torch.manual_seed(1)
    model = model or MLP()
    return attached(model, slots=("fc1", "fc2"), example=FEATURES, **{"decisions": 10} | options)


def test_a_layer_with_a_forward_pass_of_its_own_is_not_folded_into():
    growth = planted(MLP(Scaled))
    step(growth, x=FEATURES)
    assert growth.plant("fc1", "low_rank")
    for _ in range(40):
        step(growth, x=FEATURES)
    assert float(growth.slots.planted[0].alpha) > 0
    before = answer(growth.model, FEATURES)
    torch.testing.assert_close(answer(growth.finish(), FEATURES), before)


def test_a_silent_seed_is_no_part_of_the_finished_model():
    growth = planted()
    before = growth.model.state_dict().keys()
    assert growth.plant("fc1", "mlp")
    model = growth.finish()
    assert model.state_dict().keys() == before
    assert type(model.fc1) is nn.Linear
    assert sum(len(group["params"]) for group in growth.optimizer.param_groups) == len(before)


def test_a_slot_is_free_again_after_an_undo():
    growth = planted()
    assert growth.plant("fc1", "mlp")
    assert not growth.plant("fc1", "mlp")
    growth.undo()
    assert growth.slots.planted == []
    assert growth.plant("fc1", "mlp")


def test_a_seed_is_charged_from_its_planting_until_its_removal():
    growth = planted()
    cost, held = growth.step_cost, len(growth.optimizer.param_groups[0]["params"])
    size = 3 * 2 * len(FEATURES) * sum(p.numel() for p in nn.Linear(8, 8, bias=False).parameters())
    assert growth.plant("fc1", "mlp")
    dearer = growth.step_cost
    assert dearer >= cost + size, "two matrices at least, forward and backward"
    step(growth, x=FEATURES)
    assert growth.spent == dearer == growth.step_cost
    growth.undo()
    assert growth.step_cost == cost
    assert len(growth.optimizer.param_groups[0]["params"]) == held
    step(growth, x=FEATURES)
    assert growth.spent == dearer + cost


def test_the_limit_of_parameters_counts_the_model_and_the_seed():
    growth = planted()
    growth.plant("fc1", "mlp")
    count = growth.num_parameters
    assert not planted(max_parameters=count - 1).plant("fc1", "mlp")
    assert planted(max_parameters=count).plant("fc1", "mlp")


def test_alpha_of_a_seed_moves_smoothly_between_decisions():
    growth = planted()
    step(growth, x=FEATURES)
    growth.plant("fc1", "norm")
    alphas = []
    for _ in range(40):
        step(growth, x=FEATURES)
        alphas.append(float(growth.slots.planted[0].alpha))
    rises = [b - a for a, b in pairwise([0.0, *alphas])]
    assert max(rises) < 0.06, "a tenth of the budget lies between two decisions"
    assert min(rises) >= -1e-6
    assert alphas[-1] == pytest.approx(1.0)


def test_an_evaluation_without_a_seed_is_charged_and_changes_nothing():
    seen: list[Tensor] = []

    def evaluate() -> float:
        seen.append(growth.model(FEATURES).clone())
        return float(seen[-1].square().mean())

    growth = planted(evaluate=evaluate)
    step(growth, x=FEATURES)
    assert growth.spent == growth.step_cost, "the evaluation is not charged"
    bare = answer(growth.model, FEATURES)
    growth.plant("fc1", "norm")
    for _ in range(40):
        step(growth, x=FEATURES)
    (seed,) = growth.slots.planted
    before, spent, alpha = answer(growth.model, FEATURES), growth.spent, float(seed.alpha)
    growth.model.train()
    without = growth.metric_without(seed)
    assert growth.spent - spent == growth.step_cost // 3
    assert float(seed.alpha) == alpha > 0
    assert growth.model.training
    assert without != growth.judge()
    assert not torch.equal(seen[-2], seen[-1])
    assert bare.shape == seen[-2].shape
    assert torch.equal(answer(growth.model, FEATURES), before)
    spent = growth.spent
    growth.judge()
    assert growth.spent == spent


def test_a_seed_contributes_what_is_lost_without_it():
    growth = planted()
    growth.plant("fc2", "mlp")
    growth.slots.measure(0.8, lambda seed: 0.5)
    assert growth.slots.vitals is not None
    contribution = growth.slots.vitals.contribution[0].tolist()
    assert math.isnan(contribution[0])
    assert contribution[1] == pytest.approx(0.3)


def test_seeds_of_different_slots_differ():
    growth = planted(MLP())
    growth.plant("fc1", "mlp")
    growth.plant("fc2", "mlp")
    one, two = (list(seed.parameters()) for seed in growth.slots.planted)
    assert any(not torch.equal(a, b) for a, b in zip(one, two, strict=True))


class Patches(nn.Module):
    """Convolves an image, then mixes its channels by a layer that has them last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.mix = nn.Conv2d(3, 8, 1), nn.Linear(8, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(self.conv(x).movedim(1, -1)).mean((1, 2))


def test_seeds_work_on_channels_wherever_these_stand():
    model = Patches()
    growth = attached(model, slots=("conv", "mix"), example=torch.randn(2, 3, 5, 7))
    assert [place.spec.shape for place in growth.slots.places] == [(5, 7, 8), (5, 7, 12)]
    assert [place.channels_first for place in growth.slots.places] == [True, False]


def test_half_a_name_is_no_slot():
    for pattern in ("fc", "c1", "fc1."):
        model = MLP()
        with pytest.raises(EsperError, match="unknown slot"):
            grow(model, adamw(model), total=9, slots=pattern, example=FEATURES)


# Schedules.


def test_rates_rise_hold_and_fall_with_the_compute(tmp_path):
    growth = made(policy=Doubling((0.3,)))
    rates = WarmupStableDecay(growth.optimizer, growth, warmup=0.1, decay=0.25)
    used: list[tuple[float, float]] = []
    while not growth.done:
        used.append((growth.progress, growth.optimizer.param_groups[0]["lr"]))
        step(growth)
        rates.step()
    assert all(lr > 0 for _, lr in used)
    assert {lr for progress, lr in used if 0.1 <= progress <= 0.74} == {1e-2}
    rising = [(progress, lr) for progress, lr in used if 0 < progress < 0.09]
    assert [lr for _, lr in rising] == pytest.approx([(p + 0.01) / 0.1 * 1e-2 for p, _ in rising])
    falling = [(progress, lr) for progress, lr in used if progress > 0.76]
    assert [lr for _, lr in falling] == pytest.approx([(1 - p) / 0.25 * 1e-2 for p, _ in falling])
    assert len(rising) > 5
    assert len(falling) > 5
    assert len(used) < 90, "the clock is compute"
    json.dumps(rates.state_dict())
    with pytest.raises(EsperError, match="decay must be a share from 0 to 1, not 2"):
        WarmupStableDecay(growth.optimizer, growth, decay=2)
