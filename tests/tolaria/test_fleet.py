"""The cost, growth, contributions and random numbers of fleets."""

from itertools import combinations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from esper.kasmina import register_blueprint, unregister_blueprint
from esper.kasmina.lifecycle import speaking
from esper.leyline.objectives import CLASSIFICATION
from esper.leyline.rng import Purpose, key, permutation
from esper.leyline.specs import HostSpec, TaskSpec
from esper.leyline.state import Split, Task
from esper.tolaria import Fleet, HostTrainer, TrainConfig
from esper.tolaria.assignment import Kind
from esper.tolaria.measuring import Measured
from esper.tolaria.padding import Roomy, exact
from esper.tolaria.schedule import copied, schedule
from esper.tolaria.training import train_epoch
from esper.tolaria.vitals import examined
from planted_fleets import Sown, small_fleet, sow, state_of
from toys import SPECS, random_legal, rows_of, same_bits, toy_task, toy_trainer


class Counter(TorchDispatchMode):
    """Counts operations."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


class TwoLayers(nn.Module):
    """A user's blueprint: torch layers, with weights drawn in the constructor."""

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
    """Weights and growth equal those of a host trained alone."""
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


def lived(kind: str, num_hosts: int = 5, decisions: int = 7) -> tuple[Fleet, list[HostTrainer]]:
    """The same hosts stacked and alone, after a few random legal actions."""
    config = TrainConfig(batch_size=32)
    fleet = Fleet(SPECS[kind], toy_task(kind, 64), range(num_hosts), config)
    alone = [toy_trainer(kind, rng_seed=n, config=config, examples=64) for n in range(num_hosts)]
    generator = torch.Generator().manual_seed(5)
    for _ in range(decisions):
        actions = random_legal(fleet.legal(), fleet.space.sizes, generator)
        fleet.decide(actions)
        for n, host in enumerate(alone):
            host.decide(actions[n].tolist())
    return fleet, alone


@pytest.mark.parametrize("kind", SPECS)
def test_it_can_be_asked_what_a_host_would_be_without_some_seeds(kind):
    """With all audible seeds off, or any pair switched, losses equal those of the host trained alone."""
    fleet, alone = lived(kind)
    living = fleet.state.blueprint >= 0
    loud = speaking(fleet.state)
    questions = [loud]
    for pair in combinations(range(len(fleet.slots)), 2):
        both = torch.zeros_like(living)
        both[:, list(pair)] = True
        questions.append(both & living)
    assert any(question.sum(1).max() >= 2 for question in questions)
    for question in questions:
        measured = fleet.evaluate(switch=question)
        assert measured.contribution.isnan().all()
        for n, host in enumerate(alone):
            over = {
                s: torch.tensor(0.0) if loud[n, s] else host.state.alpha_target[0, s]
                for s in question[n].nonzero()[:, 0].tolist()
            }
            assert measured.loss[n].item() == pytest.approx(host.evaluate(over).loss, abs=1e-4)


def test_accumulators_are_allocated_once():
    """Losses, gradient norms, parameters and moments keep their memory addresses over epochs."""
    fleet = Fleet(SPECS["mlp"], toy_task("mlp", 64), range(4), TrainConfig(batch_size=32))
    fleet.decide(torch.tensor([fleet.space.action("GERMINATE", slot="s0", blueprint="mlp")] * 4))
    places = []
    for _ in range(3):
        fleet.decide(torch.tensor([fleet.space.action()] * 4))
        stacks = fleet.network.stacks.values()
        kept = [fleet.losses, *(t for s in stacks for t in (s.norms, *s.tensors.values()))]
        places.append([t.data_ptr() for t in kept])
    assert places[0] == places[1] == places[2]


def test_a_single_row_never_runs_alone():
    """One row takes another path through bmm, with other bits."""
    assert [exact("seeds", count, 1 / 8) for count in range(4)] == [0, 2, 2, 3]
    fleet = sow(small_fleet(2), {(1, 0): Sown("mlp")})
    assignment = schedule(fleet, copied(fleet), measuring=True)
    assert fleet.buckets[Kind(0, "mlp")].hosts.tolist() == [1, -1]
    assert assignment.beside.real.tolist() == [True, False]


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


