"""Train hosts: one at a time, or a fleet of them as one program."""

from esper.tolaria.config import Engine, TrainConfig
from esper.tolaria.env import EnvConfig, FleetEnv, Step
from esper.tolaria.fleet import Fleet
from esper.tolaria.governor import GovernorConfig
from esper.tolaria.host_trainer import HostTrainer
from esper.tolaria.training_files import load_training, save_training

__all__ = [
    "Engine",
    "EnvConfig",
    "Fleet",
    "FleetEnv",
    "GovernorConfig",
    "HostTrainer",
    "Step",
    "TrainConfig",
    "load_training",
    "save_training",
]
