"""Draw one episode of a host: its metric, the alpha of its seeds, and their stages."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from esper.dashboard.style import GRID, INK, QUIET, SLOT_COLORS, drawing, quieten, spoken
from esper.leyline.errors import EsperError
from esper.leyline.lifecycle import Stage
from esper.leyline.reports import EpochReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STAGE_COLORS = {
    Stage.DORMANT: "#f4f4f2",
    Stage.GERMINATED: "#cfe8c6",
    Stage.TRAINING: "#9fd39a",
    Stage.BLENDING: "#5aae61",
    Stage.HOLDING: "#2b7a4b",
    Stage.FOSSILIZED: "#7b5b3a",
    Stage.PRUNED: "#d6604d",
    Stage.EMBARGOED: "#f4c7a8",
    Stage.RESETTING: "#e8e4da",
}

TOO_CLOSE = 0.2
"""Share of the y axis below which the labels of two curves are moved apart."""
LINE = 13
"""Distance by which a label is moved, in points."""


def draw_life(
    reports: Sequence[EpochReport],
    path: str | Path | BytesIO,
    *,
    twin: Sequence[EpochReport] = (),
    metric: str = "accuracy",
    title: str = "",
) -> None:
    """Draw an episode of a host to an image file.

    Args:
        reports: One report per epoch.
        path: The image; its ending names the format. A buffer receives a PNG.
        twin: An episode of the same host without growth, drawn for comparison.
        metric: Name of the task's metric.
        title: Text above the figure.

    Raises:
        EsperError: There are no reports, or matplotlib is not installed.

    Example:
        >>> reports = [trainer.decide(trainer.space.action()) for _ in range(20)]
        >>> draw_life(reports, "life.png", title="A host that waits")
    """
    if not reports:
        raise EsperError("reports must hold at least one epoch, not none")
    slots = len(reports[0].slots)
    with drawing(path, *life_size(slots)) as figure:
        axes = figure.subplots(3, sharex=True, height_ratios=[3, 1.4, 0.42 * slots])
        _draw_metric(axes[0], reports, twin, metric)
        _draw_alpha(axes[1], reports)
        _draw_stages(axes[2], reports)
        for ax in axes:
            quieten(ax, grid=False)
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")


def life_size(slots: int) -> tuple[float, float]:
    """Return width and height of the figure of a life, in inches."""
    return 8, 4.6 + 0.28 * slots


def _draw_metric(ax: "Axes", reports: Sequence[EpochReport], twin: Sequence[EpochReport], metric: str) -> None:
    seen = [report.metric for life in (twin, reports) for report in life]
    close = bool(twin) and abs(twin[-1].metric - reports[-1].metric) < TOO_CLOSE * (max(seen) - min(seen))
    above = bool(twin) and reports[-1].metric >= twin[-1].metric
    for life, color, width, name in ((twin, QUIET, 1.4, "never grown"), (reports, INK, 2.2, "grown")):
        shift = LINE * close * (1 if (life is reports) == above else -1)
        if life:
            ax.plot([r.epoch for r in life], [r.metric for r in life], color=color, lw=width)
            label = f"{name}\n{life[-1].metric:.3f}, {life[-1].parameters:,} parameters"
            ax.annotate(
                label,
                (life[-1].epoch, life[-1].metric),
                xytext=(8, shift),
                textcoords="offset points",
                va="center",
                color=color,
                annotation_clip=False,
            )
    for report in reports:
        if report.op != "WAIT" and not report.refused:
            ax.axvline(report.epoch, color=GRID, lw=1, zorder=0)
            ax.annotate(
                spoken(report.op),
                (report.epoch, 1.01),
                xycoords=("data", "axes fraction"),
                rotation=30,
                fontsize=7,
                color=QUIET,
            )
    ax.set_ylabel(f"validation {metric}")
    ax.grid(axis="y", color=GRID)
    ax.margins(x=0.01)


def _draw_alpha(ax: "Axes", reports: Sequence[EpochReport]) -> None:
    for s, slot in enumerate(reports[0].slots):
        color = SLOT_COLORS[s % len(SLOT_COLORS)]
        ax.plot([r.epoch for r in reports], [r.slots[s].alpha for r in reports], color=color, label=slot.name, lw=1.8)
    ax.set_ylim(-0.05, 1.1)
    ax.set_ylabel("alpha")
    ax.grid(axis="y", color=GRID)
    ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _draw_stages(ax: "Axes", reports: Sequence[EpochReport]) -> None:
    """Draw one band per slot, colored by stage, with the blueprint of each seed where it germinated."""
    shown: set[Stage] = set()
    for s in range(len(reports[0].slots)):
        before = None
        for report in reports:
            slot = report.slots[s]
            stage = Stage[slot.stage]
            ax.barh(s, 1, left=report.epoch - 0.5, height=0.8, color=STAGE_COLORS[stage])
            shown.add(stage)
            if slot.blueprint is not None and slot.blueprint != before:
                ax.text(report.epoch - 0.35, s, slot.blueprint, va="center", fontsize=7.5)
            before = slot.blueprint
    ax.set_yticks(range(len(reports[0].slots)), [slot.name for slot in reports[0].slots])
    ax.invert_yaxis()
    ax.set_xlabel("epoch")
    handles = [ax.barh(0, 0, color=STAGE_COLORS[stage]) for stage in Stage if stage in shown]
    names = [spoken(stage.name) for stage in Stage if stage in shown]
    ax.legend(handles, names, frameon=False, fontsize=7.5, loc="center left", bbox_to_anchor=(1.0, 0.5))
