"""Grow a user's own model while it trains."""

from esper.growth.attaching import grow
from esper.growth.growth import Growth
from esper.growth.policies import Deepen, Doubling, Plan, Plateau, Probe, SlotAction
from esper.growth.preview import Preview, preview
from esper.growth.records import Event, GrowthConfig, Measurement
from esper.growth.saving import resume
from esper.growth.schedules import WarmupStableDecay

__all__ = [
    "Deepen",
    "Doubling",
    "Event",
    "Growth",
    "GrowthConfig",
    "Measurement",
    "Plan",
    "Plateau",
    "Preview",
    "Probe",
    "SlotAction",
    "WarmupStableDecay",
    "grow",
    "preview",
    "resume",
]
