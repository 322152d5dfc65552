"""Implicit Q-learning: a controller becomes better than the policy that recorded its episodes."""

from collections.abc import Iterator
from copy import deepcopy
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from esper.leyline.actions import Head, Op
from esper.leyline.errors import EsperError
from esper.leyline.rng import key, uniform
from esper.simic.offline import Critic, OfflineConfig, learn_offline, losses, polyak_update, to_offline_data
from esper.simic.rollout import Rollout, in_order, whole_episodes
from esper.tamiyo import Controller, ControllerConfig, Features
from esper.tamiyo.features import HOST_FEATURES, SLOT_FEATURES, width
from esper.tamiyo.masks import relevant
from esper.tamiyo.network import DESCRIPTORS, Choice, HiddenState, Observation, num_draws
from small_fleets import controller_for

SLOTS, BLUEPRINTS = 2, 2


def sight(first: bool, is_open: Tensor) -> Observation:
    """Observation of a toy: which decision it is, and whether a door is open. Any slot may be germinated or pruned."""
    hosts = len(is_open)
    host = torch.zeros(hosts, width(HOST_FEATURES))
    host[:, 0], host[:, 1] = float(first), is_open.float()
    slots = torch.zeros(hosts, SLOTS, width(SLOT_FEATURES))
    slots[..., :SLOTS] = torch.eye(SLOTS)
    legal = torch.zeros(hosts, len(Op), SLOTS, dtype=torch.bool)
    legal[:, [Op.WAIT, Op.GERMINATE, Op.PRUNE]] = True
    blueprints = torch.zeros(hosts, SLOTS, BLUEPRINTS, len(DESCRIPTORS))
    blueprints[..., :BLUEPRINTS] = torch.eye(BLUEPRINTS)
    return Observation(Features(host, slots), legal, torch.ones(hosts, SLOTS, BLUEPRINTS, dtype=torch.bool), blueprints)


def lived(sights: list[Observation], actions: list[Tensor], rewards: list[Tensor]) -> Rollout:
    """Return whole episodes of a toy as a rollout."""
    action, reward = torch.stack(actions), torch.stack(rewards)
    choice = Choice(action, torch.zeros_like(action, dtype=torch.float32), torch.zeros_like(reward))
    blank = torch.zeros(reward.shape[1], 1)
    return whole_episodes(in_order(sights), choice, reward, HiddenState(blank, blank))


def doors(controller: Controller, lucky: float, rng_seed: int, wasteful: bool = False, hosts: int = 128) -> Rollout:
    """Two decisions. Germinating costs 0.5, and in slot 1 opens the door; pruning pays 2 where it is open, else 0.1.

    The door of the lucky is open from the start. The wasteful, once they have paid for an open door, always wait.
    """
    draws = uniform(key(rng_seed, torch.arange(hosts)), 1 + 2 * num_draws(SLOTS, BLUEPRINTS))
    is_open = draws[:, 0] < lucky
    has_paid = torch.zeros_like(is_open)
    memory = controller.blank(hosts, torch.device("cpu"))
    sights, actions, rewards = [], [], []
    for t, luck in enumerate(draws[:, 1:].chunk(2, 1)):
        sights.append(sight(t == 0, is_open))
        with torch.no_grad():
            choice, memory = controller.act(sights[-1], memory, luck)
        action = choice.action.clone()
        if wasteful:
            action[has_paid, Head.OP] = Op.WAIT
        planted, pruned = (action[:, Head.OP] == op for op in (Op.GERMINATE, Op.PRUNE))
        rewards.append(pruned * torch.where(is_open, 2.0, 0.1) - 0.5 * planted)
        has_paid = planted & (action[:, Head.SLOT] == 1) & ~is_open
        is_open = is_open | has_paid
        actions.append(action)
    return lived(sights, actions, rewards)


def returns(controller: Controller) -> Tensor:
    """Return the returns of hosts whose door is closed at first."""
    return doors(controller, lucky=0.0, rng_seed=9).reward.sum(0)


BEST, SHORT_SIGHTED = 1.5, 0.2
"""Best return with a closed door, by paying for it, and the return of always taking the immediate reward."""
DOORS = OfflineConfig(lr=1e-2, epochs=40, expectile=0.9, beta=10.0, polyak=0.05)


