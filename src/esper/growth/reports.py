"""Hand a growth's curves to the dashboard: one picture, and one page."""

from pathlib import Path
from typing import TYPE_CHECKING

from esper.leyline.errors import EsperError

if TYPE_CHECKING:
    from esper.growth.growth import Growth


def plot(growth: "Growth", path: str | Path) -> None:
    """Draw loss and parameters against compute."""
    raise EsperError("not there yet")


def write_page(growth: "Growth", path: str | Path) -> None:
    """Write a page with the picture and what happened when."""
    raise EsperError("not there yet")
