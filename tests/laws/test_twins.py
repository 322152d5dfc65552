"""The laws over twins: copies of the block in front of their slot, moments included, without silent lessons."""

import contextlib
from itertools import product

import pytest
import torch

from esper.kasmina import LifecycleConfig, load_model, save_model
from esper.kasmina.cost import epoch_cost
from esper.kasmina.hosts import build_host
from esper.leyline.actions import STYLES, Graft, Op
from esper.leyline.lifecycle import Stage
from esper.leyline.specs import HostSpec
from esper.tolaria import EnvConfig, Fleet, FleetEnv, HostTrainer, TrainConfig, host_training
from esper.tolaria.assignment import Kind
from esper.tolaria.config import Engine
from esper.tolaria.host_measuring import examined
from esper.tolaria.static_env import StaticEnv
from esper.tolaria.training_files import load_training, save_training
from planted_fleets import Sown, sow
from toys import CHAINS, SPECS, bits, counting_products, rows_of, same_bits, toy_task

PRECISIONS = {
    "float32": (torch.float32, contextlib.nullcontext),
    "float64": (torch.float64, contextlib.nullcontext),
    "autocast": (torch.float32, lambda: torch.autocast("cpu", torch.bfloat16)),
}
GENEROUS = LifecycleConfig(min_contribution=-2.0, min_holding=1)
"""Any twin may become permanent."""
CONFIGS = {
    "adamw": TrainConfig(batch_size=32, lr=0.01, weight_decay=0.01, clip=0.5),
    "sgd": TrainConfig(batch_size=32, lr=0.05, optimizer="sgd"),
}


def spec_of(kind: str, slots: int = 3) -> HostSpec:
    """Two blocks, with several slots behind each."""
    spec = SPECS[kind]
    return HostSpec(kind, spec.inputs, spec.outputs, (spec.widths[0],) * 2, slots=slots)


def trainer_of(kind: str, dtype: torch.dtype = torch.float64, rng_seed: int = 0, config=None, **options) -> HostTrainer:
    task = toy_task(kind, 72, dtype=dtype)
    config = config or CONFIGS["adamw"]
    return HostTrainer(spec_of(kind), task, config, lifecycle=GENEROUS, rng_seed=rng_seed, dtype=dtype, **options)


def fleet_of(kind: str, num_hosts: int, config=None, precision: str = "fp64") -> Fleet:
    dtype = torch.float64 if precision == "fp64" else torch.float32
    task = toy_task(kind, 72, dtype=dtype)
    engine = Engine(precision=precision)
    config = config or CONFIGS["adamw"]
    return Fleet(spec_of(kind), task, range(num_hosts), config, lifecycle=GENEROUS, engine=engine)


def plan(space, *steps) -> list[tuple[int, ...]]:
    """Actions by name; a number waits for so many decisions."""
    actions = []
    for step in steps:
        if isinstance(step, int):
            actions += [space.action()] * step
        else:
            op, slot = step
            chosen = {"blueprint": "twin", "tempo": 3} if op == "GERMINATE" else {}
            actions.append(space.action(op, slot=slot, **chosen))
    return actions


DOUBLINGS = (2, ("GERMINATE", "s1"), ("GERMINATE", "s4"), 4, ("FOSSILIZE", "s1"), ("FOSSILIZE", "s4"))
"""Two blocks become four."""
AGAIN = (("GERMINATE", "s0"), ("GERMINATE", "s2"), ("GERMINATE", "s3"), ("GERMINATE", "s5"), 4)
"""Four become eight: the first and the third copy a block of the host, the others a twin."""


def optimizer_state(trainer: HostTrainer, module) -> list[dict]:
    return [trainer.optimizer.state[p] for p in module.parameters()]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", CHAINS)
