"""Training hosts."""

from esper.tolaria.config import TrainConfig
from esper.tolaria.files import load_training, save_training
from esper.tolaria.fleet import Fleet
from esper.tolaria.reference import Reference

__all__ = ["Fleet", "Reference", "TrainConfig", "load_training", "save_training"]
