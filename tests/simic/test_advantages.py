"""Advantages against hand-derived answers and brute force."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.simic.advantages import gae, standardize, subtract_group_mean


def test_gae_by_hand():
    """gamma 0.5, lambda 0.5; an episode ends after the second decision, and the next one begins."""
    rewards = torch.tensor([[1.0], [2.0], [3.0]])
    values = torch.tensor([[10.0], [20.0], [30.0]])
    next_values = torch.tensor([[20.0], [0.0], [40.0]])
    ended = torch.tensor([[False], [True], [False]])
    # TD errors: 1 + 10 - 10 = 1; 2 + 0 - 20 = -18; 3 + 20 - 30 = -7
    expected = torch.tensor([[1 + 0.25 * -18.0], [-18.0], [-7.0]])
    torch.testing.assert_close(gae(rewards, values, next_values, ended, 0.5, 0.5), expected)


@given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 10_000))
def test_gae_is_the_discounted_sum_of_td_errors(length, hosts, rng_seed):
    generator = torch.Generator().manual_seed(rng_seed)
    rewards, values, next_values = torch.randn(3, length, hosts, generator=generator, dtype=torch.float64)
    ended = torch.rand(length, hosts, generator=generator) < 0.3
    found = gae(rewards, values, next_values, ended, 0.9, 0.8)
    delta = rewards + 0.9 * next_values - values
    for n in range(hosts):
        for t in range(length):
            total, weight = 0.0, 1.0
            for u in range(t, length):
                total += weight * delta[u, n].item()
                if ended[u, n]:
                    break
                weight *= 0.9 * 0.8
            assert abs(found[t, n].item() - total) < 1e-9


def test_hosts_do_not_mix():
    rewards = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    zeros = torch.zeros_like(rewards)
    never = torch.zeros_like(rewards, dtype=torch.bool)
    assert not gae(rewards, zeros, zeros, never, 0.9, 0.9)[:, 1].any()


def test_truncation_death_and_a_cut_are_told_apart():
    """Three hosts: one terminates, one is truncated and bootstrapped, one is cut by the horizon."""
    rewards, values = torch.ones(1, 3), torch.zeros(1, 3)
    next_values = torch.tensor([[0.0, 5.0, 7.0]])
    ended = torch.tensor([[True, True, False]])
    torch.testing.assert_close(gae(rewards, values, next_values, ended, 0.5, 1.0), torch.tensor([[1.0, 3.5, 4.5]]))


def test_siblings_are_compared_with_each_other_and_with_no_one_else():
    advantages = torch.tensor([[1.0, 3.0, 8.0, 5.0, 7.0]])
    groups = torch.tensor([0, 0, 0, 1, 2])
    comparable = torch.tensor([[True, True, True, True, True]])
    found = subtract_group_mean(advantages, groups, comparable)
    torch.testing.assert_close(found, torch.tensor([[1 - 5.5, 3 - 4.5, 8 - 2.0, 5.0, 7.0]]))
    comparable[0, 2] = False
    found = subtract_group_mean(advantages, groups, comparable)
    torch.testing.assert_close(found, torch.tensor([[-2.0, 2.0, 8.0, 5.0, 7.0]]))
    assert found.data_ptr() != advantages.data_ptr()


def test_normalising_counts_only_what_is_valid_and_survives_constants():
    x = torch.tensor([[1.0, 3.0], [1e9, 5.0]])
    valid = torch.tensor([[True, True], [False, True]])
    found = standardize(x, valid)
    assert found[1, 0] == 0
    assert abs(found[valid].mean()) < 1e-6
    assert abs(found[valid].std(correction=0) - 1) < 1e-5
    assert not standardize(torch.full((3, 2), 7.0), torch.ones(3, 2, dtype=torch.bool)).any()


def test_siblings_that_drift_apart_are_compared_where_their_decisions_have_equal_numbers():
    """Two groups of two; in the first, one host is a decision behind."""
    advantages = torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0], [9.0, 10.0, 11.0, 12.0]])
    groups, comparable = torch.tensor([0, 0, 1, 1]), torch.ones(3, 4, dtype=torch.bool)
    moment = torch.tensor([[1, 0, 5, 5], [2, 1, 6, 6], [3, 2, 7, 7]])
    found = subtract_group_mean(advantages, groups, comparable, moment)
    assert found.tolist() == [[1 - 6, 2, 3 - 4, 4 - 3], [5 - 10, 6 - 1, 7 - 8, 8 - 7], [9, 10 - 5, 11 - 12, 12 - 11]]
