"""Describe what a step has led to: one function of tensors, which a GPU replays as a captured program."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from esper.envs.observations import Bytes, as_bytes, described, joined
from esper.leyline.state import Setting
from esper.simic.lives import LifeState
from esper.simic.rewards import RewardConfig, reward
from esper.tamiyo.features import ScoreHistory
from esper.tolaria.capture import Programs
from esper.tolaria.episodes import Step
from esper.tolaria.recording import replayed


class Description(NamedTuple):
    """What a step has led to."""

    history: ScoreHistory
    """The results of each host in its present life."""
    known: Bytes
    """Rewards, ends, and what is known of every host; then of every host before fresh ones replaced some."""


@dataclass(frozen=True)
class StepDescriber:
    """Describes what steps have led to.

    Args:
        setting: Setting of the hosts.
        rewards: Reward family.
        programs: Captured programs of the fleet; None runs the function itself.
    """

    setting: Setting
    rewards: RewardConfig
    programs: Programs | None

    def __call__(self, before: LifeState, step: Step, rent: Float[Tensor, " N"]) -> Description:
        """Return what `describe` returns, by a captured program if there is one."""
        return replayed(self.programs, "describe step", self.describe, (before, step, rent))

    def describe(self, before: LifeState, step: Step, rent: Float[Tensor, " N"]) -> Description:
        """Return what a step has led to. Nothing here may wait for the device, or copy numbers to it.

        Args:
            before: State of the hosts before the step.
            step: Outcome of the step.
            rent: Price of growth for hosts whose life has just begun.
        """
        ended = step.terminated | step.truncated
        life = before.followed_by(step.signals, ended, rent)
        last = before.followed_by(step.final, torch.zeros_like(ended), rent)  # of lives that go on: the same again
        both, refused = joined(life, last), torch.cat([step.refused & ~ended, step.refused])
        earned = reward(before.signals, step.final, before.rent, step.penalty, ended, self.rewards).total
        outcome = {"terminated": step.terminated, "truncated": step.truncated, "reward": earned}
        return Description(life.history, as_bytes(described(both, refused, self.setting) | outcome))
