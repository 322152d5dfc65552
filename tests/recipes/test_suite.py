"""Settings of exams."""

from dataclasses import replace

import pytest

from esper.exam.sitting import Sitting
from esper.leyline.errors import EsperError
from esper.recipes import recipe
from esper.recipes.config import Band, Places
from esper.recipes.suite import HELD_OUT, SUITE, setting, settings
from esper.tolaria import Engine
from small_exams import SMALL, smoke


@pytest.mark.parametrize("name", SUITE)
def test_every_setting_of_the_suite_can_be_examined(name):
    fleet = setting(name)
    env = Places(fleet, Engine()).env(1, 2, Band.FINAL, fleet.test_data())
    assert env.test is not None
    assert len(env.reset().score) == 2


def test_a_task_stands_for_its_hosts_of_all_sizes():
    assert settings("mnist1d-8") == (setting("mnist1d-8"),)
    assert settings("mnist1d") == tuple(setting(f"mnist1d-{width}") for width in (4, 8, 16))
    assert settings("all") == tuple(setting(name) for name in SUITE)
    with pytest.raises(EsperError, match="unknown setting 'mnist'"):
        settings("mnist")


def test_what_is_held_out_is_learned_from_nowhere():
    learned = recipe("general").fleets
    assert recipe("general").learned_from == learned, "the last stage has the settings of all"
    tasks, hosts = {fleet.task for fleet in learned}, {fleet.host for fleet in learned}
    assert not tasks & {setting(name).task for name in HELD_OUT}
    assert not tasks & {"images", "text"}
    assert "transformer" not in hosts
    asked = smoke()
    assert Sitting(asked, setting("digits-4"), SMALL).unseen == "task and kind of host"
    assert Sitting(asked, setting("planted"), SMALL).unseen == "task"
    assert Sitting(asked, asked.fleets[0], SMALL).unseen == ""
    assert Sitting(replace(asked, known=(setting("digits-4"),)), setting("digits-6"), SMALL).unseen == ""
