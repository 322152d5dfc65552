"""Words, tables, specs, records and reports: what all other rooms agree on.

Only the words and tables are re-exported here, so that reading a report needs no torch.
"""

from esper.leyline.actions import ActionSpace, Curve, Graft, Head, Op, per_head
from esper.leyline.errors import EsperError, FileError
from esper.leyline.lifecycle import TRANSITIONS, Gate, Stage, Transition, Voice
from esper.leyline.reports import EpochReport, SlotReport

__all__ = [
    "TRANSITIONS",
    "ActionSpace",
    "Curve",
    "EpochReport",
    "EsperError",
    "FileError",
    "Gate",
    "Graft",
    "Head",
    "Op",
    "SlotReport",
    "Stage",
    "Transition",
    "Voice",
    "per_head",
]
