"""Relevance and slots each have one source: what learns and what decides follow leyline's table and the host's list."""

import math

import pytest
import torch

from esper.kasmina import build_host
from esper.leyline.actions import Head, Op
from esper.leyline.errors import EsperError
from esper.leyline.specs import HostSpec
from esper.simic import PPOConfig, RewardConfig
from esper.simic.ppo import decision_counts, losses
from esper.simic.rollout import collect
from esper.simic.sequences import Sequences
from esper.tamiyo.policies import FixedPlan, PlanStep
from esper.tolaria import EnvConfig, Fleet, FleetEnv, TrainConfig
from small_fleets import begun, controller_for, make_env, sequences_of
from toys import toy_task


@pytest.fixture(scope="module")
def sequences() -> tuple[Sequences, object]:
    """Four decisions at which everything was legal."""
    controller = controller_for()
    fleets = begun([make_env("mlp", 2, episode=9)], controller, horizon=2)
    rollout = collect(fleets, controller, 0.0, RewardConfig())._replace(reward=torch.ones(2, 2))
    sequences = sequences_of(rollout, controller)
    everything = {name: torch.ones_like(getattr(sequences.seen, name)) for name in ("legal", "affordable")}
    return sequences._replace(seen=sequences.seen._replace(**everything)), controller


@pytest.mark.parametrize("op", Op)
def test_advantages_entropy_and_kl_reach_the_heads_that_the_table_lists(sequences, op):
    """Each choice is e^0.1 times as likely as it was when it was made, and each advantage 1."""
    sequences, controller = sequences
    action = torch.zeros_like(sequences.old.action)
    action[..., Head.OP] = op
    with torch.no_grad():
        before = controller.judge(sequences.seen, sequences.memory, action).log_probs - 0.1
        sequences = sequences._replace(old=sequences.old._replace(action=action, log_probs=before))
        found = losses(controller, sequences, PPOConfig(clip=0.05), 0.01)
    listens = torch.tensor([head in op.heads for head in Head]).float()
    torch.testing.assert_close(decision_counts(sequences).heads, 4 * listens)
    torch.testing.assert_close(found.policy, -1.05 * 4 * listens)
    torch.testing.assert_close(found.approx_kl, (math.exp(0.1) - 1.1) * 4 * listens, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.clip_fraction, 4 * listens)
    assert torch.equal(found.entropy > 0, listens.bool())


@pytest.mark.parametrize("slots", [1, 3, 5])
def test_features_rollout_and_policy_take_their_slots_from_the_host(slots):
    """There is no other list of slots that could differ: the last one planted is the last one seen."""
    spec = HostSpec("mlp", (6,), 3, (8,) * slots)
    fleet = Fleet(spec, toy_task("mlp", 64, 32), range(2), TrainConfig(batch_size=32))
    env, controller = FleetEnv(fleet, EnvConfig(episode=9)), controller_for()
    assert env.setting.space == fleet.space == build_host(spec).space
    fleets = begun([env], controller, horizon=2)
    bare = fleets.observe().features.slots
    plant = torch.tensor([fleet.space.action("GERMINATE", slot=f"s{slots - 1}")] * 2)
    fleets.states = [fleets.states[0]._replace(signals=env.step(plant).signals)]
    seen = fleets.observe()
    stage = (seen.features.slots != bare).any(2) & ~seen.legal[:, Op.GERMINATE]
    assert stage.tolist() == [[False] * (slots - 1) + [True]] * 2
    rollout = collect(fleets, controller, 0.0, RewardConfig())
    assert rollout.seen.features.slots.shape[2] == rollout.seen.legal.shape[3] == slots
    assert rollout.choice.action[..., Head.SLOT].max() < slots
    plan = FixedPlan([PlanStep(0, {"op": "GERMINATE", "slot": f"s{slots}"})])
    with pytest.raises(EsperError, match=f"unknown choice of head slot 's{slots}'"):
        plan.begin(env.setting, 2, torch.device("cpu"))
