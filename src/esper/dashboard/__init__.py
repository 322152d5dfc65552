"""Draw figures and HTML reports of runs."""

from esper.dashboard.life import draw_life

__all__ = ["draw_life"]
