"""Small exams for tests."""

from dataclasses import replace

from esper.exam.config import ExamConfig
from esper.exam.sitting import Sitting
from esper.recipes import recipe

SMALL = ExamConfig(hosts=3, rates=(0.1, 1.0, 2.0), tuned_on=2, plans=3, recorded=1)
AT_ONE_RATE = replace(SMALL, rates=(1.0,))


def smoke():
    plain = recipe("smoke")
    (fleet,) = plain.fleets
    train = replace(fleet.train, lr=1e-2)
    small = replace(fleet, options={"examples": 200}, train=train, env=replace(fleet.env, episode=4, rng_seed=7))
    return replace(plain, fleets=(small,))


def sitting(config=SMALL, **changes):
    asked = replace(smoke(), **changes)
    return Sitting(asked, asked.fleets[0], config)
