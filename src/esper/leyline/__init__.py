"""Words, tables, specs, records and reports: what all other rooms agree on.

Only the words and tables are re-exported here, so that reading a report needs no torch.
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
