"""FLOPs by hand, two for each product of a weight and an activation or of two activations; and as torch counts them."""

import pytest
import torch

from esper.kasmina.cost import cost_table, epoch_cost, host_cost, seed_cost
from esper.leyline.actions import Graft
from esper.leyline.specs import SlotSpec, Stream
from esper.tolaria import host_training
from esper.tolaria.host_measuring import examined
from toys import SEEDS, SPECS, counting_products, germinate, toy_trainer

TOKENS = 6
BLOCK = TOKENS * 8 * 24 + 2 * TOKENS * TOKENS * 8 + 3 * TOKENS * 8 * 8
HOSTS = {
    "mlp": 6 * 8 + 8 * 8 + 8 * 3,
    "cnn1d": 6 * (5 * 2 * 4) + 3 * (5 * 4 * 6) + 6 * 3,
    "cnn2d": 6 * 7 * (9 * 1 * 4) + 3 * 3 * (9 * 4 * 6) + 6 * 3,
    "transformer": 2 * BLOCK + TOKENS * 8 * 5,
    "gpt": BLOCK + 2 * TOKENS * 8 * (32 - 8) + TOKENS * 8 * 5,
    "resnet": 6 * 7 * 9 * (1 * 4 + 2 * 4 * 4) + 3 * 4 * 9 * (4 * 6 + 2 * 6 * 6) + 6 * 3,
}
FIRST = {"mlp": 6 * 8, "cnn1d": 6 * (5 * 2 * 4), "cnn2d": 6 * 7 * (9 * 1 * 4), "transformer": 0, "gpt": 0}
FIRST["resnet"] = FIRST["cnn2d"]
"""The layer that sees the data, whose gradient is not needed."""


@pytest.mark.parametrize("kind", SPECS)
def test_a_host_costs_its_matrix_products(kind):
    cost = host_cost(SPECS[kind])
    assert cost.forward == 2 * HOSTS[kind]
    assert cost.train == 3 * cost.forward - 2 * FIRST[kind]


def test_a_gate_costs_something_and_the_other_grafts_nothing():
    """A low-rank seed of 8 channels goes through 2 and back; the gate is one more output."""
    slot = SlotSpec("s0", Stream.VECTOR, (8,))
    cost = {graft: seed_cost(slot, "low_rank", graft) for graft in Graft}
    through = 2 * (8 * 2 + 2 * 8)
    assert {graft: c.forward for graft, c in cost.items()} == {
        Graft.ADD: through,
        Graft.MULTIPLY: through,
        Graft.GATE: through + 2 * 8,
        Graft.REPLACE: through,
    }
    assert cost[Graft.ADD] == (through, 3 * through, 2 * through + through // 2, 2 * through)


@pytest.mark.parametrize(("kind", "blueprint", "graft"), SEEDS)
def test_what_is_charged_is_what_torch_counts(kind, blueprint, graft):
    """Silent in the first slot, in front of an audible seed in the second; then both audible. On plain PyTorch."""
    trainer = toy_trainer(kind, examples=32)
    trainer.decide(germinate(trainer, blueprint, graft, "s1"))
    for _ in range(4):
        trainer.decide(trainer.space.action("ADVANCE", slot="s1"))
    trainer.act(germinate(trainer, blueprint, graft, "s0"))
    trainer.begin_epoch()
    table = cost_table(trainer.spec, torch.device("cpu"))
    for silent in (True, False):
        assert (trainer.state.alpha[0] > 0).tolist() == [not silent, True]
        with counting_products() as counter:
            host_training.train_epoch(trainer)
        assert counter.get_total_flops() == 32 * int(epoch_cost(table, trainer.state).step)
        both = {name: getattr(trainer.state, name)[:, [1, 1]] for name in ("stage", "alpha")}
        trainer.tend(trainer.state._replace(**both))


@pytest.mark.parametrize("kind", SPECS)
def test_measuring_is_charged_as_torch_counts_it(kind):
    trainer = toy_trainer(kind, examples=32)
    for slot in ("s0", "s1"):
        trainer.decide(germinate(trainer, trainer.space.blueprints[-1], Graft.ADD, slot))
        for _ in range(4 if slot == "s0" else 0):
            trainer.decide(trainer.space.action("ADVANCE", slot=slot))
    cost = epoch_cost(trainer.costs, trainer.state)
    with counting_products() as counter, host_training.streams_of(trainer.host) as streams:
        now = trainer.evaluate()
    assert counter.get_total_flops() == 64 * int(cost.validation)
    norms = {group["name"]: 1.0 for group in trainer.optimizer.param_groups}
    with counting_products() as counter:
        examined(trainer, 0.0, norms, now, streams)
    assert counter.get_total_flops() == 64 * int(cost.counterfactuals)