@torch.no_grad()
def test_the_birth_of_a_twin_changes_no_output_bit(kind, precision):
    dtype, context = PRECISIONS[precision]
    trainer = trainer_of(kind, dtype)
    x = trainer.task.validation.x
    for action in plan(trainer.space, *DOUBLINGS):
        with torch.enable_grad():
            trainer.decide(action)
    for slot in trainer.space.slots:
        if trainer.host.slot(trainer.space.slots.index(slot)).seed is None:
            with context():
                before = trainer.host(x)
                assert not trainer.act(trainer.space.action("GERMINATE", slot=slot, blueprint="twin"))
                born = trainer.host(x)
            assert torch.equal(bits(before), bits(born))


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("kind", CHAINS)
def test_a_twin_is_the_block_in_front_of_its_slot_with_its_moments(kind, style):
    """A block of the host, or the nearest earlier twin that is steady; other seeds are passed over."""
    trainer = trainer_of(kind)
    for action in plan(trainer.space, 1, ("GERMINATE", "s0")):
        trainer.decide(action)
    born = {"blueprint": "twin", "style": style}

    def check(slot: str, source) -> None:
        seed = trainer.host.slot(int(slot[1])).seed
        assert (seed.blueprint, seed.graft) == ("twin", Graft.REPLACE)
        assert same_bits(dict(source.named_parameters()), dict(seed.f.named_parameters()))
        ours, theirs = optimizer_state(trainer, seed.f), optimizer_state(trainer, source)
        assert ours
        for a, b in zip(ours, theirs, strict=True):
            assert same_bits(a, b)
            assert not {x.data_ptr() for x in a.values()} & {x.data_ptr() for x in b.values()}

    trainer.act(trainer.space.action("GERMINATE", slot="s1", **born))  # s0 still fades in
    check("s1", trainer.host.get_submodule(trainer.host.blocks[1]))
    trainer.begin_epoch()
    host_training.train_epoch(trainer)
    trainer = trainer_of(kind)
    body = trainer.space.blueprints[0]
    for action in plan(trainer.space, 1, ("GERMINATE", "s0"), 4):
        trainer.decide(action)
    trainer.decide(trainer.space.action("GERMINATE", slot="s1", blueprint=body))
    trainer.decide(trainer.space.action("WAIT"))
    trainer.act(trainer.space.action("GERMINATE", slot="s2", **born))
    check("s2", trainer.host.slot(0).seed.f)
    trainer.act(trainer.space.action("GERMINATE", slot="s4", **born))
    check("s4", trainer.host.get_submodule(trainer.host.blocks[4]))
    assert trainer.host.blocks[4].startswith("segments.1")


@pytest.mark.parametrize("kind", CHAINS)
def test_at_alpha_1_a_twin_is_one_block_more(kind):
    """And at alpha a, the stream has faded over by a."""
    trainer = trainer_of(kind)
    trainer.act(trainer.space.action("GERMINATE", slot="s0", blueprint="twin"))
    host, x = trainer.host, trainer.task.validation.x
    host.slot(0).alpha = 1.0
    block = host.get_submodule(host.blocks[0])
    deeper = torch.nn.Sequential(host.segments[0], block, *host.segments[1:])
    torch.testing.assert_close(host(x), deeper(x), rtol=1e-12, atol=1e-12)
    stream = host.segments[0](x)
    torch.testing.assert_close(host.slot(0)(stream, 0.25), 0.75 * stream + 0.25 * block(stream), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("kind", "slot"), list(product(CHAINS, range(6))))
def test_a_twin_is_alive_and_its_host_is_not_starved(kind, slot):
    """It is heard in its first epoch: every parameter gets gradient, and so does every one of its host, at alpha 1."""
    trainer = trainer_of(kind)
    trainer.decide(trainer.space.action())
    trainer.act(trainer.space.action("GERMINATE", slot=f"s{slot}", blueprint="twin"))
    trainer.begin_epoch()
    assert trainer.state.stage[0, slot] == Stage.BLENDING
    assert trainer.state.alpha[0, slot] == pytest.approx(1 / 3)
    x, y = (part[:32] for part in trainer.task.train)
    for alpha in (None, torch.tensor(1.0)):
        trainer.optimizer.zero_grad()
        host_training.mean_loss(trainer, x, y, None if alpha is None else {slot: alpha}).backward()
        for module in (trainer.host.segments, trainer.host.slot(slot)):
            norms = {name: p.grad.norm().item() for name, p in module.named_parameters()}
            assert min(norms.values()) > 1e-6 * max(norms.values())


@pytest.mark.parametrize("kind", CHAINS)
def test_every_parameter_is_in_the_optimizer_once_through_two_doublings(kind):
    trainer = trainer_of(kind)
    for action in plan(trainer.space, *DOUBLINGS, *AGAIN):
        report = trainer.decide(action)
        assert not report.refused
        held = [p for group in trainer.optimizer.param_groups for p in group["params"]]
        assert len(held) == len(set(held))
        assert set(held) == set(trainer.host.parameters())
    assert all(trainer.host.slot(s).seed is not None for s in range(6))