def test_flops_and_growth_by_hand():
    """70 examples in batches of 32, 40 for validation. A host of 155 parameters costs 272 FLOPs an example, forward,
    and 720 to train: the gradient of its input is not needed. 176 of the 272 are behind slot 0, 48 behind slot 1.

    An mlp seed has 552 parameters and costs 1024; a low_rank one 42 and 64.
    """
    fleet = small_fleet(4, examples=70)
    sow(
        fleet,
        {
            (1, 0): Sown("mlp"),
            (2, 0): Sown("low_rank", alpha=0.5),
            (2, 1): Sown("mlp"),
            (3, 0): Sown("low_rank", alpha=0.5),
            (3, 1): Sown("mlp", alpha=1.0),
        },
    )
    training, validation = 64, 40
    # In training: the host, three passes of each seed it hears; and of each silent seed two and a half, with two passes
    # of what is behind it.
    trained = [720, 720 + (2560 + 2 * 176), 720 + 3 * 64 + (2560 + 2 * 48), 720 + 3 * (64 + 1024)]
    # In measuring: the host, and what is behind each seed, switched over.
    host = [272, 272, 336, 1360]
    rows = [0, 176 + 1024, 176 + (48 + 1024), (176 + 1024) + 48]
    cost = [training * a + validation * (b + c) for a, b, c in zip(trained, host, rows, strict=True)]
    assert fleet.flops().tolist() == cost
    without = [training * a + validation * b for a, b in zip(trained, host, strict=True)]
    assert fleet.flops(counterfactuals=False).tolist() == without
    growth = torch.tensor([0, 552, 42 + 552, 42 + 552]) / 155
    torch.testing.assert_close(fleet.growth(fleet.state), growth)


def guessing_fleet() -> Fleet:
    """Hosts that always predict 0, unless a seed in s1 raises their first channel by more than 0.4.

    Then they predict 2. Seeds in s0 have no effect. Of the 8 validation examples 2 are 0, 1 is 1 and 5 are 2.
    """
    x, y = torch.zeros(32, 6), torch.tensor([0, 0, 1, 2, 2, 2, 2, 2]).repeat(4)
    task = Task(TaskSpec("guess", (6,), 3, CLASSIFICATION), Split(x, y), Split(x[:8], y[:8]))
    fleet = Fleet(SPECS["mlp"], task, range(5), TrainConfig(batch_size=32))
    fleet.trunk.flat.zero_()
    weights = fleet.trunk.layout.views(fleet.trunk.flat)
    weights["segments.2.bias"][:, 0] = 0.4
    weights["segments.2.weight"][:, 2, 0] = 1.0
    sow(
        fleet,
        {
            (1, 0): Sown("low_rank", alpha=1.0),
            (1, 1): Sown("low_rank", alpha=0.5),
            (2, 1): Sown("low_rank"),
            (3, 1): Sown("low_rank", target=0.3),
            (4, 1): Sown("low_rank", alpha=0.3),
        },
    )
    for bucket in fleet.buckets.values():
        bucket.stack.flat.zero_()
        bucket.stack.layout.views(bucket.stack.flat)["f.1.bias"][:, 0] = 1.0
    return fleet


def test_contributions_by_hand():
    """What an audible seed adds, and what a silent one would add at its alpha target; NaN without a seed."""
    measured = guessing_fleet().evaluate()
    assert measured.score.tolist() == [0.25, 0.625, 0.25, 0.25, 0.25]
    none = float("nan")
    expected = [[none, none], [0.0, 0.375], [none, 0.375], [none, 0.0], [none, 0.0]]
    torch.testing.assert_close(measured.contribution, torch.tensor(expected), rtol=0, atol=0, equal_nan=True)


