"""Training hosts."""

from esper.tolaria.config import TrainConfig
from esper.tolaria.files import load_training, save_training
from esper.tolaria.reference import Reference

__all__ = ["Reference", "TrainConfig", "load_training", "save_training"]
