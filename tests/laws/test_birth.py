"""Law 1: birth changes no output bit."""

import contextlib

import pytest
import torch

from toys import SEEDS, bits, germinate, toy_trainer

PRECISIONS = {
    "float32": (torch.float32, contextlib.nullcontext),
    "float64": (torch.float64, contextlib.nullcontext),
    "autocast": (torch.float32, lambda: torch.autocast("cpu", torch.bfloat16)),
}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("kind", "blueprint", "graft"), SEEDS)
@torch.no_grad()
def test_birth_changes_no_output_bit(kind, blueprint, graft, precision):
    dtype, context = PRECISIONS[precision]
    trainer = toy_trainer(kind, dtype=dtype)
    x = trainer.task.validation.x
    with context():
        before = trainer.host(x)
        assert not trainer.act(germinate(trainer, blueprint, graft))
        born = trainer.host(x)
        trainer.begin_epoch()
        training = trainer.host(x)
    assert trainer.host.slot(0).seed is not None
    assert torch.equal(bits(before), bits(born))
    assert torch.equal(bits(before), bits(training))


@pytest.mark.parametrize(("kind", "blueprint", "graft"), SEEDS)
def test_a_newborn_adds_nothing_even_if_it_were_heard(kind, blueprint, graft):
    trainer = toy_trainer(kind)
    trainer.act(germinate(trainer, blueprint, graft))
    x = trainer.task.validation.x
    assert torch.equal(trainer.host(x), trainer.host(x, {0: torch.tensor(1.0)}))


def test_even_a_sick_seed_is_not_heard_at_alpha_0():
    trainer = toy_trainer("mlp")
    x = trainer.task.validation.x
    before = trainer.host(x)
    trainer.act(germinate(trainer, "mlp"))
    for p in trainer.host.slot(0).parameters():
        p.data.fill_(torch.nan)
    assert torch.equal(bits(before), bits(trainer.host(x)))
