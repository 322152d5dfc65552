"""Training loops as people write them: mixed precision, accumulated gradients, schedulers, groups, evaluation."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import lr_scheduler
from torch.utils.flop_counter import FlopCounterMode

from conftest_growth import GPT, KINDS, Kind, nested, run
from esper.growth import Deepen, Doubling, Growth, grow
from esper.growth.compute import MOST_SHAPES

TOYS = ("gpt", "resnet", "tuples", "nested")


def never(_growth: Growth) -> None:
    return None


def tokens(batch: int = 2, length: int = 8, rng_seed: int = 0) -> Tensor:
    return torch.randint(32, (batch, length), generator=torch.Generator().manual_seed(rng_seed))


def operations(model: nn.Module, x: Tensor) -> int:
    """Count a forward and a backward pass by making them, on a copy."""
    model = copy.deepcopy(model).train()
    for module in model.modules():
        module._forward_pre_hooks.clear()
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(x).square().mean().backward()
    return counter.get_total_flops()


def step(growth: Growth, *batches: Tensor) -> None:
    """One optimizer step, with the gradients of several batches."""
    growth.model.train()
    total = torch.zeros(())
    for x in batches:
        loss = growth.model(x).square().mean() / len(batches)
        loss.backward()
        total = total + loss.detach()
    growth.optimizer.step()
    growth.optimizer.zero_grad()
    growth.step(total)


# Mixed precision: float16, which every CPU computes.


def half_answer(kind: Kind, model: nn.Module) -> Tensor:
    model.eval()
    with torch.no_grad(), torch.autocast("cpu", torch.float16):
        return run(model, kind.inputs(99)).clone()


def scaled_steps(kind: Kind, growth: Growth, scaler: torch.amp.GradScaler, steps: int, first: int = 0) -> list[float]:
    losses = []
    for number in range(first, first + steps):
        torch.manual_seed(number)
        growth.model.train()
        with torch.autocast("cpu", torch.float16):
            loss = run(growth.model, kind.inputs(number % 2)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(growth.optimizer)
        scaler.update()
        growth.optimizer.zero_grad()
        growth.step(loss)
        losses.append(loss.item())
    return losses


def mixed(kind: Kind, fused: bool, scale: float) -> tuple[nn.Module, Growth, torch.amp.GradScaler]:
    torch.manual_seed(1)
    model = kind.make(2)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=fused)
    return model, grow(model, optimizer, total=100, blend=3, policy=never), torch.amp.GradScaler("cpu", scale)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", TOYS)
def test_a_birth_under_autocast_changes_no_output_bit_and_training_goes_on(name, fused):
    kind = KINDS[name]
    model, growth, scaler = mixed(kind, fused, scale=256.0)
    losses = scaled_steps(kind, growth, scaler, 3)
    before = half_answer(kind, model)
    assert growth.deepen()
    after = half_answer(kind, model)
    assert after.dtype == before.dtype == torch.float16
    assert torch.equal(after.view(torch.int16), before.view(torch.int16))
    planted = {p: p.detach().clone() for p in model.parameters()}
    losses += scaled_steps(kind, growth, scaler, 14, first=3)
    assert not growth.is_blending
    assert all(torch.isfinite(torch.tensor(losses)))
    assert losses[16] < losses[6], "on the same batch, since the twins are blended in"
    assert scaler.get_scale() == 256.0, "no step was skipped"
    assert all(not torch.equal(p, old) for p, old in planted.items())
    assert {id(p) for p in growth.optimizer.state} == {id(p) for p in model.parameters()}
    last = half_answer(kind, model)
    growth.finish()
    assert torch.equal(half_answer(kind, model), last)


@pytest.mark.parametrize("fused", [False, True])
def test_steps_that_a_scaler_skips_are_charged_and_harm_nothing(fused):
    kind = KINDS["nested"]
    model, growth, scaler = mixed(kind, fused, scale=2.0**40)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    scaled_steps(kind, growth, scaler, 2)
    assert all(torch.equal(before[name], x) for name, x in model.state_dict().items()), "both steps overflow"
    assert (growth.steps, growth.spent) == (2, 2 * growth.step_cost)
    assert growth.deepen(), "of parameters that have no moments yet"
    scaled_steps(kind, growth, scaler, 40, first=2)
    assert scaler.get_scale() < 2.0**40
    assert not torch.equal(before["0.weight"], model.state_dict()["0.weight"])
    assert {id(p) for p in growth.optimizer.state} == {id(p) for p in model.parameters()}


# Accumulated gradients.


def accumulated(parts: int, **options: Any) -> Growth:
    torch.manual_seed(1)
    model = GPT(2)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    growth = grow(model, optimizer, policy=Doubling((0.3,)), **options)
    while not growth.done:
        step(growth, *tokens(8, rng_seed=growth.steps).chunk(parts))
    return growth


@pytest.mark.parametrize("budget", ["total", "total and example", "flops"])
def test_four_accumulated_batches_are_charged_like_one_of_their_size(budget):
    cost = operations(GPT(2), tokens(8))
    options: dict[str, Any] = {"flops": 20 * cost} if budget == "flops" else {"total": 20}
    if "example" in budget:
        options["example"] = tokens(2)
    whole, parts = accumulated(1, **options), accumulated(4, **options)
    assert whole.budget == parts.budget == 20 * cost
    assert (parts.steps, parts.spent) == (whole.steps, whole.spent)
    assert [(e.kind, e.step, e.flops) for e in parts.log] == [(e.kind, e.step, e.flops) for e in whole.log]
    assert "deepen" in [e.kind for e in parts.log]
    assert [birth.blend for birth in parts.births] == [birth.blend for birth in whole.births]
    for a, b in zip(parts.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_total_counts_optimizer_steps_whatever_a_step_consists_of():
    torch.manual_seed(1)
    model = GPT(2)
    growth = grow(model, torch.optim.SGD(model.parameters(), 1e-3), total=6, policy=never)
    while not growth.done:
        step(growth, *tokens(8).chunk(4))
    assert growth.steps == 6


# Schedulers of torch.

RATES = [1e-2, 4e-3]
STEPS = 16
SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "lambda": lambda o: lr_scheduler.LambdaLR(o, [lambda n: 0.97**n, lambda n: 1 / (1 + 0.05 * n)]),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=RATES, total_steps=STEPS + 1, pct_start=0.6),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.8, patience=1),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=2 * STEPS),
}


def grouped(model: nn.Module) -> torch.optim.Optimizer:
    """Matrices decay, vectors do not."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": matrices, "lr": RATES[0], "weight_decay": 0.1},
        {"params": vectors, "lr": RATES[1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups)


def rates(name: str, births: tuple[int, ...]) -> Iterator[list[tuple[float, float, Any]]]:
    """What a scheduler sets at every step; it exists before growth, which does not know it."""
    torch.manual_seed(1)
    model = GPT(1)
    optimizer = grouped(model)
    schedule = SCHEDULERS[name](optimizer)
    growth = None
    if births:
        policy = lambda g: Deepen() if g.steps in births else None  # noqa: E731
        growth = grow(model, optimizer, total=3 * STEPS, blend=2, policy=policy)
    for number in range(STEPS):
        loss = model(tokens(rng_seed=number)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if growth is not None:
            growth.step(loss)
        schedule.step(*([1.0 + 0.01 * (number % 4)] if name == "plateau" else []))
        yield [(group["lr"], group["weight_decay"], group["betas"]) for group in optimizer.param_groups]
    assert growth is None or growth.depth == {"blocks": 4}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_that_exist_before_growth_keep_their_groups_and_rates(name):
    grown, plain = list(rates(name, births=(3, 6))), list(rates(name, births=()))
    assert grown == plain
    assert len(grown[-1]) == 2
    assert len({step[0][0] for step in plain}) > 2, "the rate changes"


# Groups of parameters.


def test_twins_join_the_groups_of_what_they_copy():
    torch.manual_seed(1)
    model = GPT(2)
    embedding = [model.embed.weight]
    rest = list(model.blocks.parameters())
    optimizer = torch.optim.AdamW(
        [
            {"params": embedding, "lr": 3e-3},
            {"params": [p for p in rest if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
        ],
        lr=1e-3,
    )
    growth = grow(model, optimizer, total=50, blend=2, policy=never)
    step(growth, tokens())
    for expected in (4, 8):
        assert growth.deepen()
        for _ in range(3):
            step(growth, tokens())
        matrices = {id(p) for p in model.blocks.parameters() if p.ndim > 1}
        vectors = {id(p) for p in model.blocks.parameters() if p.ndim < 2}
        held = [[id(p) for p in group["params"]] for group in optimizer.param_groups]
        assert len(model.blocks) == expected
        assert [set(ids) for ids in held] == [{id(model.embed.weight)}, matrices, vectors]
        assert sum(map(len, held)) == 1 + len(matrices) + len(vectors), "each once"
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01, 0.1, 0.0]


# Evaluation, and inputs of any length.


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
def test_evaluation_between_steps_is_not_charged(training, grad):
    """In evaluation mode, and without gradients: either is enough. Both at once make a training pass."""
    if training and grad:
        return
    torch.manual_seed(1)
    model = GPT(2)
    growth = grow(model, torch.optim.AdamW(model.parameters(), 1e-3), total=20, policy=never)

    def evaluate() -> None:
        model.train(training)
        with torch.set_grad_enabled(grad):
            model(tokens(7, 5))
        model.train()

    evaluate()
    cost = operations(model, tokens())
    for number in range(1, 6):
        step(growth, tokens(rng_seed=number))
        evaluate()
        assert growth.spent == number * cost
    model(tokens(7, 5))
    step(growth, tokens())
    assert growth.spent == 6 * cost + operations(model, tokens(7, 5)), "a pass with gradients is one of training"


def test_inputs_of_any_length_are_charged_by_their_shapes():
    torch.manual_seed(1)
    model = GPT(2)
    growth = grow(model, torch.optim.AdamW(model.parameters(), 1e-3), flops=1e12, blend=2, policy=never)
    for length, batch in ((4, 2), (16, 2), (8, 3), (4, 2), (16, 1)):
        before = growth.spent
        step(growth, tokens(batch, length))
        assert growth.spent - before == operations(model, tokens(batch, length))
    assert growth.deepen()
    for length, batch in ((4, 2), (16, 2), (8, 3)):
        before = growth.spent
        step(growth, tokens(batch, length))
        assert growth.spent - before == operations(model, tokens(batch, length)), "at the depth of that step"


def test_many_lengths_are_charged_closely():
    torch.manual_seed(1)
    model = GPT(2)
    growth = grow(model, torch.optim.AdamW(model.parameters(), 1e-3), flops=1e12, policy=never)
    four, eight = (operations(model, tokens(2, length)) for length in (4, 8))
    quadratic = (eight - 2 * four) / 32  # of attention; everything else is linear in the length
    linear = four / 4 - 4 * quadratic
    lengths = range(4, 64, 3)
    for length in lengths:
        step(growth, tokens(2, length))
    assert growth.spent == pytest.approx(sum(linear * n + quadratic * n**2 for n in lengths), rel=0.03)
    assert len(lengths) > MOST_SHAPES


def test_inputs_given_by_keyword_are_charged_too():
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nested(2)

        def forward(self, *, inputs: Tensor, scale: float = 1.0) -> Tensor:
            return scale * self.body(inputs)

    torch.manual_seed(1)
    model = Named()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    growth = grow(model, optimizer, flops=1e12, policy=never)
    for rows in (4, 9):
        before = growth.spent
        loss = model(inputs=torch.randn(rows, 6), scale=2.0).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        growth.step(loss)
        assert growth.spent - before == operations(model.body, torch.randn(rows, 6))
