"""On a GPU the fleet gives the numbers it gives on a CPU, kernel by kernel and as recorded programs."""

import warnings

import pytest
import torch

from esper.tolaria import Engine, EnvConfig, Fleet, FleetEnv, TrainConfig
from esper.tolaria.lanes import Lanes
from toys import SPECS, random_legal, rows_of, same_bits, toy_task

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("kind", SPECS)
def test_a_gpu_agrees_with_the_cpu(kind, graphs):
    """To 1e-6 in float64: alpha is float32 everywhere, and its curves differ between devices in the last bit."""
    config = TrainConfig(batch_size=32, lr=0.01)

    def fleet(device: str) -> Fleet:
        task = toy_task(kind, 96, dtype=torch.float64)
        engine = Engine(device=device, precision="fp64", graphs=graphs)
        return Fleet(SPECS[kind], task, range(9), config, engine=engine)

    cpu, gpu = fleet("cpu"), fleet("cuda")
    generator = torch.Generator().manual_seed(3)
    for _ in range(14):
        actions = random_legal(cpu.legal(), cpu.space.sizes, generator)
        _, expected, measured = cpu.decide(actions)
        _, losses, there = gpu.decide(actions.cuda())
        torch.testing.assert_close(losses.cpu(), expected, rtol=0, atol=1e-6)
        torch.testing.assert_close(there.contribution.cpu(), measured.contribution, rtol=0, atol=1e-5, equal_nan=True)
        for n in range(9):
            ours, theirs = rows_of(gpu, n), rows_of(cpu, n)
            assert ours.keys() == theirs.keys()
            for name in ours:
                torch.testing.assert_close(ours[name].cpu(), theirs[name], rtol=0, atol=1e-6)
    if gpu.programs is not None:
        assert not gpu.programs.failed
        assert gpu.programs.hits > 0


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("kind", SPECS)
def test_what_runs_side_by_side_gives_the_bits_of_what_runs_in_turn(kind, graphs):
    config, engine = TrainConfig(batch_size=64, lr=0.01), Engine(device="cuda", graphs=graphs)
    fleets = [Fleet(SPECS[kind], toy_task(kind, 256), range(24), config, engine=engine) for _ in range(2)]
    fleets[1].network.lanes = Lanes(torch.device("cuda"), 0)
    generator = torch.Generator().manual_seed(3)
    for _ in range(14):
        actions = random_legal(fleets[0].legal().cpu(), fleets[0].space.sizes, generator).cuda()
        beside, in_turn = (fleet.decide(actions)[2]._asdict() for fleet in fleets)
        assert same_bits(beside, in_turn)
    for stack, other in zip(*(fleet.network.stacks.values() for fleet in fleets), strict=True):
        assert same_bits(stack.tensors, other.tensors)


def test_a_decision_waits_for_the_device_a_few_times():
    """What seeds live where, what plans are made of, and whether a life has ended."""
    fleet = Fleet(
        SPECS["cnn1d"], toy_task("cnn1d", 96), range(9), TrainConfig(batch_size=32), engine=Engine(device="cuda")
    )
    env = FleetEnv(fleet, EnvConfig(episode=50))
    env.reset()
    wait = torch.zeros(9, 8, dtype=torch.long, device="cuda")
    plant = torch.tensor([fleet.space.action("GERMINATE", slot="s0", blueprint="norm")] * 9, device="cuda")
    for actions in (plant, *[wait] * 12):
        env.step(actions)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            env.step(wait)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waits = [str(w.message) for w in caught if "called a synchronizing" in str(w.message)]
    assert len(waits) == 3, [f"{w.filename}:{w.lineno}" for w in caught]
