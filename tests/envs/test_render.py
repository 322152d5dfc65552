"""What is drawn is the host's life so far."""

import os
import sys

import numpy as np
import pytest

from envs_toys import action, single_env, vector_env, waiting
from esper.leyline.errors import EsperError


def test_a_frame_shows_the_life_so_far():
    env = single_env(render_mode="rgb_array", budget=6.0)
    env.reset(seed=0)
    frames = [env.render()]
    for _ in range(3):
        env.step(np.array(env.vector.setting.space.action("GERMINATE", slot="s0", blueprint="norm")))
        frames.append(env.render())
    for frame in frames:
        assert frame.dtype == np.uint8
        assert frame.shape == frames[0].shape
        assert frame.shape[2] == 3
    assert len({frame.tobytes() for frame in frames}) == 4, "every epoch adds something"
    assert np.array_equal(env.render(), frames[-1]), "drawing changes nothing"


def test_frames_of_a_fleet_are_those_of_its_hosts_and_ended_lives_stay_until_the_next_decision():
    envs, env = vector_env(2, render_mode="rgb_array"), single_env(render_mode="rgb_array")
    envs.reset(seed=0)
    env.reset(seed=0)
    blank = envs.render()
    plant = action(envs, "GERMINATE", slot="s0", blueprint="norm")
    plant[1] = 0
    over = False
    while not over:
        *_, truncated, _ = envs.step(plant)
        over = env.step(plant[0])[3]
        assert np.array_equal(envs.render()[0], env.render())
    assert truncated[0]
    assert not np.array_equal(*envs.render())
    ended = env.render()
    env.reset()
    assert np.array_equal(env.render(), blank[0]), "a reset begins a new picture"
    assert np.array_equal(envs.render()[0], ended), "an ended life is shown"
    envs.step(waiting(envs))
    env.step(waiting(envs)[0])
    assert np.array_equal(envs.render()[0], env.render())


def test_without_a_render_mode_nothing_is_drawn():
    env, envs = single_env(), vector_env(2)
    env.reset(seed=0)
    envs.reset(seed=0)
    assert env.render() is None
    assert envs.render() is None


def test_a_reset_mask_begins_only_these_pictures():
    envs = vector_env(2, render_mode="rgb_array", budget=6.0)
    envs.reset(seed=0)
    blank = envs.render()
    envs.step(waiting(envs))
    drawn = envs.render()
    envs.reset(options={"reset_mask": np.array([False, True])})
    assert np.array_equal(envs.render()[0], drawn[0])
    assert np.array_equal(envs.render()[1], blank[1])


@pytest.fixture
def screenless(monkeypatch):
    monkeypatch.setitem(os.environ, "SDL_VIDEODRIVER", "dummy")
    monkeypatch.setitem(os.environ, "PYGAME_HIDE_SUPPORT_PROMPT", "1")
    return pytest.importorskip("pygame")


@pytest.mark.filterwarnings("ignore:pkg_resources is deprecated")
@pytest.mark.filterwarnings("ignore:Your system is neon capable")
@pytest.mark.filterwarnings("ignore:.*avx2 capable")
def test_a_window_follows_every_step_and_is_closed(screenless):
    env, drawn = single_env(render_mode="human"), single_env(render_mode="rgb_array")
    env.reset(seed=0)
    drawn.reset(seed=0)
    for _ in range(2):
        env.step(np.zeros(8, dtype=int))
        drawn.step(np.zeros(8, dtype=int))
        shown = screenless.surfarray.array3d(screenless.display.get_surface()).swapaxes(0, 1)
        assert np.array_equal(shown, drawn.render())
    assert env.render() is None
    env.close()
    assert not screenless.display.get_init()
    env.close()


def test_a_window_needs_pygame(monkeypatch):
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(EsperError, match=r"needs the package pygame: pip install 'esper-nn\[gym\]'"):
        single_env(render_mode="human")
    with pytest.raises(EsperError, match="render_mode"):
        vector_env(2, render_mode="human")
