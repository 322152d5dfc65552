"""Grow a user's own model while it trains."""

from esper.growth.growth import Growth, grow
from esper.growth.policies import Deepen, Doubling, Plateau
from esper.growth.records import Event
from esper.growth.saving import resume
from esper.growth.schedules import WarmupStableDecay

__all__ = ["Deepen", "Doubling", "Event", "Growth", "Plateau", "WarmupStableDecay", "grow", "resume"]
