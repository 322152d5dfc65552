"""Law 6: the fleet equals its hosts. Stacking changes the speed, never the numbers."""

import pytest
import torch

from esper.leyline.actions import GRAFTS, Graft
from esper.tolaria import Engine, Fleet, HostTrainer, TrainConfig
from toys import CHAINS, SPECS, random_legal, rows_of, toy_task, toy_trainer

CONFIGS = {
    "adamw": TrainConfig(batch_size=32, lr=0.01, weight_decay=0.01, clip=0.5),
    "sgd": TrainConfig(batch_size=32, lr=0.05, weight_decay=0.01, optimizer="sgd", newborn_boost=2.0, warmup=2),
}


def pair(kind: str, config: TrainConfig, num_hosts: int = 7) -> tuple[Fleet, list[HostTrainer]]:
    """The same hosts, stacked and alone."""
    options = {"config": config, "dtype": torch.float64, "examples": 72}
    alone = [toy_trainer(kind, rng_seed=n, **options) for n in range(num_hosts)]
    task = toy_task(kind, 72, dtype=torch.float64)
    return Fleet(SPECS[kind], task, range(num_hosts), config, engine=Engine(precision="fp64")), alone


@pytest.mark.parametrize("optimizer", CONFIGS)
@pytest.mark.parametrize("kind", SPECS)
def test_the_fleet_equals_its_hosts(kind, optimizer):
    """Every weight, loss, contribution and stage, to 1e-9, and every FLOP, over lives of random legal actions."""
    fleet, alone = pair(kind, CONFIGS[optimizer])
    generator = torch.Generator().manual_seed(3)
    kinds, grafts, stages = set(), set(), set()
    for _ in range(12):
        actions = random_legal(fleet.legal(), fleet.space.sizes, generator)
        refused, train_loss, measured = fleet.decide(actions)
        flops = fleet.flops().tolist()
        for n, host in enumerate(alone):
            report = host.decide(actions[n].tolist())
            assert report.flops == flops[n]
            assert report.refused == refused[n]
            assert report.train_loss == pytest.approx(train_loss[n].item(), abs=1e-9)
            assert report.validation_loss == pytest.approx(measured.loss[n].item(), abs=1e-9)
            assert report.metric == pytest.approx(measured.metric[n].item(), abs=1e-9)
            together, expected = rows_of(fleet, n), dict(host.host.named_parameters())
            assert together.keys() == expected.keys()
            for name in expected:
                torch.testing.assert_close(together[name], expected[name], rtol=0, atol=1e-9)
            for ours, theirs in zip(fleet.state, host.state, strict=True):
                assert torch.equal(ours[n], theirs[0])
            assert fleet.vitals.sane[n] == host.vitals.sane[0]
            assert torch.equal(fleet.vitals.healthy[n], host.vitals.healthy[0])
            expected_worth = host.vitals.contribution[0].double()
            torch.testing.assert_close(
                measured.contribution[n].double(), expected_worth, equal_nan=True, rtol=0, atol=1e-6
            )
            torch.testing.assert_close(fleet.vitals.pull[n], host.vitals.pull[0], rtol=1e-5, atol=1e-9)
            torch.testing.assert_close(
                fleet.vitals.share[n], host.vitals.share[0], rtol=1e-5, atol=1e-9, equal_nan=True
            )
        kinds |= set(fleet.buckets)
        grafts |= set(fleet.state.graft[fleet.state.blueprint >= 0].tolist())
        stages |= set(fleet.state.stage.unique().tolist())
    assert len(kinds) > 5
    assert grafts == {*GRAFTS, *([Graft.REPLACE] if kind in CHAINS else [])}
    assert len(stages) >= 6


@pytest.mark.parametrize("kind", SPECS)
def test_the_bits_of_a_host_do_not_depend_on_its_fleet(kind):
    """Alone with one companion, or in the middle of eleven others: the same weights to the last bit."""
    config = TrainConfig(batch_size=32)
    task = toy_task(kind, 72)
    small = Fleet(SPECS[kind], task, [5, 3], config)
    large = Fleet(SPECS[kind], task, [*range(20, 26), 3, *range(30, 35), 5], config)
    place = {3: (1, 6), 5: (0, 12)}
    generator = torch.Generator().manual_seed(4)
    for _ in range(8):
        actions = random_legal(large.legal(), large.space.sizes, generator)
        large.decide(actions)
        small.decide(actions[[place[5][1], place[3][1]]])
        for here, there in place.values():
            ours, theirs = rows_of(small, here), rows_of(large, there)
            assert ours.keys() == theirs.keys()
            assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert small.buckets


@pytest.mark.parametrize("kind", SPECS)
def test_one_step_in_single_precision_is_close(kind):
    """The gradients of one batch, as the change that plain SGD makes of them."""
    config = TrainConfig(batch_size=64, optimizer="sgd", momentum=0.0, lr=1.0, clip=1e6)
    fleet = Fleet(SPECS[kind], toy_task(kind, 64), range(5), config)
    before = {n: {k: p.clone() for k, p in rows_of(fleet, n).items()} for n in range(5)}
    fleet.decide(torch.zeros(5, 8, dtype=torch.long))
    for n in range(5):
        host = toy_trainer(kind, rng_seed=n, config=config, examples=64)
        start = {k: p.detach().clone() for k, p in host.host.named_parameters()}
        host.decide(host.space.action())
        for name, p in host.host.named_parameters():
            gradient = start[name] - p.detach()
            stacked = before[n][name] - rows_of(fleet, n)[name]
            torch.testing.assert_close(stacked, gradient, rtol=1e-5, atol=1e-5)


def test_a_pruned_seed_leaves_no_trace_in_the_fleet():
    fleet = Fleet(SPECS["mlp"], toy_task("mlp", 64), range(4), TrainConfig(batch_size=32))
    wait, plant = fleet.space.action(), fleet.space.action("GERMINATE", slot="s0", blueprint="mlp")
    fleet.decide(torch.tensor([plant, plant, wait, plant]))
    for _ in range(3):
        fleet.decide(torch.tensor([wait] * 4))
    (bucket,) = fleet.buckets.values()
    prune = fleet.space.action("PRUNE", slot="s0", alpha_speed="instant")
    fleet.decide(torch.tensor([wait, prune, wait, wait]))
    gone = bucket.hosts == -1
    assert sorted(bucket.hosts[~gone].tolist()) == [0, 3]
    assert gone.any()
    for tensor in bucket.stack.tensors.values():
        assert not tensor[torch.from_numpy(gone)].any()
    fleet.decide(torch.tensor([prune, wait, wait, prune]))
    assert not fleet.buckets


def test_newborns_start_at_zero_whatever_the_age_of_their_bucket():
    fleet = Fleet(SPECS["mlp"], toy_task("mlp", 64), range(3), TrainConfig(batch_size=32))
    wait, plant = fleet.space.action(), fleet.space.action("GERMINATE", slot="s0", blueprint="mlp")
    fleet.decide(torch.tensor([plant, wait, wait]))
    fleet.decide(torch.tensor([wait, wait, plant]))
    (bucket,) = fleet.buckets.values()
    steps = {int(host): int(bucket.stack.tensors["steps"][row]) for row, host in enumerate(bucket.hosts) if host >= 0}
    assert steps == {0: 4, 2: 2}
    assert fleet.trunk.tensors["steps"].tolist() == [4, 4, 4]
