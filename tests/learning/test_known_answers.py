"""PPO finds the known best policy of toy problems within seconds."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from esper.leyline.actions import Head, Op
from esper.leyline.rng import key, uniform
from esper.simic import Learner, PPOConfig
from esper.simic.rollout import Rollout, in_order, whole_episodes
from esper.tamiyo import Controller, ControllerConfig, Features
from esper.tamiyo.features import HOST_FEATURES, SLOT_FEATURES, width
from esper.tamiyo.network import DESCRIPTORS, Choice, Observation, num_draws

pytestmark = pytest.mark.slow
CONFIG = PPOConfig(lr=3e-3, gamma=0.99, entropy_coef=0.01, minibatches=2, group_baseline=False)


@dataclass
class Toy:
    """Episodes of `length` decisions whose rewards are a function of decision, action and cue."""

    pays: Callable[[int, Tensor, Tensor], Tensor]
    """Decision, actions (N, H), cue (N,) to rewards."""
    legal: Tensor
    length: int = 1
    slots: int = 3
    blueprints: int = 4

    def evaluate(self, controller: Controller, update: int, hosts: int = 64) -> Rollout:
        cue = (uniform(key(update, torch.arange(hosts)), 1)[:, 0] < 0.5).float()
        memory = controller.blank(hosts, torch.device("cpu"))
        before, sights, choices, rewards = memory, [], [], []
        for t in range(self.length):
            host = torch.zeros(hosts, width(HOST_FEATURES))
            host[:, 0], host[:, 1] = 1 - t / self.length, cue if t == 0 else 0.5
            eye = torch.zeros(hosts, self.slots, width(SLOT_FEATURES))
            eye[:, :, : self.slots] = torch.eye(self.slots)
            described = torch.zeros(hosts, self.slots, self.blueprints, len(DESCRIPTORS))
            described[..., : self.blueprints] = torch.eye(self.blueprints)
            seen = Observation(
                Features(host, eye),
                self.legal.expand(hosts, -1, -1),
                torch.ones(hosts, self.slots, self.blueprints, dtype=torch.bool),
                described,
            )
            draws = uniform(key(update, t, torch.arange(hosts)), num_draws(self.slots, self.blueprints))
            with torch.no_grad():
                choice, memory = controller.act(seen, memory, draws)
            sights.append(seen)
            choices.append(choice)
            rewards.append(self.pays(t, choice.action, cue))
        choice = Choice(*(torch.stack(x) for x in zip(*choices, strict=True)))
        return whole_episodes(in_order(sights), choice, torch.stack(rewards), before)


def legality(**slots: list[int]) -> Tensor:
    legal = torch.zeros(len(Op), 3, dtype=torch.bool)
    legal[Op.WAIT] = True
    for name, open_slots in slots.items():
        legal[Op[name], open_slots] = True
    return legal


def learn(toy: Toy, updates: int, recurrent: bool = True, config: PPOConfig = CONFIG) -> tuple[float, Controller]:
    controller = Controller(ControllerConfig(recurrent=recurrent, hidden=32, slot_hidden=16), rng_seed=1)
    learner = Learner(controller, config)
    for update in range(updates):
        learner.update(toy.evaluate(controller, update))
    return toy.evaluate(controller, 10_000, hosts=512).reward.sum(0).mean().item(), controller


def test_a_masked_factored_bandit():
    """Only slots 0 and 2 are open; one slot with one blueprint pays, and pays more at full alpha."""

    def pays(t, action, cue):
        right = (action[:, Head.OP] == Op.GERMINATE) & (action[:, Head.SLOT] == 2) & (action[:, Head.BLUEPRINT] == 3)
        return right * (0.5 + 0.5 * (action[:, Head.ALPHA_TARGET] == 2))

    toy = Toy(pays, legality(GERMINATE=[0, 2], PRUNE=[1]))
    reached, controller = learn(toy, 40)
    assert reached > 0.9
    rollout = toy.evaluate(controller, 7)
    germinating = rollout.choice.action[..., Head.OP] == Op.GERMINATE
    assert (rollout.choice.action[..., Head.SLOT][germinating] != 1).all(), "an illegal slot is never chosen"


def corridor(t, action, cue):
    """The cue is shown at the first decision and asked for at the last."""
    if t < 3:
        return torch.zeros_like(cue)
    return torch.where(cue > 0.5, action[:, Head.OP] == Op.PRUNE, action[:, Head.OP] == Op.WAIT).float()


def test_a_corridor_that_needs_memory():
    toy = Toy(corridor, legality(PRUNE=[0, 1, 2]), length=4)
    with_memory, _ = learn(toy, 40)
    without, _ = learn(toy, 40, recurrent=False)
    assert with_memory > 0.95
    assert without < 0.65


def test_heads_learn_only_where_they_matter():
    """PRUNE pays whatever its speed; SET_ALPHA_TARGET pays at one speed only: the head learns that from those alone."""

    def pays(t, action, cue):
        slow = action[:, Head.ALPHA_SPEED] == 3
        prune, retarget = (action[:, Head.OP] == op for op in (Op.PRUNE, Op.SET_ALPHA_TARGET))
        return torch.where(cue > 0.5, prune.float(), (retarget & slow).float())

    toy = Toy(pays, legality(PRUNE=[0], SET_ALPHA_TARGET=[0]))
    reached, controller = learn(toy, 40)
    assert reached > 0.9
    rollout = toy.evaluate(controller, 7, hosts=512)
    ops, speeds = rollout.choice.action[0, :, Head.OP], rollout.choice.action[0, :, Head.ALPHA_SPEED]
    assert (speeds[ops == Op.SET_ALPHA_TARGET] == 3).float().mean() > 0.9
    blueprints = torch.bincount(rollout.choice.action[0, :, Head.BLUEPRINT], minlength=4) / 512
    assert blueprints.min() > 0.1, "no op uses the blueprint here, so it stays near uniform"


def test_more_entropy_coefficient_means_more_entropy():
    """A trained policy with advantages of 0: only the entropy coefficient acts."""

    def pays(t, action, cue):
        return (action[:, Head.OP] == Op.PRUNE).float()

    toy = Toy(pays, legality(PRUNE=[0], GERMINATE=[1]))
    entropy = {}
    _, decided = learn(toy, 5)
    for coefficient in (0.0, 0.1):
        controller = deepcopy(decided)
        config = PPOConfig(lr=1e-3, gamma=0.99, entropy_coef=coefficient, group_baseline=False)
        learner = Learner(controller, config)
        for update in range(5):
            rollout = toy.evaluate(controller, update)
            expected = rollout._replace(reward=rollout.choice.value)
            learner.update(expected)
        played = toy.evaluate(controller, 1)
        judged = controller.judge(played.seen, played.memory, played.choice.action)
        entropy[coefficient] = judged.entropy[..., Head.OP].mean()
    assert entropy[0.1] > entropy[0.0] + 0.01
