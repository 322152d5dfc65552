"""The reference trainer: deterministic, measured from the first epoch, with clear errors."""

import pytest
import torch
from torch import nn

from esper.kasmina import register_blueprint, unregister_blueprint
from esper.leyline.actions import Graft
from esper.leyline.errors import EsperError
from esper.leyline.rng import Purpose, key, permutation
from esper.leyline.specs import HostSpec
from esper.tolaria import HostTrainer, TrainConfig, host_training
from esper.tolaria.surgery import add_group, make_optimizer, remove_group
from toys import SPECS, germinate, same_bits, toy_task, toy_trainer


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_without_growth_it_is_plain_pytorch(kind, optimizer):
    """Weights equal those of a plain PyTorch loop."""
    config = TrainConfig(batch_size=32, optimizer=optimizer, lr=0.01, weight_decay=0.01, clip=0.5)
    trainer = toy_trainer(kind, config=config, examples=200, dtype=torch.float64)
    model = torch.nn.Sequential(*toy_trainer(kind).host.double().segments)
    if optimizer == "adamw":
        plain = torch.optim.AdamW(model.parameters(), 0.01, betas=config.betas, weight_decay=0.01)
    else:
        plain = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=0.01)
    x, y = trainer.task.train
    for epoch in range(2):
        trainer.decide(trainer.space.action())
        order = permutation(key(0, Purpose.SHUFFLE, epoch), len(x))
        assert sorted(order.tolist()) == list(range(len(x)))
        for batch in order[:192].split(32):
            plain.zero_grad()
            torch.nn.functional.cross_entropy(model(x[batch]).flatten(0, -2), y[batch].flatten()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            plain.step()
    for a, b in zip(trainer.host.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", SPECS)
def test_the_same_number_gives_the_same_life(kind):
    def life(rng_seed: int):
        trainer = toy_trainer(kind, rng_seed=rng_seed)
        first = trainer.decide(germinate(trainer, "norm", Graft.GATE))
        torch.rand(3)
        return first, trainer.decide(trainer.space.action()), trainer.host.state_dict()

    a, b, other = life(3), life(3), life(4)
    assert a[:2] == b[:2]
    assert same_bits(a[2], b[2])
    assert a[0].train_loss != other[0].train_loss


def test_contribution_is_measured_from_the_first_epoch_and_is_what_switching_does():
    trainer = toy_trainer("mlp")
    report = trainer.decide(germinate(trainer, "mlp"))
    for _ in range(8):
        slot = report.slots[0]
        assert slot.contribution is not None
        target = trainer.state.alpha_target[0, 0]
        if slot.alpha == 0:
            expected = trainer.evaluate({0: target}).score - trainer.evaluate().score
        else:
            expected = trainer.evaluate().score - trainer.evaluate({0: torch.tensor(0.0)}).score
        assert slot.contribution == pytest.approx(expected)
        report = trainer.decide(trainer.space.action())
    assert report.slots[0].stage == "HOLDING"


def test_groups_come_and_go_without_a_trace():
    """Other groups keep their moments, and new groups have the optimizer's own settings."""
    trunk, first, second = (nn.Parameter(torch.full((2,), value)) for value in (1.0, 2.0, 3.0))
    optimizer = make_optimizer([trunk], TrainConfig(lr=0.5, weight_decay=0.25))
    add_group(optimizer, "s0", [first])
    add_group(optimizer, "s1", [second])
    for p in (trunk, first, second):
        p.grad = torch.ones_like(p)
    optimizer.step()
    kept = {p: dict(optimizer.state[p]) for p in (trunk, second)}
    remove_group(optimizer, "s0")
    assert [group["name"] for group in optimizer.param_groups] == ["trunk", "s1"]
    assert {group["lr"] for group in optimizer.param_groups} == {0.5}
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.25}
    assert dict(optimizer.state) == kept


def test_a_silent_seed_learns_as_it_will_be_heard():
    """Its gradient is that of the loss with the seed at its alpha target."""
    trainer = toy_trainer("mlp")
    trainer.act(trainer.space.action("GERMINATE", slot="s0", blueprint="mlp", alpha_target="0.5"))
    trainer.begin_epoch()
    x, y = (part[:32] for part in trainer.task.train)
    parameters = list(trainer.host.slot(0).parameters())
    expected = torch.autograd.grad(host_training.mean_loss(trainer, x, y, {0: torch.tensor(0.5)}), parameters)
    host_training.gradients(trainer, x, y)
    for p, gradient in zip(parameters, expected, strict=True):
        assert p.grad is not None
        assert torch.equal(p.grad, gradient)


def test_growth_counts_silent_seeds():
    trainer = toy_trainer("mlp")
    bare = sum(p.numel() for p in trainer.host.parameters())
    report = trainer.decide(germinate(trainer, "mlp"))
    seed = sum(p.numel() for p in trainer.host.slot(0).parameters())
    assert report.slots[0].alpha == 0
    assert report.growth == seed / bare
    assert report.parameters == seed + bare


def test_a_sick_seed_is_noticed_and_may_go_at_once():
    trainer = toy_trainer("mlp")
    trainer.decide(germinate(trainer, "mlp"))
    assert trainer.decide(trainer.space.action("PRUNE", slot="s0")).refused
    for p in trainer.host.slot(0).parameters():
        p.data.fill_(torch.nan)
    report = trainer.decide(trainer.space.action())
    assert trainer.vitals.sane[0]
    assert not trainer.vitals.healthy[0, 0]
    assert report.slots[0].stage == "TRAINING"
    for _ in range(4):
        assert trainer.decide(trainer.space.action()).slots[0].stage == "TRAINING"
    assert not trainer.decide(trainer.space.action("PRUNE", slot="s0")).refused


def test_nothing_is_planted_in_a_sick_host():
    trainer = toy_trainer("mlp")
    next(trainer.host.segments.parameters()).data.fill_(torch.nan)
    trainer.decide(trainer.space.action())
    assert not trainer.vitals.sane[0]
    assert trainer.decide(germinate(trainer, "mlp")).refused


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: HostTrainer(SPECS["mlp"], toy_task("cnn1d")), "the host takes"),
        (lambda: HostTrainer(SPECS["mlp"], toy_task("mlp", 16)), r"batch_size \(64\) exceeds the 16 training"),
        (lambda: TrainConfig(lr=0), "lr must be positive"),
        (lambda: TrainConfig(clip=-1), "clip must be positive"),
        (lambda: TrainConfig(betas=(0.9, 1.0)), "betas must be two numbers"),
        (lambda: toy_trainer("mlp").act((0, 0)), "an action has 8 choices"),
        (lambda: HostTrainer(SPECS["mlp"], toy_task("mlp", 64, 0)), "no validation examples"),
        (lambda: TrainConfig(weight_decay=-1), "weight_decay must not be negative"),
    ],
)
def test_impossible_settings_name_the_field(call, message):
    with pytest.raises(EsperError, match=message):
        call()


