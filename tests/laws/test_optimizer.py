"""Law 5: every live parameter is in the optimiser exactly once; newborns start at zero; nothing stale remains."""

import pytest
import torch

from esper.leyline.actions import Op
from esper.tolaria import TrainConfig, host_training
from toys import SEEDS, germinate, toy_trainer

OPTIMIZERS = {"adamw": TrainConfig(batch_size=32), "sgd": TrainConfig(batch_size=32, optimizer="sgd", lr=0.05)}


def assert_faithful(trainer) -> None:
    """The groups are the trunk and the seeds, no parameter is missing or twice, and no state is anyone else's."""
    groups = {group["name"]: group["params"] for group in trainer.optimizer.param_groups}
    expected = {"trunk": list(trainer.host.segments.parameters())}
    for s, spec in enumerate(trainer.host.slot_specs):
        if trainer.host.slot(s).seed is not None:
            expected[spec.name] = list(trainer.host.slot(s).parameters())
    assert groups.keys() == expected.keys()
    for name in expected:
        assert [id(p) for p in groups[name]] == [id(p) for p in expected[name]]
    live = [id(p) for p in trainer.host.parameters()]
    assert len(live) == len(set(live)) == sum(len(params) for params in groups.values())
    assert {id(p) for p in trainer.optimizer.state} <= set(live)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("kind", "blueprint", "graft"), SEEDS)
def test_a_seed_enters_at_birth_and_leaves_without_a_trace(kind, blueprint, graft, optimizer):
    trainer = toy_trainer(kind, config=OPTIMIZERS[optimizer], examples=64)
    trainer.decide(trainer.space.action())
    assert not trainer.act(germinate(trainer, blueprint, graft))
    assert_faithful(trainer)
    newborn = list(trainer.host.slot(0).parameters())
    assert not any(trainer.optimizer.state.get(p) for p in newborn)
    trainer.begin_epoch()
    host_training.train_epoch(trainer)
    trunk = next(trainer.host.segments.parameters())
    if optimizer == "adamw":
        assert {trainer.optimizer.state[p]["step"].item() for p in newborn} == {2}
        assert trainer.optimizer.state[trunk]["step"].item() == 4
    for _ in range(3):
        trainer.decide(trainer.space.action())
    assert not trainer.decide(trainer.space.action("PRUNE", slot="s0", alpha_speed="instant")).refused
    assert_faithful(trainer)
    assert len(trainer.optimizer.param_groups) == 1
    assert trainer.optimizer.state.keys() == set(trainer.host.parameters())


def test_each_group_is_clipped_by_itself():
    """A seed with huge gradients leaves its host's step alone, and the other way round."""
    alone, holder = toy_trainer("mlp"), toy_trainer("mlp")
    holder.act(germinate(holder, "mlp"))
    holder.begin_epoch()
    x, y = (part[:32] for part in alone.task.train)
    host_training.gradients(alone, x, y)
    host_training.gradients(holder, x, y)
    for p in holder.host.slot(0).parameters():
        p.grad = torch.full_like(p, 1e20)
    assert host_training.step(holder)["trunk"] == host_training.step(alone)["trunk"]
    for a, b in zip(alone.host.segments.parameters(), holder.host.segments.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("kind", ["mlp", "transformer"])
def test_whatever_is_done_the_optimizer_stays_faithful(kind):
    trainer = toy_trainer(kind, examples=32)
    generator = torch.Generator().manual_seed(11)
    for _ in range(120):
        action = [int(torch.randint(-1, size + 1, (), generator=generator)) for size in trainer.space.sizes]
        before, known = trainer.legal(), 0 <= action[0] < len(Op)
        report = trainer.decide(action)
        if action[0] == Op.WAIT:
            assert not report.refused
        elif known and all(0 <= action[head] < trainer.space.sizes[head] for head in Op(action[0]).heads):
            assert report.refused == (not before[action[0], action[1]])
        else:
            assert report.refused
        assert report.op == (Op(action[0]).name if known else str(action[0]))
        assert_faithful(trainer)
