"""A host of a fleet, taken out as a model of its own."""

import pytest
import torch
from torch import Tensor

from esper.kasmina import build_host, load_model, save_model
from esper.leyline.actions import GRAFTS
from esper.leyline.errors import EsperError
from esper.tolaria import Engine, EnvConfig, Fleet, FleetEnv, TrainConfig
from esper.tolaria.schedule import copied, schedule
from esper.tolaria.transfer import pack, unpack
from planted_fleets import Sown, small_fleet, sow
from toys import SPECS, bits, random_legal, rows_of, same_bits, toy_task, toy_trainer

TOLERANCES = {"fp64": 1e-9, "fp32": 1e-5}


def outputs(fleet: Fleet, x: Tensor) -> Tensor:
    """What the fleet's own program computes for all hosts, (N, B, ...)."""
    none = torch.zeros_like(fleet.state.alpha, dtype=torch.bool)
    assignment = unpack(pack(schedule(fleet, copied(fleet), measuring=True, switch=none), fleet.device))
    flats = {name: stack.flat for name, stack in fleet.network.stacks.items()}
    with torch.no_grad():
        return fleet.network.forward(flats, x.expand(fleet.num_hosts, *x.shape), assignment)[0]


@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize("kind", SPECS)
def test_a_host_of_a_fleet_is_saved_loaded_and_answers_as_in_the_fleet(kind, precision, tmp_path):
    """Over episodes of random legal actions, with every graft and many stages and blueprints side by side."""
    engine, config = Engine(precision=precision), TrainConfig(batch_size=32, lr=0.01)
    task = toy_task(kind, 72, dtype=engine.dtype)
    fleet = Fleet(SPECS[kind], task, range(7), config, engine=engine)
    generator = torch.Generator().manual_seed(3)
    grafts, stages, blueprints, alphas = set(), set(), set(), set()
    for decision in range(12):
        fleet.decide(random_legal(fleet.legal(), fleet.space.sizes, generator))
        if decision % 4 != 3:
            continue
        x = task.validation.x
        expected = outputs(fleet, x)
        for n in range(fleet.num_hosts):
            host = fleet.host(n)
            save_model(tmp_path / "model.safetensors", host)
            loaded = load_model(tmp_path / "model.safetensors", lambda: build_host(SPECS[kind]))
            with torch.no_grad():
                torch.testing.assert_close(host(x), expected[n], rtol=0, atol=TOLERANCES[precision])
                assert torch.equal(bits(loaded(x)), bits(host(x)))
            assert same_bits(rows_of(fleet, n), {name: p.detach() for name, p in loaded.named_parameters()})
            for s, state in enumerate(fleet.state.alpha[n]):
                seed, blueprint = host.slot(s).seed, int(fleet.state.blueprint[n, s])
                assert (None if seed is None else fleet.space.blueprints.index(seed.blueprint)) == (
                    None if blueprint < 0 else blueprint
                )
                assert seed is None or seed.graft == fleet.state.graft[n, s]
                assert host.slot(s).alpha == loaded.slot(s).alpha == state
        held = fleet.state.blueprint >= 0
        grafts |= set(fleet.state.graft[held].tolist())
        blueprints |= set(fleet.state.blueprint[held].tolist())
        stages |= set(fleet.state.stage.unique().tolist())
        alphas |= set((fleet.state.alpha[held] > 0).tolist())
    assert grafts >= set(GRAFTS)
    assert alphas == {True, False}
    assert len(stages) >= 5
    assert len(blueprints) > 2


