"""Standard environments whose episodes are training runs: for Gymnasium, Stable-Baselines3 and TorchRL.

`gymnasium.make("esper:Growth-v0")` and `make_vec` find them without an import. Needs `pip install 'esper-nn[gym]'`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from esper.leyline.errors import EsperError

_HOME = {
    "EnvOptions": "options",
    "GrowthEnv": "single",
    "GrowthVectorEnv": "vector",
    "SB3Policy": "sb3",
    "SB3VecEnv": "sb3",
    "check_vector_env": "checker",
}
_EXTRAS = {"gymnasium": "gym", "stable_baselines3": "sb3"}
"""The extra that installs each package."""
__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from esper.envs.checker import check_vector_env
    from esper.envs.options import EnvOptions
    from esper.envs.sb3 import SB3Policy, SB3VecEnv
    from esper.envs.single import GrowthEnv
    from esper.envs.vector import GrowthVectorEnv


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'esper.envs' has no attribute {name!r}")
    try:
        module = import_module(f"esper.envs.{_HOME[name]}")
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in _EXTRAS:
            raise
        raise EsperError(f"{name} needs the package {package}: pip install 'esper-nn[{_EXTRAS[package]}]'") from None
    return getattr(module, name)


def __dir__() -> list[str]:
    return list(__all__)
