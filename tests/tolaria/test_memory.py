"""A memory budget splits the batch, never the result; what cannot fit is refused in one sentence."""

import pytest
import torch
from torch import nn

from esper.leyline.errors import EsperError
from esper.tolaria import Engine, Fleet, TrainConfig
from esper.tolaria.assignment import Kind
from esper.tolaria.assignment import rows_of as rows_of_assignment
from esper.tolaria.memory import kept_bytes
from esper.tolaria.schedule import copied, schedule
from planted_fleets import Sown, sow
from toys import SPECS, random_legal, rows_of, toy_task


def fleet(kind: str, budget: int | None, num_hosts: int = 6) -> Fleet:
    engine = Engine(precision="fp64", memory_budget=budget)
    task = toy_task(kind, 96, dtype=torch.float64)
    return Fleet(SPECS[kind], task, range(num_hosts), TrainConfig(batch_size=32), engine=engine)


def lives(world: Fleet):
    """Six decisions of random legal actions."""
    generator = torch.Generator().manual_seed(3)
    for _ in range(6):
        actions = random_legal(world.legal(), world.space.sizes, generator)
        _, loss, measured = world.decide(actions)
        yield loss, measured


@pytest.mark.parametrize("kind", SPECS)
def test_a_split_batch_gives_the_same_hosts(kind):
    roomy = fleet(kind, 1 << 40)
    needs = []
    for _ in lives(roomy):
        needs.append(
            roomy.memory.needs(6, *rows_of_assignment(schedule(roomy, copied(roomy), measuring=True)), training=True)
        )
    budget = int(max(state for state, _ in needs) + 8 * max(example for _, example in needs))
    whole, split = fleet(kind, None), fleet(kind, budget)
    for (loss, measured), (split_loss, split_measured) in zip(lives(whole), lives(split), strict=True):
        torch.testing.assert_close(split_loss, loss, rtol=0, atol=1e-9)
        torch.testing.assert_close(split_measured, measured, rtol=0, atol=1e-9, equal_nan=True)
        torch.testing.assert_close(split.vitals, whole.vitals, rtol=1e-5, atol=1e-6, equal_nan=True)
        for n in range(whole.num_hosts):
            ours, theirs = rows_of(split, n), rows_of(whole, n)
            assert all(torch.allclose(ours[name], theirs[name], rtol=0, atol=1e-9) for name in theirs)
    assert split.memory.chunks(6, 32, *rows_of_assignment(schedule(split, copied(split), measuring=False))) >= 2


def test_less_memory_means_more_parts():
    """Down to one example at a time, and never more than the budget by the estimate."""
    roomy = fleet("cnn1d", 1 << 40)
    assert roomy.memory.chunks(6, 32, {}, 0) == 1
    state, example = roomy.memory.needs(6, {}, 0, training=True)
    for parts in (2, 4, 8, 32):
        tight = fleet("cnn1d", int(state + 32 / parts * example) + 1)
        assert tight.memory.chunks(6, 32, {}, 0) == parts
        assert tight.memory.chunks(6, 32, {}, 0, training=False) == parts // 2
    twice = fleet("cnn1d", int(state + 8 * example) + 1)
    assert twice.memory.chunks(6, 32, {}, 6) == 8, "rows beside the hosts count like hosts"


def test_what_cannot_fit_is_refused_before_anything_is_trained():
    with pytest.raises(EsperError, match=r"6 hosts need .* one example of the batch of 32 .*about \d hosts would fit"):
        fleet("cnn1d", 20_000)


def test_what_a_step_needs_by_hand():
    """A linear layer keeps its input, a ReLU its output, which is the next layer's input; a seed needs six streams."""
    x = torch.zeros(2, 3)
    assert kept_bytes(nn.Linear(3, 5), x) == 3 * 4
    assert kept_bytes(nn.Sequential(nn.Linear(3, 5), nn.ReLU()), x) == (3 + 5) * 4
    world = Fleet(SPECS["mlp"], toy_task("mlp", 64), range(4), engine=Engine(memory_budget=1 << 40))
    sow(world, {(1, 0): Sown("low_rank"), (2, 0): Sown("low_rank")})
    host, seed = (6 + 8 + 8) * 4, (8 + 2 + 6 * 8) * 4
    kind = Kind(0, "low_rank")
    assert (world.memory.host, world.memory.seed(kind)) == (host, seed)
    parameters = 4 * (48 + 16 + 64 + 16 + 32 + 16) * 4 + 2 * (16 + 16 + 16 + 16 + 16 + 16) * 4
    for training, times in ((True, 4), (False, 2)):
        rows = (4 + 3) * host + 5 * seed
        assert world.memory.needs(4, {kind: 5}, 3, training) == (6 * parameters, times * rows)


BAD_ENGINES = {
    "device 'gpu7' is not supported; use 'cpu' or 'cuda'": {"device": "gpu7"},
    "device 'mps' is not supported; use 'cpu' or 'cuda'": {"device": "mps"},
    "device 'meta' is not supported": {"device": "meta"},
    "device '' is not supported": {"device": ""},
    "device 'cuda:-1' is not supported": {"device": "cuda:-1"},
    "precision 'bf16' needs a CUDA device": {"precision": "bf16"},
    "memory_budget must be positive": {"memory_budget": 0},
}


@pytest.mark.parametrize("message", BAD_ENGINES)
def test_an_impossible_engine_is_refused(message):
    with pytest.raises(EsperError, match=message):
        Engine(**BAD_ENGINES[message])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_gpu_is_an_error_with_a_way_out():
    """One sentence, with the flag and the call that does without the GPU."""
    with pytest.raises(EsperError, match="'cuda' is not available on this machine") as caught:
        Engine(device="cuda").place()
    assert "Engine.on('cpu')" in str(caught.value)
    assert "--device cpu" in str(caught.value)
