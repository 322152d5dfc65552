"""Training files: a loaded trainer is the saved one, to the last number."""

import pytest
import torch

from esper.kasmina import LifecycleConfig
from esper.leyline.actions import Graft
from esper.tolaria import TrainConfig, load_training, save_training
from toys import germinate, same_bits, toy_trainer

CONFIGS = {"adamw": TrainConfig(batch_size=32), "sgd": TrainConfig(batch_size=32, optimizer="sgd")}
HASTY = LifecycleConfig(training=1)


@pytest.mark.parametrize("optimizer", CONFIGS)
def test_a_loaded_trainer_is_the_saved_one(optimizer, tmp_path):
    """Weights, moments, step counts, slots, vitals, epoch and random seed, with an audible seed and a silent one."""
    options = {"config": CONFIGS[optimizer], "examples": 64, "lifecycle": HASTY}
    trainer, other = (toy_trainer("mlp", rng_seed=rng_seed, **options) for rng_seed in (3, 99))
    for action in (
        germinate(trainer, "mlp", Graft.GATE),
        trainer.space.action(),
        germinate(trainer, "norm", slot="s1"),
    ):
        trainer.decide(action)
    assert trainer.host.slot(0).alpha > 0
    assert trainer.host.slot(1).alpha == 0
    save_training(tmp_path / "file", trainer)
    load_training(tmp_path / "file", other)
    assert (other.rng_seed, other.epoch) == (3, 3)
    assert same_bits(trainer.host.state_dict(), other.host.state_dict())
    for a, b in zip((*trainer.state, *trainer.vitals), (*other.state, *other.vitals), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    ours, theirs = trainer.optimizer.param_groups, other.optimizer.param_groups
    assert [group["name"] for group in theirs] == ["trunk", "s0", "s1"]
    for a, b in zip(ours, theirs, strict=True):
        for p, q in zip(a["params"], b["params"], strict=True):
            states = [x.optimizer.state[parameter] for x, parameter in ((trainer, p), (other, q))]
            assert states[0].keys() == states[1].keys()
            assert states[0]
            assert all(torch.equal(torch.as_tensor(states[0][name]), states[1][name]) for name in states[0])
