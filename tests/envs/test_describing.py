"""One function of tensors describes a step; that a captured program runs it can be seen nowhere."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from envs_toys import KINDS, played, random_actions, vector_env
from esper.envs import GrowthVectorEnv
from esper.envs.checker import same
from esper.envs.describing import Description
from esper.envs.observations import arrays, as_bytes
from replays import OnOneDevice, Replays

REWARDS = ("progress", "sparse", "contribution")


def numbers(record: object) -> list[np.ndarray]:
    return [x.cpu().numpy() for x in tree_leaves(record) if isinstance(x, torch.Tensor)]


def listened(envs: GrowthVectorEnv) -> list[tuple[tuple, Description]]:
    """Keep what an env's function is given and what is found, from now on."""
    heard, describer = [], envs.describer

    def describe(*inputs) -> Description:
        heard.append((inputs, describer(*inputs)))
        return heard[-1][1]

    envs.describer = describe
    return heard


@pytest.mark.parametrize("kind", KINDS)
def test_a_captured_program_tells_what_its_function_tells_and_overwrites_nothing_that_is_kept(kind):
    envs, plain = (vector_env(3, kind, "rgb_array", price=(0.0, 0.1)) for _ in range(2))
    envs.describer = replace(envs.describer, programs=Replays())
    actions, kept = random_actions(envs, 9), []
    for ours, theirs in zip(played(envs, actions), played(plain, actions), strict=True):
        kept.append((ours, theirs, envs.life, plain.life))
    for ours, theirs, life, expected in kept:
        assert same(tuple(ours), tuple(theirs))
        assert same(numbers(life), numbers(expected))
    assert repr(envs.film.reports) == repr(plain.film.reports)
    assert sum("final_obs" in ours.infos for ours, *_ in kept) > 1
    assert (envs.describer.programs.misses, envs.describer.programs.hits) == (1, 8)


@pytest.mark.parametrize("reward", REWARDS)
def test_what_is_told_depends_on_the_step_alone(reward):
    envs = vector_env(2, reward=reward, price=(0.0, 0.1))
    describer, heard = envs.describer, listened(envs)
    _, *moments = played(envs, random_actions(envs, 6))
    for moment, (inputs, found) in zip(moments, heard, strict=True):
        again = describer.describe(*inputs)
        assert same(numbers(again), numbers(found))
        known = arrays(again.known)
        assert np.array_equal(moment.observations, known["obs"][:2])
        assert np.array_equal(moment.rewards, known["reward"].astype(np.float64))


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("options", [{"reward": family} for family in REWARDS] + [{"budget": None, "episode": 3}])
def test_describing_neither_reads_numbers_nor_brings_them_to_the_device(options, device):
    """Of a tensor on the device meta nothing can be read; there, torch.tensor goes unseen."""
    envs = vector_env(2, **options)
    envs.reset(seed=0)
    before, step = envs.life, envs.lives.step(torch.zeros(2, 8, dtype=torch.long))
    inputs = tree_map(lambda x: x.to(device) if isinstance(x, torch.Tensor) else x, (before, step, before.rent))
    setting = envs.setting._replace(seed_parameters=envs.setting.seed_parameters.to(device))
    with OnOneDevice(device):
        assert replace(envs.describer, setting=setting).describe(*inputs).known.data.device.type == device


def test_tensors_of_all_types_come_back_as_they_were():
    tensors = {
        "bools": torch.tensor([True, False, True]),
        "floats": torch.arange(6.0).view(2, 3).T / 7,
        "wholes": torch.tensor([2**62 + 1, -1]),
        "doubles": torch.tensor([[torch.pi], [torch.nan]], dtype=torch.float64),
        "expanded": torch.tensor([0.1]).expand(3),
    }
    found = arrays(as_bytes(tensors | {"halves": torch.tensor([1.5, 2.0], dtype=torch.bfloat16)}))
    assert found.pop("halves").tolist() == [1.5, 2.0]
    assert same(found, {name: x.numpy() for name, x in tensors.items()})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_replays_what_the_function_tells_bit_for_bit(kind):
    envs = vector_env(3, kind, device="cuda", precision="fp32", price=(0.0, 0.1))
    plain, programs, heard = replace(envs.describer, programs=None), envs.lives.fleet.programs, listened(envs)
    _, *moments = played(envs, random_actions(envs, 12))
    for moment, (inputs, found) in zip(moments, heard, strict=True):
        expected = plain(*inputs)
        assert same(numbers(found.history), numbers(expected.history))
        known = arrays(expected.known)
        assert np.array_equal(moment.observations, known["obs"][:3])
        assert np.array_equal(moment.rewards, known["reward"].astype(np.float64))
        assert all(np.array_equal(moment.infos[name], known[name][:3]) for name in ("score", "j", "action_mask"))
    assert sum("final_obs" in moment.infos for moment in moments) > 1
    assert [name for name, *_ in programs.recorded].count("describe step") == 1
    assert not programs.failed
