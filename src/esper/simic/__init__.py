"""Learn the policy: rewards, rollouts, PPO, imitation, offline learning."""

from esper.simic.cloning import CloneConfig, clone, load_episodes, save_episodes
from esper.simic.evaluation import evaluate, grow_host
from esper.simic.offline import OfflineConfig, learn_offline
from esper.simic.ppo import Learner, PPOConfig
from esper.simic.rewards import RentSchedule, RewardConfig
from esper.simic.rollout import CollectConfig, record_episodes
from esper.simic.train import LearnConfig, train_controller

__all__ = [
    "CloneConfig",
    "CollectConfig",
    "LearnConfig",
    "Learner",
    "OfflineConfig",
    "PPOConfig",
    "RentSchedule",
    "RewardConfig",
    "clone",
    "evaluate",
    "grow_host",
    "learn_offline",
    "load_episodes",
    "record_episodes",
    "save_episodes",
    "train_controller",
]
