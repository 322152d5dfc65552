"""The single-file PPO is short, learns, and its parts are right."""

from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def ppo(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import ppo_single_file

    return ppo_single_file


def small(ppo, **changes):
    asked = {
        "num_envs": 8,
        "num_steps": 4,
        "updates": 2,
        "budget": 3.0,
        "examples": 200,
        "minibatches": 2,
        "epochs": 1,
        "hidden": 16,
    }
    return ppo.Args(**asked | changes)


def test_it_is_one_readable_file():
    assert len((EXAMPLES / "ppo_single_file.py").read_text().splitlines()) < 250


def test_a_few_updates_run_and_equal_seeds_give_equal_curves(ppo, capsys):
    curves = [ppo.train(small(ppo, seed=seed)) for seed in (0, 0)]
    assert curves[0] == curves[1]
    assert len(curves[0]) == 2
    told = capsys.readouterr().out
    assert told.count("decisions/s") == 4
    assert "never growing: J 0." in told


def test_advantages_are_those_of_the_definition(ppo):
    """Sums of discounted errors of prediction, that stop where an episode ends."""
    generator = torch.Generator().manual_seed(0)
    reward, value = (torch.randn(6, 3, generator=generator) for _ in range(2))
    done, last = torch.rand(6, 3, generator=generator) < 0.3, torch.randn(3, generator=generator)
    nothing = torch.zeros(0)
    rollout = ppo.Rollout(nothing, nothing, nothing, nothing, nothing, value, reward, done, (nothing, nothing), [])
    found = ppo.advantages(rollout, last, gamma=0.9, gae_lambda=0.8)
    following = torch.cat([value[1:], last[None]])
    for t in range(6):
        for n in range(3):
            expected, weight = 0.0, 1.0
            for k in range(t, 6):
                ends = bool(done[k, n])
                expected += weight * (reward[k, n] + (0 if ends else 0.9 * following[k, n]) - value[k, n])
                weight *= 0.9 * 0.8
                if ends:
                    break
            assert found[t, n] == pytest.approx(float(expected), abs=1e-5)


def test_no_choice_is_masked_and_rollouts_are_judged_as_they_were_made(ppo):
    args = small(ppo, num_steps=7)
    torch.manual_seed(0)
    player = ppo.Player(args)
    agent = ppo.Agent(75, player.sizes, 16)
    player.collect(agent, 3)
    rollout = player.collect(agent, 7)
    assert rollout.done.any()
    allowed = torch.cat(
        [mask.gather(-1, rollout.action[..., h : h + 1]) for h, mask in enumerate(split(agent, rollout))]
    )
    assert allowed.all()
    memory, hiddens = rollout.memory, []
    for obs, fresh in zip(rollout.obs, rollout.fresh, strict=True):
        memory = agent.remember(obs, memory, fresh)
        hiddens.append(memory[0])
    _, log_prob, _, value = agent.judge(torch.stack(hiddens), rollout.mask, rollout.action)
    torch.testing.assert_close(log_prob, rollout.log_prob)
    torch.testing.assert_close(value, rollout.value)


def split(agent, rollout):
    return rollout.mask.split(agent.sizes, -1)


def test_memory_is_forgotten_where_an_episode_begins(ppo):
    torch.manual_seed(0)
    agent = ppo.Agent(5, [2, 3], 4)
    obs, memory = torch.randn(2, 5), (torch.randn(2, 4), torch.randn(2, 4))
    after = agent.remember(obs, memory, torch.tensor([True, False]))
    blank = agent.remember(obs, agent.blank(2), torch.tensor([False, False]))
    assert torch.equal(after[0][0], blank[0][0])
    assert not torch.allclose(after[0][1], blank[0][1])