def test_a_seed_that_cannot_be_built_changes_nothing():
    """It passes the probe, where streams are even, and fails on this host's odd one."""
    odd = HostSpec("mlp", (6,), 3, (7, 7))
    trainer = HostTrainer(odd, toy_task("mlp"), TrainConfig(batch_size=32))
    register_blueprint(
        "pairs",
        lambda slot: (
            nn.Conv1d(slot.channels, slot.channels, 1, groups=slot.channels // 2)
            if slot.channels % 2
            else nn.Linear(slot.channels, slot.channels)
        ),
        "vector",
    )
    try:
        trainer = HostTrainer(odd, toy_task("mlp"), TrainConfig(batch_size=32))
        before = trainer.state
        with pytest.raises(EsperError, match="blueprint 'pairs' in slot 's0' of shape"):
            trainer.decide(germinate(trainer, "pairs"))
        assert trainer.state is before
        assert not trainer.decide(germinate(trainer, "mlp")).refused
    finally:
        unregister_blueprint("pairs", "vector")


def test_the_precision_is_the_hosts():
    trainer = HostTrainer(SPECS["mlp"], toy_task("mlp"), TrainConfig(batch_size=32), dtype=torch.float64)
    trainer.decide(germinate(trainer, "mlp"))
    assert {p.dtype for p in trainer.host.parameters()} == {torch.float64}


def test_cost_counts_side_rows_and_counterfactuals():
    trainer = toy_trainer("mlp", examples=64)
    bare, rest = 2 * (6 * 8 + 8 * 8 + 8 * 3), 2 * (8 * 8 + 8 * 3)
    training = 2 * bare + rest  # the gradient of the input is not needed
    seed = 2 * (8 * 32 + 32 * 8)
    assert trainer.decide(trainer.space.action()).flops == 64 * training + 64 * bare
    silent = trainer.decide(germinate(trainer, "mlp"))
    assert silent.flops == 64 * (training + 2.5 * seed + 2 * rest) + 64 * (bare + rest + seed)
    for _ in range(3):
        heard = trainer.decide(trainer.space.action())
    assert heard.slots[0].alpha > 0
    assert heard.flops == 64 * (training + 3 * seed) + 64 * (bare + seed + rest)


@pytest.mark.slow
def test_growth_pays_on_spirals():
    """A weak host with a seed ends above its twin, paired over five hosts."""
    from esper.kasmina import weak_host
    from esper.tasks import load_task

    task = load_task("spirals")
    gains = []
    for rng_seed in range(5):
        scores = []
        for assignment in ({}, {0: {"slot": "s0", "blueprint": "mlp"}}):
            trainer = HostTrainer(weak_host("mlp", (2,), 3), task, rng_seed=rng_seed)
            for epoch in range(15):
                op = "GERMINATE" if epoch in assignment else "WAIT"
                report = trainer.decide(trainer.space.action(op, **assignment.get(epoch, {})))
            scores.append(report.score)
        gains.append(scores[1] - scores[0])
    assert min(gains) > 0.02
