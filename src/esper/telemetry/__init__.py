"""What leaves a run: its folder, and whoever else listens."""

from esper.telemetry.folder import RunFolder

__all__ = ["RunFolder"]
