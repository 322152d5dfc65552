"""Build hosts, slots and seeds, blend seeds in, and move them through their lifecycle."""

from esper.kasmina.blueprints import blueprint, blueprint_names, register_blueprint, unregister_blueprint
from esper.kasmina.gates import LifecycleConfig
from esper.kasmina.host import Host
from esper.kasmina.hosts import build_host, host_kinds, register_host, unregister_host, weak_host
from esper.kasmina.model_files import load_model, save_model
from esper.kasmina.slots import Seed, Slot

__all__ = [
    "Host",
    "LifecycleConfig",
    "Seed",
    "Slot",
    "blueprint",
    "blueprint_names",
    "build_host",
    "host_kinds",
    "load_model",
    "register_blueprint",
    "register_host",
    "save_model",
    "unregister_blueprint",
    "unregister_host",
    "weak_host",
]
