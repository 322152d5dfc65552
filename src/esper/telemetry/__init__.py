"""What leaves a run: its folder, and whoever else listens."""

from esper.telemetry.folder import RunFolder
from esper.telemetry.sinks import Sink, TensorBoard

__all__ = ["RunFolder", "Sink", "TensorBoard"]
