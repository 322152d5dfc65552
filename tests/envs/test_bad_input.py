"""Input that cannot be used is refused with the errors that Gymnasium's users expect, and changes nothing."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.error import ClosedEnvironmentError, InvalidAction, ResetNeeded

from envs_toys import action, options_of, random_actions, single_env, vector_env, waiting
from esper.envs.checker import same
from esper.envs.options import EnvOptions
from esper.leyline.errors import EsperError
from esper.tolaria import TrainConfig

BAD = {
    "one host too few": lambda good: good[:-1],
    "one host too many": lambda good: np.concatenate([good, good[:1]]),
    "one head too few": lambda good: good[:, :-1],
    "one axis too few": lambda good: good[0],
    "one axis too many": lambda good: good[None],
    "floats": lambda good: good.astype(np.float32),
    "bools": lambda good: good.astype(bool),
    "negative": lambda good: good - 1,
    "too large": lambda good: good + 1000,
    "one too large": lambda good: good + np.array([6] + [0] * 7),
    "nothing": lambda good: None,
    "words": lambda good: np.full(good.shape, "WAIT"),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_actions_outside_of_the_space_are_refused_and_change_nothing(bad):
    envs, plain = vector_env(2), vector_env(2)
    envs.reset(seed=0)
    plain.reset(seed=0)
    envs.step(waiting(envs))
    plain.step(waiting(plain))
    with pytest.raises(InvalidAction, match="actions must"):
        envs.step(bad(waiting(envs)))
    assert same(envs.step(waiting(envs)), plain.step(waiting(plain)))


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_a_single_env_refuses_them_too(bad):
    env, plain = single_env(), single_env()
    env.reset(seed=0)
    plain.reset(seed=0)
    wrong = bad(np.zeros((1, 8), dtype=np.int64))
    with pytest.raises(InvalidAction, match="actions must"):
        env.step(wrong if wrong is None or wrong.ndim > 1 else wrong[None])
    assert same(env.step(np.zeros(8, dtype=int)), plain.step(np.zeros(8, dtype=int)))


KINDS = {"int32": np.int32, "uint8": np.uint8, "uint64": np.uint64, "list": np.ndarray.tolist, "torch": torch.tensor}


@pytest.mark.parametrize("made", KINDS.values(), ids=KINDS)
def test_whole_numbers_of_any_kind_are_actions(made):
    envs, plain = vector_env(2), vector_env(2)
    envs.reset(seed=0)
    plain.reset(seed=0)
    (chosen,) = random_actions(envs, 1)
    assert same(envs.step(made(chosen)), plain.step(chosen))


def test_actions_are_not_kept():
    envs, plain = vector_env(2), vector_env(2)
    envs.reset(seed=0)
    plain.reset(seed=0)
    chosen = action(envs, "GERMINATE", slot="s0", blueprint="norm")
    envs.step(chosen)
    plain.step(chosen.copy())
    chosen[:] = 0
    assert same(envs.step(waiting(envs)), plain.step(waiting(envs)))


def test_the_first_call_is_reset():
    env, envs = single_env(render_mode="rgb_array"), vector_env(2, render_mode="rgb_array")
    for call in (env.action_masks, env.sample_mask, env.render, lambda: env.step(np.zeros(8, dtype=int))):
        with pytest.raises(ResetNeeded, match="call reset"):
            call()
    for call in (envs.action_masks, envs.sample_masks, envs.render, lambda: envs.step(waiting(envs))):
        with pytest.raises(ResetNeeded, match="call reset"):
            call()


def test_a_single_env_is_reset_after_its_end():
    env = single_env()
    env.reset(seed=0)
    wait = np.zeros(8, dtype=int)
    while not any(env.step(wait)[2:4]):
        pass
    with pytest.raises(ResetNeeded, match="the episode has ended"):
        env.step(wait)
    env.reset()
    env.step(wait)


def test_made_by_gymnasium_the_errors_are_the_same():
    env = gymnasium.make("esper:Growth-v0", **options_of("mlp"))
    with pytest.raises(ResetNeeded):
        env.step(env.action_space.sample())
    env.reset(seed=0)
    with pytest.raises(InvalidAction):
        env.step(np.full(8, 77))


def test_closing_twice_is_fine_and_nothing_else_works_then():
    env, envs = single_env(), vector_env(2)
    for each in (env, envs):
        each.reset(seed=0)
        each.close()
        each.close()
        with pytest.raises(ClosedEnvironmentError, match="make a new one"):
            each.reset(seed=0)
    for call in (env.action_masks, env.render, lambda: env.step(np.zeros(8, dtype=int))):
        with pytest.raises(ClosedEnvironmentError):
            call()
    for call in (envs.action_masks, envs.render, lambda: envs.step(waiting(envs))):
        with pytest.raises(ClosedEnvironmentError):
            call()


def test_an_ended_env_that_is_closed_says_that_it_is_closed():
    env = single_env()
    env.reset(seed=0)
    while not any(env.step(np.zeros(8, dtype=int))[2:4]):
        pass
    env.close()
    with pytest.raises(ClosedEnvironmentError):
        env.reset()
    with pytest.raises(ClosedEnvironmentError):
        env.step(np.zeros(8, dtype=int))


OPTIONS = [
    ({"tsk": "spirals"}, "unexpected keyword argument 'tsk': did you mean 'task'?"),
    ({"task": "spirlas"}, "unknown task 'spirlas': did you mean 'spirals'?"),
    ({"host": "mpl"}, "unknown host 'mpl': did you mean 'mlp'?"),
    ({"task": "phrases-8", "host": "mlp"}, "host 'mlp' is not that of the setting 'phrases-8'"),
    ({"host": "gpt"}, "."),
    ({"budget": 0}, "budget must be a positive number of epochs, not 0"),
    ({"budget": -2.0}, "budget must be a positive number"),
    ({"budget": 3.0, "episode": 5}, "budget and episode exclude each other"),
    ({"budget": None, "episode": 0}, "episode must be at least 1, not 0"),
    ({"price": -0.1}, "price must be a number"),
    ({"price": ()}, "price must be a number"),
    ({"price": (0.1, float("nan"))}, "price must be a number"),
    ({"price": float("inf")}, "price must be a number"),
    ({"slots": 0}, "slots"),
    ({"widths": ()}, "widths"),
    ({"widths": (0, 4)}, "widths"),
    ({"options": {"exampels": 3}}, "exampels"),
    ({"device": "gpu"}, "gpu"),
]


@pytest.mark.parametrize(("options", "says"), OPTIONS, ids=str)
def test_options_are_refused_where_the_env_is_made(options, says):
    with pytest.raises(EsperError, match=says.replace("(", r"\(").replace("?", r"\?")):
        vector_env(2, **options)


@pytest.mark.parametrize("count", [0, -1])
def test_there_is_a_whole_number_of_hosts(count):
    with pytest.raises(EsperError, match="num_envs must be a whole number from 1"):
        vector_env(count)


def test_an_unknown_option_is_a_type_error_as_python_raises():
    with pytest.raises(TypeError, match="unexpected keyword argument 'frameskip'"):
        EnvOptions.of({"frameskip": 1})


@pytest.mark.parametrize("mode", ["ansi", "depth_array"])
def test_render_modes_are_named(mode):
    with pytest.raises(EsperError, match=f"unknown render_mode '{mode}': .*rgb_array"):
        vector_env(2, render_mode=mode)
    with pytest.raises(EsperError, match=f"unknown render_mode '{mode}'"):
        single_env(render_mode=mode)


def test_settings_on_a_budget_are_made_by_name():
    options = EnvOptions(task="spirals-6", budget=7.0, train=TrainConfig(lr=0.5))
    setting = options.setting()
    assert (setting.task, setting.host, setting.env.budget, setting.train.lr) == ("spirals", "mlp", 7.0, 0.5)
    assert EnvOptions(task="spirals-6").setting().env.budget not in (None, 7.0)
    assert EnvOptions(task="spirals", episode=9).setting().env.episode == 9
    assert EnvOptions(task="spirals", episode=9).setting().env.budget is None
