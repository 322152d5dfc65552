"""Neural networks that start small and grow themselves while they train, only where growth pays."""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from esper.kasmina import *
    from esper.leyline import *
    from esper.leyline.specs import *
    from esper.leyline.state import *
    from esper.simic import *
    from esper.tamiyo import *
    from esper.tasks import *
    from esper.tolaria import *

_ROOMS = ("leyline", "leyline.specs", "leyline.state", "kasmina", "tasks", "tolaria", "tamiyo", "simic")
_SUBPACKAGES = ("leyline", "kasmina", "tasks", "tolaria", "tamiyo", "simic", "dashboard")


def __getattr__(name: str) -> object:
    """A public name of any room, imported when it is first used: what only reads reports need not wait for torch."""
    if name in _SUBPACKAGES:
        return import_module(f"esper.{name}")
    if not name.startswith("_"):
        for room in _ROOMS:
            module = import_module(f"esper.{room}")
            if name in module.__all__:
                return getattr(module, name)
    raise AttributeError(f"module 'esper' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({name for room in _ROOMS for name in import_module(f"esper.{room}").__all__})
