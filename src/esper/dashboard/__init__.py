"""Looking at runs: pictures of what reports say."""

from esper.dashboard.life import draw_life

__all__ = ["draw_life"]
