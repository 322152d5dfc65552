"""Define the shared vocabulary: actions, lifecycle, specs, records and reports.

Only what needs no torch is exported here, so that reading a report stays fast.
"""

from esper.leyline.actions import ActionSpace, Curve, Graft, Head, Op
from esper.leyline.errors import EsperError, FileError
from esper.leyline.lifecycle import TRANSITIONS, Stage
from esper.leyline.reports import EpochReport, SlotReport

__all__ = [
    "TRANSITIONS",
    "ActionSpace",
    "Curve",
    "EpochReport",
    "EsperError",
    "FileError",
    "Graft",
    "Head",
    "Op",
    "SlotReport",
    "Stage",
]
