"""A compiled model is compiled at most once more for a birth, and never for alpha."""

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from conftest_growth import GPT
from esper.growth import grow


@pytest.mark.parametrize("order", ["before", "after", "in place"])
def test_one_compilation_for_a_birth_and_none_for_alpha(order):
    torch._dynamo.reset()
    torch.manual_seed(0)
    counter, model = CompileCounter(), GPT(1)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    x = torch.randint(32, (2, 8), generator=torch.Generator().manual_seed(0))
    called = model
    if order == "before":
        called = torch.compile(model, backend=counter)
    growth = grow(called, optimizer, total=1000, blend=6, example=x, policy=lambda growth: None)
    if order == "after":
        called = torch.compile(model, backend=counter)
    elif order == "in place":
        model.compile(backend=counter)

    def step() -> None:
        loss = called(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        growth.step(loss)

    frames = []
    for _birth in range(2):
        for _ in range(3):
            step()
        frames.append(counter.frame_count)
        model.eval()
        with torch.no_grad():
            before = called(x).clone()
        growth.deepen()
        with torch.no_grad():
            assert torch.equal(called(x), before), "birth changes no output bit"
        model.train()
        frames.append(counter.frame_count)  # evaluation is compiled by itself
        step()
        frames.append(counter.frame_count)
        for _ in range(9):
            step()
        frames.append(counter.frame_count)
        assert not growth.is_blending
        loss = called(x).square().mean()
        alone = model.__class__.forward(model, x).square().mean()
        torch.testing.assert_close(loss, alone)
    for first in (0, 4):
        trained, evaluated, born, blended = frames[first : first + 4]
        assert born - evaluated <= 1, frames
        assert blended == born, frames
    assert trained > 0
    growth.finish()