def small(recurrent: bool = True) -> Controller:
    return Controller(ControllerConfig(recurrent=recurrent, hidden=32, slot_hidden=16), rng_seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("recurrent", [True, False])
def test_the_best_is_learned_from_random_episodes(recurrent):
    """The behaviour policy is an untrained controller, almost uniform over legal choices, as is the learner."""
    behaviour, controller = small(recurrent), small(recurrent)
    reports = list(learn_offline(controller, [doors(behaviour, lucky=0.0, rng_seed=2)], DOORS))
    gained = returns(controller) - returns(behaviour)
    assert gained.mean() > 10 * gained.std() / len(gained) ** 0.5
    assert returns(controller).mean() > 0.8 * BEST
    assert reports[-1].q_loss < 0.2 * reports[0].q_loss


@pytest.mark.slow
def test_a_life_is_put_together_from_parts_of_others():
    """No recorded episode pays for the door and uses it; that it is worth its price is seen in other episodes only."""
    behaviour, controller = small(recurrent=False), small(recurrent=False)
    episodes = doors(behaviour, lucky=0.5, rng_seed=3, wasteful=True)
    unlucky = episodes.seen.features.host[0, :, 1] == 0
    assert episodes.reward.sum(0)[unlucky].max() <= SHORT_SIGHTED + 1e-6
    for _ in learn_offline(controller, [episodes], DOORS):
        pass
    assert returns(controller).mean() > 0.8 * BEST


def bandit(reward: Tensor, op: Tensor) -> Rollout:
    """Return episodes of one decision, all in one state."""
    action = torch.zeros(len(op), len(Head), dtype=torch.long)
    action[:, Head.OP] = op
    return lived([sight(True, torch.zeros(len(op)))], [action], [reward])


@pytest.mark.slow
@pytest.mark.parametrize("expectile", [0.5, 0.9])
def test_a_state_is_worth_the_expectile_of_its_choices(expectile):
    """A quarter chose what pays 1: V = e / (e + 3 (1 - e)), from e (1/4) (1 - V) = (1 - e) (3/4) V."""
    paid = torch.arange(64) % 4 == 0
    episodes = bandit(paid.float(), torch.where(paid, Op.PRUNE, Op.WAIT))
    worth, q = learned_worth(episodes, expectile)
    torch.testing.assert_close(q, paid.float().expand(2, 64), atol=0.02, rtol=0)
    assert worth == pytest.approx(expectile / (expectile + 3 * (1 - expectile)), abs=0.03)


@pytest.mark.slow
def test_luck_does_not_make_a_choice_better():
    """One choice paid 1 in a quarter of the episodes: its value is a quarter, whatever the expectile."""
    episodes = bandit((torch.arange(64) % 4 == 0).float(), torch.full((64,), Op.PRUNE))
    worth, _ = learned_worth(episodes, expectile=0.9)
    assert worth == pytest.approx(0.25, abs=0.03)


def learned_worth(episodes: Rollout, expectile: float) -> tuple[float, Tensor]:
    critic, controller = Critic(ControllerConfig(hidden=16, slot_hidden=8)), small()
    config = OfflineConfig(lr=1e-2, epochs=150, minibatches=1, expectile=expectile, polyak=0.1)
    for _ in learn_offline(controller, [episodes], config, critic):
        pass
    with torch.no_grad():
        value, q = critic(episodes.seen, episodes.choice.action)
    return value[0, 0].item(), q[:, 0]


@pytest.fixture
def played(rollouts) -> Rollout:
    """A real rollout with episodes of unequal lengths; some were cut."""
    return rollouts()[0]


@pytest.mark.parametrize("op", list(Op), ids=lambda op: op.name)
def test_heads_that_the_op_does_not_listen_to_change_no_bit_of_q(op):
    critic, (seen, choice, *_) = Critic(), bandit(torch.zeros(3), torch.full((3,), op))
    plain = choice.action
    q = critic(seen, plain)[1]
    idle = ~relevant(plain[..., Head.OP])
    assert torch.equal(critic(seen, plain.masked_fill(idle, 1))[1], q)
    for head in op.heads - {Head.OP}:
        changed = plain.clone()
        changed[..., head] = 1
        assert (critic(seen, changed)[1] != q).any(), f"{head.name} matters to {op.name}"


def pieces(rollout: Rollout) -> Iterator[tuple[Observation, Tensor, Tensor, Tensor]]:
    """Yield observations, actions, rewards and ends of each episode's part of a rollout."""
    for n in range(rollout.reward.shape[1]):
        births = [t for t in rollout.start[:, n].nonzero()[:, 0].tolist() if t > 0]
        for first, last in pairwise([0, *births, len(rollout.reward)]):
            at = slice(first, last), slice(n, n + 1)
            seen = Observation(Features(*(x[at] for x in rollout.seen.features)), *(x[at] for x in rollout.seen[1:]))
            yield seen, rollout.choice.action[at], rollout.reward[at][:, 0], rollout.ended[at][:, 0]


@torch.no_grad()
def test_losses_are_those_of_each_decision_by_itself(played):
    """Computed episode by episode and decision by decision, without padding."""
    controller, critic, target = networks()
    config = OfflineConfig(expectile=0.8, beta=2.0, largest_weight=0.75, gamma=0.9)
    rows = []
    for seen, action, reward, ended in pieces(played):
        (value, q), (_, q_target) = critic(seen, action), target(seen, action)
        log_probs = controller.judge(seen, controller.blank(1, reward.device), action).log_probs
        for t in range(len(reward)):
            if t + 1 == len(reward) and not ended[t]:
                continue
            q_goal = reward[t] if ended[t] else reward[t] + 0.9 * value[t + 1, 0]
            above = min(q_target[:, t, 0]) - value[t, 0]
            weight = (2.0 * above).exp().clamp(max=0.75)
            log_prob = sum(log_probs[t, 0, head] for head in Op(int(action[t, 0, Head.OP])).heads)
            v_loss = (0.8 if above > 0 else 0.2) * above**2
            rows.append([v_loss, ((q_goal - q[:, t, 0]) ** 2).sum(), -weight * log_prob, above, weight])
    assert {bool(row[-1] == 0.75) for row in rows} == {True, False}, "some weights would be larger"
    found = losses(controller, critic, target, to_offline_data(controller, played), config)
    torch.testing.assert_close(torch.stack(found), torch.tensor(rows).mean(0), rtol=1e-4, atol=1e-5)


def test_each_loss_moves_only_what_it_is_about(played):
    controller, critic, target = networks()
    found = losses(controller, critic, target, to_offline_data(controller, played), OfflineConfig())

    def moved(loss: Tensor, net: nn.Module) -> bool:
        gradients = torch.autograd.grad(loss, list(net.parameters()), retain_graph=True, allow_unused=True)
        return any(g is not None and bool(g.any()) for g in gradients)

    nets = (controller, critic.encoder.value, critic.q_heads, target)
    assert [moved(found.value, net) for net in nets] == [False, True, False, False]
    assert [moved(found.q, net) for net in nets] == [False, False, True, False]
    assert [moved(found.policy, net) for net in nets] == [True, False, False, False]


def test_the_target_critic_follows_at_its_pace(played):
    """It moves a fraction of the way at every step, starting at the critic's initial weights."""
    critic = Critic(controller_for().config)
    target = deepcopy(critic)
    polyak_update(target, later := Critic(controller_for().config, rng_seed=1), 0.25)
    for old, first, new in zip(target.parameters(), critic.parameters(), later.parameters(), strict=True):
        torch.testing.assert_close(old, 0.75 * first + 0.25 * new)
    losses = [
        [report.policy_loss for report in learn_offline(controller_for(), [played], config)]
        for config in (OfflineConfig(epochs=3, polyak=share) for share in (1e-9, 1.0))
    ]
    assert losses[0] != losses[1], "the policy learns from the target"


def networks() -> tuple[Controller, Critic, Critic]:
    """A controller, a critic and a target, with Q values scaled to lie above some V and below others."""
    controller = controller_for()
    critics = [Critic(controller.config, rng_seed) for rng_seed in (0, 1)]
    for head in (*critics[0].q_heads, *critics[1].q_heads):
        head[-1].weight.data *= 100
        head[-1].bias.data += 1.5
    return controller, *critics


def test_poisoned_padding_changes_no_bit_of_any_gradient(played):
    controller, critic, target = networks()
    clean = to_offline_data(controller, played)
    padding = ~clean.sequences.valid
    assert padding.any()
    action = clean.sequences.old.action.masked_fill(padding[..., None], 0)
    ill = clean._replace(
        sequences=clean.sequences._replace(old=clean.sequences.old._replace(action=action)),
        reward=clean.reward.masked_fill(padding, torch.nan),
        ended=clean.ended ^ padding,
    )
    gradients = []
    for episodes in (clean, ill):
        controller.zero_grad()
        critic.zero_grad()
        sum(losses(controller, critic, target, episodes, OfflineConfig())[:3]).backward()
        gradients.append([p.grad for net in (controller, critic) for p in net.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_nothing_is_learned_from_a_decision_whose_consequence_was_not_recorded(played):
    """The reward of the last decision before a cut is ignored; that of the last decision of an episode counts."""
    config = OfflineConfig(epochs=2, minibatches=2)
    plain = list(learn_offline(controller_for(), [played], config))
    was_cut = torch.zeros_like(played.ended)
    was_cut[-1] = ~played.ended[-1]
    for last, matters in ((was_cut, False), (played.ended, True)):
        assert last.any()
        again = list(learn_offline(controller_for(), [played._replace(reward=played.reward + 10 * last)], config))
        assert (again != plain) == matters


def test_the_same_seed_learns_the_same_and_leaves_other_random_numbers_alone(played):
    before = torch.get_rng_state()
    runs = [list(learn_offline(controller_for(), [played], OfflineConfig(epochs=2, rng_seed=s))) for s in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]
    assert torch.equal(before, torch.get_rng_state())


def test_episodes_that_teach_nothing_are_refused(played):
    with pytest.raises(EsperError, match="episodes must hold at least one decision"):
        next(learn_offline(controller_for(), []))
    with pytest.raises(EsperError, match="not finite"):
        next(learn_offline(controller_for(), [played._replace(reward=played.reward * torch.nan)]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0.0}, "lr must be positive"),
        ({"epochs": 0}, "epochs must be positive"),
        ({"largest_weight": -1.0}, "largest_weight must be positive"),
        ({"gamma": 1.1}, "gamma must be above 0 and at most 1"),
        ({"polyak": 0.0}, "polyak must be above 0 and at most 1"),
        ({"expectile": 1.0}, "expectile must lie strictly between 0 and 1"),
        ({"beta": -1.0}, "beta must not be negative"),
    ],
)
def test_impossible_configs_are_refused(options, message):
    with pytest.raises(EsperError, match=message):
        OfflineConfig(**options)
