"""Behaviour cloning imitates recorded episodes, and episodes survive a file."""

import pytest
import torch

from esper.leyline.actions import Head, Op
from esper.leyline.errors import EsperError, FileError
from esper.leyline.tensor_files import read, write
from esper.simic import RewardConfig
from esper.simic.cloning import (
    EPISODES_FORMAT,
    CloneConfig,
    _to_sequences,
    clone,
    load_episodes,
    pooled_reward_std,
    save_episodes,
)
from esper.simic.evaluation import evaluate
from esper.simic.rollout import record, record_episodes
from esper.tamiyo import Controller, ControllerConfig
from esper.tamiyo.masks import relevant
from esper.tamiyo.policies import FixedPlan, Heuristic, LearnedPolicy, Never, PlanStep
from esper.tolaria import EnvConfig, FleetEnv
from small_fleets import begun, controller_for, make_env


def recorded(horizon: int = 12, hosts: int = 12):
    env = make_env("mlp", hosts, episode=12, rng_seed=4)
    fleets = begun([env], controller_for(), rent=0.02, horizon=horizon)
    return record(fleets, [Heuristic(blueprint="mlp", tempo=3)], 0.02, RewardConfig())


@pytest.mark.slow
def test_a_clone_does_what_the_heuristic_did():
    rollout = recorded(hosts=36)
    assert (rollout.choice.action[..., Head.OP] == Op.GERMINATE).any()
    controller = Controller(ControllerConfig(hidden=32, slot_hidden=16), rng_seed=1)
    reports = list(clone(controller, [rollout], CloneConfig(lr=3e-3, epochs=80)))
    assert reports[-1].held_out_loss < 0.3 * reports[0].held_out_loss
    assert reports[-1].likelihood["op"] > 0.9
    outcomes = {
        policy.name: evaluate(make_env("mlp", 12, episode=12, rng_seed=9), policy, rent=0.02)
        for policy in (Heuristic(blueprint="mlp", tempo=3), LearnedPolicy(controller, greedy=True), Never())
    }
    grown = {name: outcome.growth.mean().item() for name, outcome in outcomes.items()}
    assert grown["learned"] == pytest.approx(grown["heuristic"], rel=0.3)
    assert grown["never"] == 0
    difference = outcomes["learned"].objective - outcomes["heuristic"].objective
    assert abs(difference.mean()) <= 1.96 * difference.std() / 12**0.5 + 0.02


def test_a_clone_expects_what_was_earned():
    """Returns are each episode's discounted rewards-to-go, divided by their deviation."""
    rollout = recorded(hosts=24)
    assert rollout.ended[-1].all(), "whole episodes"
    sequences = _to_sequences(controller_for(), rollout, 0.9, torch.tensor(0.5))
    worth = sum(rollout.reward[t] * 0.9**t for t in range(12)) / 0.5
    torch.testing.assert_close(sequences.returns[0].sort().values, worth.sort().values)
    errors = {}
    for coefficient in (0.0, 0.5):
        controller = Controller(ControllerConfig(hidden=32, slot_hidden=16), rng_seed=1)
        *_, last = clone(controller, [rollout], CloneConfig(lr=3e-3, epochs=30, value_coef=coefficient))
        errors[coefficient] = last.value_error
    assert errors[0.5] < 0.5 * errors[0.0]


def test_rewards_of_all_fleets_have_one_unit():
    rollout = recorded(horizon=2, hosts=2)
    rewards = torch.tensor([[1.0, 3.0], [2.0, 2.0]]), torch.tensor([[-4.0, 8.0], [0.0, 6.0]])
    episodes = [rollout._replace(reward=reward) for reward in rewards]
    assert pooled_reward_std(episodes).item() == pytest.approx(torch.cat(rewards).std(correction=0).item())


