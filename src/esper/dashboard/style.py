"""Colors and helpers shared by all figures."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esper.leyline.errors import EsperError, FileError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, QUIET, GRID, GREEN, EARTH = "#22313f", "#8a949c", "#e3e6e8", "#2b7a4b", "#b35806"
SLOT_COLORS = ("#1b7837", "#2166ac", "#b35806", "#762a83", "#01665e", "#8c510a", "#c51b7d", "#4d4d4d")
STYLE: dict[Any, Any] = {"font.size": 9, "axes.edgecolor": GRID, "text.color": INK, "axes.labelcolor": INK}


PREFIXES = {1e21: "Z", 1e18: "E", 1e15: "P", 1e12: "T", 1e9: "G", 1e6: "M", 1e3: "k"}


@contextmanager
def drawing(
    path: str | Path | BytesIO, width: float, height: float, style: Mapping[str, Any] | None = None
) -> "Iterator[Figure]":
    """Open a figure that is saved to `path` at the end."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise EsperError("figures need the package matplotlib: pip install 'esper-nn[plot]'") from None
    settings: dict[Any, Any] = {**STYLE, **dict(style or {})}
    with rc_context(settings):
        figure = Figure(figsize=(width, height), layout="constrained")
        ending = Path(path).suffix[1:].lower() if isinstance(path, str | Path) else ""
        if ending and ending not in figure.canvas.get_supported_filetypes():
            raise EsperError(f"path must end in .png, .svg or .pdf, not in .{ending}")
        yield figure
        try:
            figure.savefig(path, dpi=150)
        except OSError as error:
            raise FileError(f"cannot write {path}: {error.strerror or error}") from error


def magnitude(count: float) -> tuple[float, str]:
    """Return the largest unit that is not above a count, with its prefix."""
    return next(((size, prefix) for size, prefix in PREFIXES.items() if count >= 0.9995 * size), (1.0, ""))


def in_unit(count: float) -> tuple[str, str]:
    """Return a count to three digits, and the prefix of its unit."""
    size, prefix = magnitude(count)
    return f"{count / size:.3g}", prefix


def short(count: float) -> str:
    """Return a count to three digits with a prefix."""
    return " ".join(in_unit(count)).strip()


def quieten(ax: "Axes", grid: bool = True) -> None:
    """Remove spines and ticks that carry no information."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(which="both", colors=QUIET, length=0)
    if grid:
        ax.grid(axis="y", color=GRID)
        ax.set_axisbelow(True)


def spoken(name: str) -> str:
    """Return an identifier in lower case with spaces."""
    return name.lower().replace("_", " ")