def test_hosts_are_evaluated_on_the_data_given():
    """With their audible seeds, and without contributions."""
    fleet = guessing_fleet()
    measured = fleet.evaluate(Split(torch.zeros(4, 6), torch.tensor([0, 0, 0, 2])))
    assert measured.score.tolist() == [0.75, 0.25, 0.75, 0.75, 0.75]
    assert measured.contribution.isnan().all()


def test_bare_hosts_are_evaluated_without_their_seeds():
    fleet = guessing_fleet()
    measured = fleet.evaluate(switch="bare")
    assert measured.score.tolist() == [0.25] * 5
    assert measured.contribution.isnan().all()
    assert torch.equal(measured.loss, fleet.evaluate(switch=speaking(fleet.state)).loss)


@pytest.mark.parametrize("num_slots", [1, 3, 5])
def test_every_slot_keeps_its_identity(num_slots):
    """Host n holds a seed in slot n: measured there, counted there by that slot's width, trained under that name."""
    widths = tuple(range(4, 4 + num_slots))
    task, config = toy_task("mlp", 64), TrainConfig(batch_size=32)
    fleet = Fleet(HostSpec("mlp", (6,), 3, widths), task, range(num_slots), config)
    assert fleet.space.slots == tuple(f"s{n}" for n in range(num_slots))
    sow(fleet, {(n, n): Sown("low_rank", alpha=1.0) for n in range(num_slots)})
    diagonal = torch.eye(num_slots, dtype=torch.bool)
    assert torch.equal(~fleet.evaluate().contribution.isnan(), diagonal)
    bare = sum(a * b + b for a, b in zip((6, *widths), (*widths, 3), strict=True))
    sizes = [2 * width * rank + rank + width for width in widths if (rank := width // 4)]
    assert fleet.growth(fleet.state).tolist() == pytest.approx([size / bare for size in sizes])
    for n in range(num_slots):
        own = [name for name in rows_of(fleet, n) if name.startswith("slots.")]
        assert own
        assert all(name.startswith(f"slots.{n}.") for name in own)
    fleet.decide(torch.zeros(num_slots, 8, dtype=torch.long))
    assert torch.equal(~fleet.vitals.share.isnan(), diagonal)


def test_vitals_by_hand():
    """Losses, norms and weights on both sides of each threshold, with different numbers for every host."""
    fleet = small_fleet(6)
    sow(fleet, {(n, 0): Sown("norm") for n in (2, 3, 4, 5)} | {(5, 1): Sown("norm", alpha=1.0)})
    fleet.state.stage[4, 0] = 1  # GERMINATED: it does not learn yet
    first, second = Kind(0, "norm"), Kind(1, "norm")
    assert fleet.buckets[first].hosts.tolist() == [2, 3, 4, 5]
    assert fleet.buckets[second].hosts.tolist() == [5, -1]
    inf, nan = torch.inf, torch.nan
    train_loss = torch.tensor([nan, 1.0, 1.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    loss = torch.tensor([1.0, inf, 1.0, 1.0, 1.0, 1.0])
    norms = {
        None: torch.tensor([1.0, 1.0, inf, 4.0, 8.0, 16.0]),
        first: torch.tensor([1.0, 0.0, 0.0, 2.0]),
        second: torch.tensor([inf, 0.0]),
    }
    fleet.trunk.flat[3, 0] = inf
    fleet.buckets[first].stack.flat[3, 0] = nan
    pulls = torch.arange(12.0).view(6, 2)
    contribution = 10 + pulls
    vitals = examined(fleet, train_loss, norms, pulls, Measured(loss, loss, loss, contribution))
    assert vitals.sane.tolist() == [False, False, False, False, True, True]
    healthy = [[True, True], [True, True], [True, True], [False, True], [True, True], [False, False]]
    assert vitals.healthy.tolist() == healthy
    share = [[nan, nan], [nan, nan], [0.0, nan], [0.0, nan], [0.0, nan], [0.125, inf]]
    torch.testing.assert_close(vitals.share, torch.tensor(share), rtol=0, atol=0, equal_nan=True)
    planted = torch.tensor([[False, False], [False, False], [True, False], [True, False], [True, False], [True, True]])
    expected = contribution.where(planted, nan)
    torch.testing.assert_close(vitals.contribution, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(vitals.pull, pulls)


def test_every_host_and_every_epoch_has_its_own_batches():
    """With a learning rate of 0, the loss tells which examples were used: those of the host's own shuffle."""
    config = TrainConfig(batch_size=32, lr=1e-12)
    fleet = Fleet(SPECS["mlp"], toy_task("mlp", 63), [5, 6, 7], config)
    fleet.trunk.flat[1:] = fleet.trunk.flat[0]
    host = toy_trainer("mlp", examples=63, rng_seed=5, config=config)
    x, y = host.task.train
    with torch.no_grad():
        losses = host.task.spec.objective.loss(host.host(x), y)
    for epoch in range(2):
        _, found, _ = fleet.decide(torch.zeros(3, 8, dtype=torch.long))
        orders = [permutation(key(rng_seed, Purpose.SHUFFLE, epoch), 63)[:32] for rng_seed in (5, 6, 7)]
        assert found.tolist() == pytest.approx([losses[order].mean().item() for order in orders], abs=1e-6)


def test_a_fresh_host_is_the_same_in_any_fleet_at_any_time():
    wait, late = torch.zeros(3, 8, dtype=torch.long), small_fleet(3)
    plant = late.space.action("GERMINATE", slot="s0", blueprint="mlp")
    late.decide(torch.tensor([plant] * 3))
    late.trunk.flat[1] = torch.nan
    late.decide(wait)
    late.reset(torch.tensor([False, True, False]), torch.tensor([77, 77, 77]))
    early = Fleet(SPECS["mlp"], toy_task("mlp", 64, 40), [0, 77, 2], late.config)
    assert torch.equal(late.legal()[1], early.legal()[1])
    for a, b in zip((*late.state, *late.vitals), (*early.state, *early.vitals), strict=True):
        torch.testing.assert_close(a[1], b[1], rtol=0, atol=0, equal_nan=True)
    for fleet in (late, early):
        fleet.decide(wait)
    assert same_bits(rows_of(late, 1), rows_of(early, 1))
    assert late.epoch.tolist() == [3, 1, 3]
    assert rows_of(late, 0).keys() > rows_of(late, 1).keys()


def test_a_step_size_reaches_a_host_and_its_seeds():
    fleet = sow(small_fleet(2), {(n, 0): Sown("mlp") for n in range(2)})
    before = [{name: p.clone() for name, p in rows_of(fleet, n).items()} for n in range(2)]
    fleet.learn_at(torch.tensor([0.0, 0.1], dtype=torch.float64))
    train_epoch(fleet)
    assert same_bits(before[0], rows_of(fleet, 0))
    assert not any(torch.equal(p, before[1][name]) for name, p in rows_of(fleet, 1).items())


def test_a_silent_seed_learns_the_same_alone_and_among_others():
    """Padding rows add no gradient."""
    config = TrainConfig(batch_size=32, optimizer="sgd", lr=0.1, clip=1e6)
    lone, among = (
        sow(small_fleet(3, config=config), {(n, 1): Sown("mlp") for n in hosts}) for hosts in ((1,), (0, 1, 2))
    )
    for fleet in (lone, among):
        train_epoch(fleet)
    assert same_bits(rows_of(lone, 1), rows_of(among, 1))


def test_seeds_differ_by_slot_and_by_birth():
    fleet = small_fleet(2)

    def weights(births: int) -> list[torch.Tensor]:
        fleet.tend(state_of(fleet, {}))
        sow(fleet, {(n, s): Sown("mlp", births=births) for n in range(2) for s in range(2)})
        return [rows_of(fleet, n)[f"slots.{s}.seed.f.0.weight"].clone() for n in range(2) for s in range(2)]

    first, second, again = weights(1), weights(2), weights(1)
    assert not any(torch.equal(a, b) for a, b in combinations([*first, *second], 2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
