"""Bad input is answered in one sentence, with model and optimizer untouched."""

import copy
import subprocess
import sys
import warnings

import pytest
import torch
from torch import Tensor, nn

from conftest_growth import GPT, WIDTH, Block, nested
from esper.growth import Deepen, Growth, grow, resume
from esper.growth.chains import find_chains
from esper.growth.compute import as_call
from esper.growth.optimizers import check_optimizer
from esper.growth.trace import verify
from esper.growth.wrappers import unwrapped
from esper.leyline.errors import EsperError, FileError

X = torch.randint(32, (2, 8), generator=torch.Generator().manual_seed(0))


def optimizer_for(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), 1e-2)


def step(growth: Growth, loss: Tensor | None = None) -> None:
    found = growth.model(X).square().mean() if loss is None else loss
    if loss is None:
        found.backward()
    growth.optimizer.step()
    growth.optimizer.zero_grad()
    growth.step(found)


class Refused(nn.Module):
    """Models whose blocks look like a chain and are none."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.others = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "parallel":
            return sum((block(x) for block in self.blocks), torch.zeros(()))
        if self.how == "fixed count":
            return self.blocks[1](self.blocks[0](x))
        if self.how == "zipped":
            for block, other in zip(self.blocks, self.others, strict=False):
                x = other(block(x))
            return x
        for block in self.blocks:
            x = 0.5 * block(x) if self.how == "between" else block.forward(x)
        return x


REASONS = {
    "parallel": "something happens between its blocks",
    "fixed count": "it counts them by a number of its own",
    "zipped": "the model calls 2 of 4 blocks",
    "between": "something happens between its blocks",
    "forward": "does not call its blocks one by one",
}


@pytest.mark.parametrize("how", REASONS)
def test_blocks_that_form_no_chain_are_refused_with_the_reason(how):
    model = Refused(how)
    before = copy.deepcopy(model.state_dict())
    stream = torch.randn(2, 5, WIDTH)
    with pytest.raises(EsperError, match=REASONS[how]):
        grow(model, optimizer_for(model), total=10, example=stream)
    assert len(model.blocks) == 2
    assert all(torch.equal(before[name], x) for name, x in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_chain_that_changes_its_stream_is_refused():
    widening = nn.Sequential(*(nn.Sequential(nn.Linear(4, 8), nn.ReLU()) for _ in range(1)))
    chains, _ = find_chains(nn.Sequential(nn.Linear(4, 4), widening))
    model = nn.Sequential(nn.Linear(4, 4), widening)
    chains, _ = find_chains(model)
    kept, refused = verify(model, chains, as_call(torch.randn(2, 4)))
    assert kept == []
    assert "fails when a block is repeated" in refused[0].reason


def test_named_and_repeated_blocks_are_refused():
    named = nn.Sequential()
    for name in ("first", "second"):
        named.add_module(name, nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    for model, reason in ((named, "names instead of numbers"), (nn.Sequential(block, block), "listed twice")):
        with pytest.raises(EsperError, match=reason):
            grow(model, optimizer_for(model), total=10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give one budget"),
        ({"total": 5, "flops": 1e9}, "give one budget"),
        ({"total": 0}, "budget must be positive, not 0"),
        ({"total": -3}, "budget must be positive, not -3"),
        ({"total": 5, "max_growth": 0.5}, "max_growth must be at least 1, not 0.5"),
        ({"total": 5, "policy": "doublin"}, "unknown policy 'doublin': did you mean 'doubling'"),
    ],
)
def test_bad_options(options, message):
    model = GPT()
    with pytest.raises(EsperError, match=message):
        grow(model, optimizer_for(model), **options)
    grow(model, optimizer_for(model), total=5).finish()


def test_bad_models_and_optimizers():
    model = GPT()
    few = torch.optim.AdamW(model.blocks.parameters())
    cases = [
        (nn.DataParallel(model), optimizer_for(model), "DataParallel cannot be grown"),
        (model, torch.optim.LBFGS(model.parameters()), "optimizer LBFGS cannot be grown"),
        (model, few, "optimizer lacks 1 trainable parameters of the model, first 'embed.weight'"),
        (nn.Linear(3, 3), None, "no chain of like blocks"),
    ]
    for given, optimizer, message in cases:
        with pytest.raises(EsperError, match=message):
            grow(given, optimizer or optimizer_for(given), total=10)
    with pytest.raises(EsperError, match=r"model must be a torch.nn.Module, not str"):
        unwrapped("not a model")
    with pytest.raises(EsperError, match=r"optimizer must be a torch.optim.Optimizer, not str"):
        check_optimizer("adam", model)
    growth = grow(model, optimizer_for(model), total=10)
    with pytest.raises(EsperError, match="this model is being grown already"):
        grow(model, optimizer_for(model), total=10)
    growth.finish()
    grow(model, optimizer_for(model), total=10)


def test_steps_at_the_wrong_time():
    model = GPT()
    growth = grow(model, optimizer_for(model), total=3, policy=lambda growth: None)
    with pytest.raises(EsperError, match="not called in training mode"):
        growth.step()
    for _ in range(3):
        step(growth)
    assert growth.done
    with pytest.raises(EsperError, match="the budget is spent"):
        step(growth)
    growth.finish()
    with pytest.raises(EsperError, match="the growth is finished"):
        growth.step()
    with pytest.raises(EsperError, match="nothing to undo"):
        growth.undo()


def test_a_loss_that_is_not_finite_is_named_and_after_a_birth_taken_back():
    model = GPT()
    growth = grow(model, optimizer_for(model), total=100, blend=5)
    for _ in range(3):
        step(growth)
    kept = copy.deepcopy(model.state_dict())
    with pytest.raises(EsperError, match="the loss is not finite at step 4"):
        growth.step(torch.tensor(torch.nan))
    assert all(torch.equal(kept[name], x) for name, x in model.state_dict().items())
    growth.deepen()
    step(growth)
    growth.step(torch.tensor(torch.inf))
    assert growth.depth == {"blocks": 2}
    assert all(torch.equal(kept[name], x) for name, x in model.state_dict().items())
    assert growth.log[-1].kind == "rollback"
    step(growth)


def test_divergence_after_a_birth_is_taken_back_with_the_optimizer():
    model = GPT()
    growth = grow(model, optimizer_for(model), total=100, blend=5)
    for _ in range(3):
        step(growth)
    names = {id(p): name for name, p in model.named_parameters()}
    moments = {names[id(p)]: s["exp_avg"].clone() for p, s in growth.optimizer.state.items()}
    growth.deepen()
    step(growth)
    assert growth.average is not None
    usual = growth.average
    growth.step(3 * usual)
    assert growth.depth == {"blocks": 4}, "one bad batch is no divergence"
    for _ in range(3):
        growth.step(10 * usual)
        if growth.depth == {"blocks": 2}:
            break
    assert growth.depth == {"blocks": 2}
    after = {names[id(p)]: s["exp_avg"] for p, s in growth.optimizer.state.items()}
    assert after.keys() == moments.keys()
    assert all(torch.equal(after[name], moments[name]) for name in moments)


def test_growing_at_a_decayed_rate_warns():
    model = GPT()
    growth = grow(model, optimizer_for(model), total=100)
    step(growth)
    growth.optimizer.param_groups[0]["lr"] = 1e-3
    with pytest.warns(UserWarning, match="below half of its peak"):
        growth.deepen()
    growth.undo()
    growth.optimizer.param_groups[0]["lr"] = 9e-3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        growth.deepen()


def test_resuming_into_another_constructor_is_refused(tmp_path):
    model = GPT()
    growth = grow(model, optimizer_for(model), total=100)
    step(growth)
    growth.save(tmp_path)
    for wrong, message in ((GPT(3), "another constructor: 12 tensors differ"), (nested(), "another constructor")):
        before = copy.deepcopy(wrong.state_dict())
        with pytest.raises(FileError, match=message):
            resume(wrong, optimizer_for, tmp_path)
        assert all(torch.equal(before[name], x) for name, x in wrong.state_dict().items())
    with pytest.raises(FileError, match="saved with the optimizer AdamW, not SGD"):
        resume(GPT(), lambda m: torch.optim.SGD(m.parameters()), tmp_path)
    growth.deepen()
    growth.save(tmp_path)
    whole = GPT()
    before = copy.deepcopy(whole.state_dict())
    halves = [{"params": whole.blocks.parameters()}, {"params": whole.embed.parameters()}]
    with pytest.raises(FileError, match="groups hold other parameters"):
        resume(whole, lambda m: torch.optim.AdamW(halves), tmp_path)
    assert whole.state_dict().keys() == before.keys()
    assert all(torch.equal(before[name], x) for name, x in whole.state_dict().items())
    with pytest.raises(FileError, match="holds no saved growth"):
        resume(GPT(), optimizer_for, tmp_path / "nowhere")


def test_growing_before_the_chains_are_checked_is_refused():
    model = GPT()
    growth = grow(model, optimizer_for(model), total=10)
    with pytest.raises(EsperError, match="cannot be grown before it is checked: pass example="):
        growth.deepen()
    assert growth.depth == {"blocks": 2}
    growth.finish()
    growth = grow(model, optimizer_for(model), total=10, example=X)
    assert growth.deepen()


def test_resume_keeps_the_governor_on_or_off(tmp_path):
    for governed in (True, False):
        model = GPT()
        growth = grow(model, optimizer_for(model), total=10, governed=governed)
        step(growth)
        growth.save(tmp_path / str(governed))
        assert resume(GPT(), optimizer_for, tmp_path / str(governed)).config.governed is governed


def test_limits_hold():
    model = GPT()
    growth = grow(model, optimizer_for(model), total=100, max_growth=1.5, blend=1)
    step(growth)
    assert growth.deepen()
    assert growth.depth == {"blocks": 3}
    step(growth)
    assert not growth.deepen()
    growth.finish()
    count = sum(p.numel() for p in model.parameters())
    growth = grow(model, optimizer_for(model), total=100, max_parameters=count + 1, blend=1)
    step(growth)
    assert not growth.deepen()
    with pytest.raises(EsperError, match="there is no chain 'layers': choose from blocks"):
        growth.apply(Deepen("layers"))
    with pytest.raises(EsperError, match="times must be at least 2"):
        Deepen(times=1)


def test_total_counts_optimizer_steps_however_many_batches_they_take():
    model = GPT()
    growth = grow(model, optimizer_for(model), total=40, policy=lambda growth: None)
    while not growth.done:
        for _ in range(3):
            model(X).square().mean().backward()
        step(growth)
    assert (growth.steps, growth.progress, growth.blend) == (40, 1.0, 1)


EXTRAS = """
import sys
import esper.growth
assert not {"lightning", "transformers", "accelerate"} & sys.modules.keys()
for package, module in (("lightning", "lightning"), ("accelerate", "huggingface")):
    sys.modules[package] = None
    try:
        __import__(f"esper.growth.{module}")
    except esper.EsperError as error:
        print(error)
"""


def test_training_frameworks_are_imported_only_when_used_and_named_when_missing():
    result = subprocess.run([sys.executable, "-c", EXTRAS], capture_output=True, text=True)
    assert result.stdout.splitlines() == [
        "lightning is not installed: pip install 'esper-nn[lightning]'",
        "transformers or accelerate is not installed: pip install 'esper-nn[transformers]'",
    ], result.stderr