@pytest.mark.parametrize("optimizer", CONFIGS)
@pytest.mark.parametrize("kind", CHAINS)
def test_the_fleet_equals_its_hosts_through_two_doublings(kind, optimizer):
    """Hosts double at different times: weights, moments and steps to 1e-9, every FLOP exactly."""
    config = CONFIGS[optimizer]
    fleet, alone = fleet_of(kind, 4, config), [trainer_of(kind, rng_seed=n, config=config) for n in range(4)]
    lives = [plan(fleet.space, n, *DOUBLINGS, *AGAIN, 4 - n) for n in range(4)]
    for actions in zip(*lives, strict=True):
        refused, train_loss, _ = fleet.decide(torch.tensor(actions))
        for n, host in enumerate(alone):
            report = host.decide(actions[n])
            assert not report.refused
            assert not refused[n]
            assert report.train_loss == pytest.approx(train_loss[n].item(), abs=1e-9)
            assert report.flops == fleet.flops()[n]
            expected, together = dict(host.host.named_parameters()), rows_of(fleet, n)
            assert together.keys() == expected.keys()
            for name in expected:
                torch.testing.assert_close(together[name], expected[name], rtol=0, atol=1e-9)
    assert {kind.slot for kind in fleet.buckets} == set(range(6))
    for kind_of, bucket in fleet.buckets.items():
        for row, n in enumerate(bucket.hosts):
            own = alone[n].host.slot(kind_of.slot).seed.f
            moments = optimizer_state(alone[n], own)
            views = {part: bucket.stack.layout.views(x) for part, x in bucket.stack.tensors.items() if x.ndim == 2}
            for (name, _), moment in zip(own.named_parameters(), moments, strict=True):
                first = moment["exp_avg" if optimizer == "adamw" else "momentum_buffer"]
                torch.testing.assert_close(views["first"][f"f.{name}"][row], first, rtol=0, atol=1e-9)
            if optimizer == "adamw":
                assert bucket.stack.tensors["steps"][row] == moments[0]["step"]
                second = views["second"][f"f.{name}"][row]
                torch.testing.assert_close(second, moments[-1]["exp_avg_sq"], rtol=0, atol=1e-9)


@pytest.mark.parametrize("epochs", range(5))
@pytest.mark.parametrize("kind", CHAINS)
def test_a_twin_copies_what_was_steady_before_the_decision(kind, epochs):
    """In a fleet as alone, also where the first twin becomes steady in the epoch that the second is born in."""
    fleet, alone = fleet_of(kind, 2), [trainer_of(kind, rng_seed=n) for n in range(2)]
    for action in plan(fleet.space, 1, ("GERMINATE", "s0"), epochs, ("GERMINATE", "s1")):
        fleet.decide(torch.tensor([action] * 2))
        for host in alone:
            host.decide(action)
    for n, host in enumerate(alone):
        for name, weights in host.host.named_parameters():
            torch.testing.assert_close(rows_of(fleet, n)[name], weights, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", CHAINS)
def test_what_twins_are_charged_is_what_torch_counts(kind):
    """While they fade in, when they hold, and for measuring what they contribute."""
    trainer = trainer_of(kind, torch.float32)
    trainer.task = trainer.task._replace(train=type(trainer.task.train)(*(x[:32] for x in trainer.task.train)))
    for action in plan(trainer.space, *DOUBLINGS, *AGAIN):
        trainer.act(action)
        trainer.begin_epoch()
        cost = epoch_cost(trainer.costs, trainer.state)
        with counting_products() as counter:
            train_loss, norms, _ = host_training.train_epoch(trainer)
        assert counter.get_total_flops() == 32 * int(cost.step)
        with host_training.streams_of(trainer.host) as streams:
            now = trainer.evaluate()
        with counting_products() as counter:
            trainer.vitals = examined(trainer, train_loss, norms, now, streams)
        assert counter.get_total_flops() == len(trainer.task.validation.x) * int(cost.counterfactuals)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, 1e30])
@pytest.mark.parametrize("kind", CHAINS)
def test_poisoned_twins_harm_no_other_host(kind, poison):
    """Host 1's twin is poisoned while it is heard; the others keep every bit, also while their own twins are born."""
    well, sick = (fleet_of(kind, 3, precision="fp32") for _ in range(2))
    for fleet in (well, sick):
        for action in plan(fleet.space, 1, ("GERMINATE", "s0"), 4):
            fleet.decide(torch.tensor([action] * 3))
    bucket = sick.buckets[Kind(0, "twin")]
    bucket.stack.flat[bucket.hosts.tolist().index(1)] = poison
    for action in plan(well.space, 1, ("GERMINATE", "s1"), ("GERMINATE", "s3"), 2):
        for fleet in (well, sick):
            refused, *_ = fleet.decide(torch.tensor([action] * 3))
            assert not refused[[0, 2]].any()
        for n in (0, 2):
            assert same_bits(rows_of(well, n), rows_of(sick, n))
    assert not torch.isfinite(sick.evaluate().loss[1]) or poison == 1e30
    if poison != 1e30:
        assert sick.state.births[1].tolist() == [1, 0, 0, 0, 0, 0], "a sick host may not grow"


