"""Define blueprints, the kinds of seeds."""

from esper.kasmina.blueprints.registry import (
    Blueprint,
    blueprint,
    blueprint_names,
    register_blueprint,
    unregister_blueprint,
)

__all__ = ["Blueprint", "blueprint", "blueprint_names", "register_blueprint", "unregister_blueprint"]
