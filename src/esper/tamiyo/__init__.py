"""Deciding: what a controller sees, what it may choose, and how it chooses."""

from esper.tamiyo.controller_files import load_controller, save_controller
from esper.tamiyo.features import Features
from esper.tamiyo.network import Controller, ControllerConfig

__all__ = ["Controller", "ControllerConfig", "Features", "load_controller", "save_controller"]
