"""What leaves a run: its folder, and whoever else listens."""

from esper.telemetry.board import Board
from esper.telemetry.folder import RunFolder
from esper.telemetry.sinks import SINKS, Sink, SinkName

__all__ = ["SINKS", "Board", "RunFolder", "Sink", "SinkName"]
