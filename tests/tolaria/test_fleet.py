"""What a fleet costs, what it counts, and what it can be asked."""

from itertools import combinations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from esper.kasmina import register_blueprint, unregister_blueprint
from esper.kasmina.lifecycle import speaking
from esper.tolaria import Fleet, TrainConfig
from esper.tolaria.capture import Programs
from esper.tolaria.plan import Roomy
from toys import SPECS, random_legal, rows_of, toy_task, toy_trainer


class Counter(TorchDispatchMode):
    """Counts operations."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


class TwoLayers(nn.Module):
    """A blueprint of someone else's: torch's own layers, weights drawn in the constructor."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(channels, 3), nn.Linear(3, channels)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x)))


@pytest.fixture
def strangers():
    """Twenty more blueprints in the catalogue."""
    names = [f"stranger{n}" for n in range(20)]
    for name in names:
        register_blueprint(name, lambda slot: TwoLayers(slot.channels), "vector")
    yield names
    for name in names:
        unregister_blueprint(name, "vector")


def operations() -> int:
    fleet = Fleet(SPECS["mlp"], toy_task("mlp", 64), range(4), TrainConfig(batch_size=32))
    fleet.decide(torch.tensor([fleet.space.action("GERMINATE", slot="s0", blueprint="mlp")] * 4))
    with Counter() as counter:
        fleet.decide(torch.tensor([fleet.space.action()] * 4))
    return counter.count


def test_blueprints_that_nobody_uses_cost_nothing(request):
    before = operations()
    request.getfixturevalue("strangers")
    assert operations() == before > 100


def test_a_blueprint_of_anyone_elses_works_in_a_fleet(strangers):
    """Weights, growth and all, as in a host alone."""
    config = TrainConfig(batch_size=32)
    fleet = Fleet(SPECS["mlp"], toy_task("mlp", 64), range(3), config)
    alone = [toy_trainer("mlp", rng_seed=n, config=config, examples=64) for n in range(3)]
    wait = fleet.space.action()
    plant = fleet.space.action("GERMINATE", slot="s1", blueprint="stranger7", style="gate")
    for decision in range(8):
        actions = [plant, wait, plant] if decision == 0 else [wait] * 3
        fleet.decide(torch.tensor(actions))
        for host, action in zip(alone, actions, strict=True):
            host.decide(action)
    assert {kind.blueprint for kind in fleet.buckets} == {"stranger7"}
    for n, host in enumerate(alone):
        ours, theirs = rows_of(fleet, n), dict(host.host.named_parameters())
        assert ours.keys() == theirs.keys()
        for name in ours:
            torch.testing.assert_close(ours[name], theirs[name].detach(), rtol=1e-3, atol=1e-4)
        assert fleet.growth(fleet.state)[n].item() == pytest.approx(host.host.growth)


def lived(kind: str, num_hosts: int = 5, decisions: int = 7):
    config = TrainConfig(batch_size=32)
    fleet = Fleet(SPECS[kind], toy_task(kind, 64), range(num_hosts), config)
    alone = [toy_trainer(kind, rng_seed=n, config=config, examples=64) for n in range(num_hosts)]
    generator = torch.Generator().manual_seed(5)
    reports = []
    for _ in range(decisions):
        actions = random_legal(fleet.legal(), fleet.space.sizes, generator)
        fleet.decide(actions)
        reports = [host.decide(actions[n].tolist()) for n, host in enumerate(alone)]
        yield fleet, alone, reports


@pytest.mark.parametrize("kind", SPECS)
def test_it_counts_the_same_operations_as_its_hosts(kind):
    seen = set()
    for fleet, _, reports in lived(kind):
        assert fleet.flops().tolist() == [report.flops for report in reports]
        seen |= set(fleet.flops().tolist())
    assert len(seen) > 5


@pytest.mark.parametrize("kind", SPECS)
def test_it_can_be_asked_what_a_host_would_be_without_some_seeds(kind):
    """All off, and any pair switched over: what the host alone says of the same question."""
    *_, (fleet, alone, _) = lived(kind)
    living = fleet.state.blueprint >= 0
    loud = speaking(fleet.state)
    questions = [loud]
    for pair in combinations(range(len(fleet.slots)), 2):
        both = torch.zeros_like(living)
        both[:, list(pair)] = True
        questions.append(both & living)
    assert any(question.sum(1).max() >= 2 for question in questions)
    for question in questions:
        measured = fleet.switched(question)
        assert measured.contribution.isnan().all()
        for n, host in enumerate(alone):
            over = {
                s: torch.tensor(0.0) if loud[n, s] else host.state.alpha_target[0, s]
                for s in question[n].nonzero()[:, 0].tolist()
            }
            assert measured.loss[n].item() == pytest.approx(host.evaluate(over).loss, abs=1e-4)


def test_accumulators_are_allocated_once():
    """Losses, gradient norms, parameters and moments stay where they are from one epoch to the next."""
    fleet = Fleet(SPECS["mlp"], toy_task("mlp", 64), range(4), TrainConfig(batch_size=32))
    fleet.decide(torch.tensor([fleet.space.action("GERMINATE", slot="s0", blueprint="mlp")] * 4))
    places = []
    for _ in range(3):
        fleet.decide(torch.tensor([fleet.space.action()] * 4))
        stacks = fleet.network.stacks.values()
        kept = [fleet.losses, *(t for s in stacks for t in (s.norms, *s.tensors.values()))]
        places.append([t.data_ptr() for t in kept])
    assert places[0] == places[1] == places[2]


def test_room_grows_at_once_and_shrinks_later():
    room = Roomy(64, epochs=3)
    assert room("echoes", 1, 1 / 32) == 2
    assert room("echoes", 20, 1 / 32) == 24
    assert room("echoes", 3, 1 / 32) == 24
    for _ in range(3):
        room.grow_older()
    assert room("echoes", 3, 1 / 32) == 24, "it was needed since the last time"
    for _ in range(3):
        room.grow_older()
    assert room("echoes", 3, 1 / 32) == 8, "twice what was needed"
    room("echoes", 5, 1 / 32)
    for _ in range(6):
        room.grow_older()
    assert room("echoes", 3, 1 / 32) == 8, "a little too large is no reason to record anew"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this device can record")
def test_what_cannot_be_recorded_runs_all_the_same_with_a_warning():
    programs = Programs()
    with pytest.warns(UserWarning, match="training without CUDA graphs"):
        assert programs.find("train", lambda: None, (), lambda: None, kinds=()) is None
    assert programs.find("train", lambda: None, (), lambda: None, kinds=()) is None, "and says so only once"
