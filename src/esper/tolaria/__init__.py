"""Training hosts: one at a time, or a fleet of them as one program."""

from esper.tolaria.config import Engine, TrainConfig
from esper.tolaria.env import EnvConfig, FleetEnv, Step
from esper.tolaria.files import load_training, save_training
from esper.tolaria.fleet import Fleet
from esper.tolaria.governor import GovernorConfig
from esper.tolaria.reference import Reference

__all__ = [
    "Engine",
    "EnvConfig",
    "Fleet",
    "FleetEnv",
    "GovernorConfig",
    "Reference",
    "Step",
    "TrainConfig",
    "load_training",
    "save_training",
]
