"""Register `Growth-v0` with Gymnasium, at once or when Gymnasium is imported: it finds environments in no other way."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

ID = "Growth-v0"


def register() -> None:
    """Register the environment, unless that has been done."""
    from gymnasium.envs import registration

    if ID not in registration.registry:
        registration.register(
            ID, entry_point="esper.envs.single:GrowthEnv", vector_entry_point="esper.envs.vector:GrowthVectorEnv"
        )


class AfterGymnasium:
    """A finder of modules that waits for the first import of Gymnasium, and registers the environment after it."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> "ModuleSpec | None":
        """Return how to import Gymnasium and register the environment; None for all other modules."""
        if fullname != "gymnasium":
            return None
        from importlib.util import find_spec

        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_register(module: "ModuleType") -> None:
            execute(module)
            register()

        spec.loader.exec_module = execute_and_register
        return spec


def register_soon() -> None:
    """Register the environment if Gymnasium has been imported, else as soon as it is."""
    if sys.modules.get("gymnasium") is not None:
        register()
    elif not any(isinstance(finder, AfterGymnasium) for finder in sys.meta_path):
        sys.meta_path.insert(0, AfterGymnasium())
