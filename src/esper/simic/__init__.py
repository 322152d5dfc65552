"""Learning the policy."""

from esper.simic.ppo import Learner, PPOConfig
from esper.simic.rewards import RentSchedule, RewardConfig
from esper.simic.rollout import CollectConfig
from esper.simic.train import LearnConfig, train

__all__ = ["CollectConfig", "LearnConfig", "Learner", "PPOConfig", "RentSchedule", "RewardConfig", "train"]