@pytest.mark.parametrize("kind", SPECS)
def test_it_is_the_host_that_was_trained_alone(kind):
    """Also in its state dict, which a training file or another program reads."""
    config = TrainConfig(batch_size=32)
    fleet = Fleet(
        SPECS[kind], toy_task(kind, 64, dtype=torch.float64), range(2), config, engine=Engine(precision="fp64")
    )
    alone = toy_trainer(kind, rng_seed=1, config=config, examples=64, dtype=torch.float64)
    plant = fleet.space.action("GERMINATE", slot="s1", blueprint=fleet.space.blueprints[-1], style="gate")
    for decision in range(6):
        action = plant if decision == 0 else fleet.space.action()
        fleet.decide(torch.tensor([action] * 2))
        alone.decide(action)
    ours, theirs = fleet.host(1).state_dict(), alone.host.state_dict()
    assert ours.keys() == theirs.keys()
    assert ours["slots.1.alpha"] > 0
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-9)
    assert fleet.host(1).growth == alone.host.growth


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", SPECS)
def test_a_host_of_a_fleet_on_a_gpu_is_a_model_there(kind, tmp_path):
    """It loads on a machine without one, and answers within what devices differ by."""
    task = toy_task(kind, 72, dtype=torch.float64)
    fleet = Fleet(
        SPECS[kind], task, range(5), TrainConfig(batch_size=32), engine=Engine(device="cuda", precision="fp64")
    )
    generator = torch.Generator().manual_seed(3)
    for _ in range(8):
        fleet.decide(random_legal(fleet.legal().cpu(), fleet.space.sizes, generator).cuda())
    assert fleet.buckets
    expected = outputs(fleet, fleet.validation_data.x)
    for n in range(5):
        host = fleet.host(n)
        assert {p.device.type for p in host.parameters()} == {"cuda"}
        save_model(tmp_path / "model.safetensors", host)
        loaded = load_model(tmp_path / "model.safetensors", lambda: build_host(SPECS[kind]))
        with torch.no_grad():
            torch.testing.assert_close(host(fleet.validation_data.x), expected[n], rtol=0, atol=1e-6)
            torch.testing.assert_close(loaded(task.validation.x), expected[n].cpu(), rtol=0, atol=1e-6)


def test_it_shares_nothing_with_its_fleet():
    fleet = sow(small_fleet(3), {(n, 0): Sown("mlp", alpha=0.5) for n in range(3)})
    host, before = fleet.host(1), {name: p.clone() for name, p in rows_of(fleet, 1).items()}
    kept = {name: x.clone() for name, x in host.state_dict().items()}
    fleet.decide(torch.tensor([fleet.space.action()] * 3))
    assert same_bits(kept, host.state_dict()), "training the fleet"
    assert not same_bits(before, rows_of(fleet, 1))
    after = {name: p.clone() for name, p in rows_of(fleet, 1).items()}
    for p in host.parameters():
        p.data.zero_()
    host.slot(0).uproot()
    assert same_bits(after, rows_of(fleet, 1)), "changing the copy"
    assert all(p.requires_grad for p in fleet.host(1).parameters())


def test_taking_a_host_out_draws_no_random_number():
    fleet = sow(small_fleet(2), {(0, 0): Sown("mlp", alpha=0.5)})
    before = torch.get_rng_state()
    fleet.host(0)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("n", [-1, 2])
def test_a_host_that_does_not_exist_is_refused(n):
    with pytest.raises(EsperError, match=f"n must be from 0 to 1, the hosts of this fleet, not {n}"):
        small_fleet(2).host(n)


def test_grown_hosts_can_be_kept_when_their_episodes_end():
    """Fresh hosts take their places right after; a failed host is among those that end."""
    kept = []

    def keep(ended: Tensor) -> None:
        kept.append((ended.tolist(), [fleet.host(n) for n in range(3)]))

    fleet = small_fleet(3)
    env = FleetEnv(fleet, EnvConfig(episode=3), on_end=keep)
    env.reset()
    plant = fleet.space.action("GERMINATE", slot="s0", blueprint="mlp")
    env.step(torch.tensor([plant] * 3))
    fleet.trunk.flat[0] = torch.nan
    assert env.step(torch.tensor([fleet.space.action()] * 3)).terminated.tolist() == [True, False, False]
    step = env.step(torch.tensor([fleet.space.action()] * 3))
    assert [ended for ended, _ in kept] == [[True, False, False], [True, True, True]]
    assert all(p.isnan().all() for p in kept[0][1][0].segments.parameters())
    for n in (1, 2):
        assert kept[1][1][n].growth == pytest.approx(float(step.final.growth[n])) != 0
        assert fleet.host(n).growth == 0
