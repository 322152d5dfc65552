"""Decide what to grow: features, legal choices, policies and the controller's network."""

from esper.tamiyo.controller_files import load_controller, save_controller
from esper.tamiyo.features import Features
from esper.tamiyo.network import Controller, ControllerConfig

__all__ = ["Controller", "ControllerConfig", "Features", "load_controller", "save_controller"]
