"""Write a run to its folder, show it in a terminal, and log it to experiment trackers."""

from esper.telemetry.board import Board
from esper.telemetry.folder import RunFolder
from esper.telemetry.sinks import SINKS, Sink, SinkName

__all__ = ["SINKS", "Board", "RunFolder", "Sink", "SinkName"]
