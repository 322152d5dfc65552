"""Types of command-line flags, which say how `--help` shows them."""

from pathlib import Path
from typing import Annotated, Any

from tyro.conf import FlagCreatePairsOff, Positional, arg

Flag = Annotated[bool, FlagCreatePairsOff, arg(help_behavior_hint="")]
"""A switch that is off by default."""
RunDir = Annotated[Path, Positional, arg(metavar="RUN")]


def optional(metavar: str, default: str) -> Any:
    """Annotate a flag whose default is decided elsewhere; `default` describes it."""
    return arg(metavar=metavar, help_behavior_hint=f"(default: {default})")