def test_lives_that_are_held_out_are_only_looked_at():
    """Changing the choices of held-out episodes changes their reported loss, and no weight."""
    rollout, config = recorded(hosts=10), CloneConfig(epochs=2, held_out=0.3, rng_seed=8)
    held = torch.randperm(10, generator=torch.Generator().manual_seed(8))[:3]
    other = rollout.choice.action.clone()
    other[:, held, Head.OP] = Op.WAIT
    assert not torch.equal(other, rollout.choice.action)
    ends, reports = [], []
    for action in (rollout.choice.action, other):
        controller = controller_for()
        episodes = rollout._replace(choice=rollout.choice._replace(action=action))
        reports.append(list(clone(controller, [episodes], config))[-1])
        ends.append(list(controller.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
    assert reports[0].loss == reports[1].loss
    assert reports[0].held_out_loss != reports[1].held_out_loss


def test_what_is_imitated_is_what_mattered():
    """Choices of heads that the op does not use change no weight and no report."""
    rollout, ends = recorded(horizon=6, hosts=6), []
    idle = ~relevant(rollout.choice.action[..., Head.OP])
    idle[..., Head.SLOT] = False  # later heads are conditioned on the slot, relevant or not
    for action in (rollout.choice.action, rollout.choice.action.masked_fill(idle, 1)):
        controller = controller_for()
        episodes = rollout._replace(choice=rollout.choice._replace(action=action))
        ends.append((list(clone(controller, [episodes], CloneConfig(epochs=2))), list(controller.parameters())))
    assert ends[0][0] == ends[1][0]
    assert all(torch.equal(a, b) for a, b in zip(ends[0][1], ends[1][1], strict=True))
    assert ends[0][0][0].likelihood["alpha_speed"] is None, "no recorded op changed an alpha"


def test_the_learning_rate_of_imitation_fades():
    """Linearly to a twentieth: the length of Adam's steps is about its learning rate."""
    rollout, controller, moved = recorded(horizon=3, hosts=4), controller_for(), []
    before = torch.nn.utils.parameters_to_vector(controller.parameters()).detach()
    for _ in clone(controller, [rollout], CloneConfig(epochs=8, minibatches=1)):
        now = torch.nn.utils.parameters_to_vector(controller.parameters()).detach()
        moved.append((now - before).norm())
        before = now
    assert moved[-1] < 0.4 * moved[0]


def test_episodes_of_other_features_are_refused(tmp_path):
    save_episodes(tmp_path / "episodes", recorded(horizon=2, hosts=2), "heuristic")
    tensors, description = read(tmp_path / "episodes", EPISODES_FORMAT)
    write(tmp_path / "episodes", EPISODES_FORMAT, tensors, description | {"host_features": ["another"]})
    with pytest.raises(FileError, match="holds another host_features"):
        load_episodes(tmp_path / "episodes")


def test_what_is_not_finite_is_refused_before_anything_changes():
    rollout, controller = recorded(horizon=4, hosts=3), controller_for()
    before = [p.clone() for p in controller.parameters()]
    rollout.reward[1, 1] = torch.nan
    with pytest.raises(EsperError, match="not finite"):
        next(clone(controller, [rollout]))
    assert all(torch.equal(a, b) for a, b in zip(before, controller.parameters(), strict=True))


@pytest.mark.parametrize("recurrent", [True, False])
def test_lives_that_a_recording_cuts_are_not_imitated(recurrent):
    """On a budget a host that grows begins another life before the recording ends; its returns are not known."""
    controller = Controller(ControllerConfig(hidden=16, recurrent=recurrent))
    plan = FixedPlan([PlanStep(0, {"op": "GERMINATE", "slot": "s0", "blueprint": "low_rank"})])
    env = FleetEnv(make_env("mlp", 4).fleet, EnvConfig(budget=7))
    rollout = record_episodes(env, [plan, Never()], controller, 0.02, RewardConfig(gamma=1.0), 0)
    assert rollout.ended.any(0).all()
    assert rollout.ended[-1].tolist() == [False, True, False, True]
    sequences = _to_sequences(controller, rollout, 1.0, torch.tensor(1.0))
    lasts = [int(n) for n in 6 - rollout.ended.flip(0).float().argmax(0)]
    assert int(sequences.valid.sum()) == sum(last + 1 for last in lasts) < 28
    whole = rollout._replace(ended=torch.zeros_like(rollout.ended))
    assert int(_to_sequences(controller, whole, 1.0, torch.tensor(1.0)).valid.sum()) == 28, "nothing ends: keep all"


def test_episodes_survive_a_file(tmp_path):
    rollout = recorded(horizon=4, hosts=3)
    save_episodes(tmp_path / "episodes.safetensors", rollout, "heuristic")
    again, policy = load_episodes(tmp_path / "episodes.safetensors")
    assert policy == "heuristic"
    for a, b in zip(torch.utils._pytree.tree_leaves(rollout), torch.utils._pytree.tree_leaves(again), strict=True):
        assert (a is None and b is None) or torch.equal(a, b)
    with pytest.raises(FileError, match="there is no file"):
        load_episodes(tmp_path / "none")
    (tmp_path / "bad").write_bytes(b"pickle")
    with pytest.raises(FileError, match="damaged"):
        load_episodes(tmp_path / "bad")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"held_out": 1.0}, "held_out must lie strictly between"),
        ({"epochs": 0}, "epochs must be positive"),
        ({"value_coef": -1.0}, "value_coef must not be negative"),
        ({"gamma": 0.0}, "gamma must be above 0"),
    ],
)
def test_impossible_configs_are_refused(options, message):
    with pytest.raises(EsperError, match=message):
        CloneConfig(**options)