@pytest.mark.parametrize("kind", CHAINS)
def test_a_twin_born_of_a_sick_host_is_not_heard_by_others(kind):
    """Even if it is born: its rows are as sick as those it copies, and no one else's change."""
    fleet, well = (fleet_of(kind, 3, precision="fp32") for _ in range(2))
    for f in (fleet, well):
        f.decide(torch.tensor([f.space.action()] * 3))
    fleet.trunk.flat[1] = torch.nan
    plant = torch.tensor([fleet.space.action("GERMINATE", slot="s1", blueprint="twin")] * 3)
    for f in (fleet, well):
        f.decide(plant)  # last epoch it was well, so that the birth is legal
    bucket = fleet.buckets[Kind(1, "twin")]
    assert bucket.stack.flat[bucket.hosts.tolist().index(1)].isnan().any()
    assert fleet.vitals.sane.tolist() == [True, False, True]
    for _ in range(2):
        for f in (fleet, well):
            f.decide(torch.tensor([f.space.action()] * 3))
        for n in (0, 2):
            assert same_bits(rows_of(well, n), rows_of(fleet, n))
    assert not fleet.legal()[1, Op.GERMINATE].any()


@pytest.mark.parametrize("kind", CHAINS)
def test_twins_from_scratch_are_drawn_and_not_copied(kind):
    """The topology of a grown host, trained from its first step, has fresh weights in every block."""
    fleet = fleet_of(kind, 2)
    slots = {(n, s): Sown("twin", 1.0, graft=Graft.REPLACE) for n in range(2) for s in (0, 3)}
    grown = sow(fleet_of(kind, 2), slots).state
    env = StaticEnv(fleet, grown, EnvConfig(episode=2))
    env.reset()
    for s in (0, 3):
        views = fleet.buckets[Kind(s, "twin")].stack.layout.views(fleet.buckets[Kind(s, "twin")].stack.flat)
        trunk = fleet.trunk.layout.views(fleet.trunk.flat)
        block = fleet.network.blocks[s]
        weights = [name for name in views if name.startswith("f.") and views[name].ndim > 2]
        assert weights
        for name in weights:
            assert not torch.equal(views[name], trunk[f"{block}.{name.removeprefix('f.')}"])
            assert not torch.equal(views[name][0], views[name][1])


@pytest.mark.parametrize("kind", CHAINS)
def test_a_file_keeps_twins_and_the_next_decision_is_the_same(kind, tmp_path):
    trainer, other = trainer_of(kind, torch.float32), trainer_of(kind, torch.float32, rng_seed=5)
    for action in plan(trainer.space, *DOUBLINGS, ("GERMINATE", "s2")):
        trainer.decide(action)
    save_training(tmp_path / "training.safetensors", trainer)
    load_training(tmp_path / "training.safetensors", other)
    action = trainer.space.action("GERMINATE", slot="s0", blueprint="twin")
    assert trainer.decide(action) == other.decide(action)
    assert same_bits(trainer.host.state_dict(), other.host.state_dict())
    save_model(tmp_path / "model.safetensors", trainer.host)
    again = load_model(tmp_path / "model.safetensors", lambda: build_host(spec_of(kind)))
    assert torch.equal(again(trainer.task.validation.x), trainer.host(trainer.task.validation.x))


@pytest.mark.parametrize("kind", CHAINS)
def test_on_a_budget_twins_are_paid_for_step_by_step(kind):
    """Doubling or not, every life spends its budget within half a step, and a host that grows makes fewer steps."""
    fleet = fleet_of(kind, 2, precision="fp32")
    env = FleetEnv(fleet, EnvConfig(budget=14.0))
    env.reset()
    budget, step = fleet.budget[0].item(), 32 * fleet.costs.host.train
    lives = [plan(fleet.space, *DOUBLINGS, 20), plan(fleet.space, 40)]
    spent, epochs = [0.0, 0.0], [0, 0]
    ended: set[int] = set()
    for actions in zip(*lives, strict=False):
        outcome = env.step(torch.tensor(actions))
        for n in {0, 1} - ended:
            spent[n] += outcome.final.flops[n].item()
            epochs[n] += 1
        ended |= set(outcome.truncated.nonzero()[:, 0].tolist())
        if len(ended) == 2:
            break
    assert ended == {0, 1}
    assert spent == pytest.approx([budget, budget], abs=2.5 * step)
    assert epochs[0] < epochs[1] == 14
