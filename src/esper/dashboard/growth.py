"""Draw what growing did to one model, and write it as an HTML page."""

import io
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from esper.dashboard.page import details, page, section
from esper.dashboard.style import EARTH, GREEN, GRID, INK, QUIET, drawing, in_unit, magnitude, quieten, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BIRTHS = ("deepen", "plant", "keep", "fossilize")
REMOVALS = ("prune", "undo", "discard", "rollback")
LEAST_RATIO = 30
"""Ratio of the largest to the smallest loss from which the axis is logarithmic."""
ROWS = 6
"""Rows of labels above the picture; labels that find no place in them are left out."""
LINE = 9.5
"""Height of a row of labels, in points."""
INLINE: dict[str, Any] = {"savefig.format": "svg", "svg.fonttype": "none", "svg.hashsalt": "esper"}
"""Settings of matplotlib for pictures within a page, whose text stays text."""
VARIABLES = {INK: "ink", QUIET: "quiet", GRID: "line", GREEN: "green", EARTH: "earth", "#ffffff": "ground"}
"""Colors of pictures, and the CSS variables that replace them within a page."""
CSS = """
:root { color-scheme: light dark; } body { max-width: 52rem; margin: 2rem auto; }
h1 { font-size: 1.3rem; line-height: 1.4; font-weight: 600; } h2 { margin-top: 2rem; }
svg { width: 100%; height: auto; } svg text { font-family: system-ui, sans-serif !important; }
figure.narrow { display: none; } td.text span { overflow-wrap: anywhere; } summary { cursor: pointer; }
@media (max-width: 640px) { body { margin: 1rem auto; padding: 0 1rem; } h1 { font-size: 1.12rem; }
figure.roomy { display: none; } figure.narrow { display: block; } th, td { padding: .3rem .25rem; font-size: .82rem; } }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8eb; --quiet: #9aa5ad; --line: #343d44; --green: #6cc28d;
--earth: #e79b54; --ground: #14191d; --shade: #1e252a; } }
"""


@dataclass(frozen=True)
class Point:
    """The state of a growing model at one moment, for curves."""

    flops: int
    """Operations spent so far."""
    parameters: int
    loss: float | None
    """Average training loss."""
    metric: float | None
    """A new validation metric, if there is one."""


@dataclass(frozen=True)
class Mark:
    """Something that happened to a growing model."""

    kind: str
    step: int
    share: float
    """Share of the budget spent."""
    flops: int
    """Operations spent so far."""
    parameters: int
    blocks: int
    """Blocks of all chains."""
    loss: float | None
    detail: str


@dataclass(frozen=True, kw_only=True)
class GrowthStory:
    """Contents of the picture and the page of a growth."""

    name: str
    """Name of the model."""
    steps: int
    spent: float
    """Operations spent so far."""
    budget: float | None
    """Operations that may be spent; None before the first step."""
    is_over: bool
    """Whether the budget is spent, or the growth is finished."""
    parameters: tuple[int, int]
    """Parameters at first and now."""
    blocks: tuple[int, int]
    """Blocks of all chains, at first and now."""
    points: Sequence[Point]
    marks: Sequence[Mark]
    options: Mapping[str, Any]

    def count(self, kind: str) -> int:
        """Return how often something happened."""
        return sum(mark.kind == kind for mark in self.marks)

    @property
    def losses(self) -> list[tuple[float, float]]:
        """Operations and finite average training losses."""
        return [(p.flops, p.loss) for p in self.points if p.loss is not None and math.isfinite(p.loss)]

    @property
    def metrics(self) -> list[tuple[float, float]]:
        """Operations and finite validation metrics."""
        return [(p.flops, p.metric) for p in self.points if p.metric is not None and math.isfinite(p.metric)]

    @property
    def sizes(self) -> list[tuple[float, int]]:
        """Operations and parameters, in the order in which they came."""
        # At equal operations an event comes last: it tells the size after a change between two steps, too.
        known = [(p.flops, p.parameters) for p in self.points] + [(m.flops, m.parameters) for m in self.marks]
        known = [(0.0, self.parameters[0]), *sorted(known, key=lambda size: size[0])]
        return [*known, (self.spent, self.parameters[1])]


def summary(story: GrowthStory) -> str:
    """Tell what happened to a model in one sentence."""
    size = " to ".join(dict.fromkeys(_number(n) for n in story.parameters))
    if not story.steps:
        return f"Has not been trained yet ({size} parameters)."
    end = "" if story.is_over else " so far"
    clauses = [f"{_changes(story)} ({size} parameters) in {_counted(story.steps, 'step')}{end}"]
    if story.losses:
        ends = (story.losses[0][1], story.losses[-1][1]) if len(story.losses) > 1 else (story.losses[0][1],)
        clauses.append(f"loss {' to '.join(f'{loss:.3g}' for loss in ends)}")
    taken_back = {"rollback": ("birth", "rolled back"), "undo": ("change", "undone"), "discard": ("trial", "discarded")}
    for kind, (noun, done) in taken_back.items():
        if number := story.count(kind):
            clauses.append(f"{_counted(number, noun)} {done}")
    clauses.append(_compute(story))
    return "; ".join(clauses) + "."


def _changes(story: GrowthStory) -> str:
    first, last = story.blocks
    planted, pruned = story.count("plant"), story.count("prune")
    parts = [f"grew from {first} to {last} blocks"] if first != last else []
    if planted:
        parts.append(f"planted {_counted(planted, 'seed')}" + (f" and pruned {pruned}" if pruned else ""))
    if not parts:
        parts = [f"stayed at {_counted(last, 'block')}"] if last else ["did not grow"]
    said = ", ".join(parts)
    return said[0].upper() + said[1:]


def _compute(story: GrowthStory) -> str:
    spent, prefix = in_unit(story.spent)
    if story.budget is None:
        return f"{spent} {prefix}FLOP spent"
    budget, other = in_unit(story.budget)
    return f"{spent} {prefix}FLOP spent of {budget}" + ("" if prefix == other else f" {other}FLOP")


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _number(count: float) -> str:
    """Return a count in full if it is small, else with a prefix."""
    return f"{count:,.0f}" if count < 10_000 else short(count)


def draw_growth(
    story: GrowthStory,
    path: str | Path | IO[bytes],
    *,
    size: tuple[float, float] = (8, 4.6),
    has_title: bool = True,
    style: Mapping[str, Any] | None = None,
) -> None:
    """Draw loss and parameters against compute, with a line for everything that changed the model.

    Args:
        story: What happened.
        path: The image; its ending names the format.
        size: Width and height in inches.
        has_title: Whether to write the summary above the picture.
        style: Further settings of matplotlib.

    Raises:
        EsperError: If matplotlib is not installed, or the image cannot be written.
    """
    has_curves = bool(story.losses or story.metrics)
    height = size[1] if has_curves else 0.6 * size[1]
    with drawing(path, size[0], height, style) as figure:
        count = 1 + has_curves
        axes = list(figure.subplots(count, sharex=True, squeeze=False, height_ratios=[2, 1][-count:])[:, 0])
        if has_curves:
            _draw_losses(axes[0], story)
        _draw_sizes(axes[-1], story)
        _mark(figure, axes, story)
        if has_title:
            title = textwrap.fill(summary(story), round(14 * size[0]))
            figure.suptitle(title, x=0.01, ha="left", fontsize=9.5, fontweight="bold", linespacing=1.4)


def _draw_losses(ax: "Axes", story: GrowthStory) -> None:
    losses, metrics = [y for _, y in story.losses], [y for _, y in story.metrics]
    apart = bool(losses and metrics) and (min(losses) > max(metrics) or max(losses) < min(metrics))
    own = ax.twinx() if apart else ax
    lines = []
    if losses:
        lines += ax.plot([x for x, _ in story.losses], losses, color=INK, lw=1.8, label="training loss, averaged")
        ax.set_ylabel("training loss")
    if metrics:
        (points,) = own.plot([x for x, _ in story.metrics], metrics, "o", color=GREEN, ms=3.5, label="validation")
        lines.append(points)
        if apart or not losses:
            own.set_ylabel("validation metric", color=GREEN)
        else:
            ax.set_ylabel("loss")
    for axis, values in ((ax, losses if apart else losses + metrics), (own, metrics)):
        if values and min(values) > 0 and max(values) > LEAST_RATIO * min(values):
            axis.set_yscale("log")
    quieten(ax)
    if apart:
        quieten(own, grid=False)
    if len(lines) > 1:
        ax.legend(handles=lines, frameon=False, fontsize=8, loc="upper right")


def _draw_sizes(ax: "Axes", story: GrowthStory) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    x, y = [flops for flops, _ in story.sizes], [count for _, count in story.sizes]
    ax.plot(x, y, color=GREEN, lw=1.8, drawstyle="steps-post")
    ax.fill_between(x, y, step="post", color=GREEN, alpha=0.12, lw=0)
    ax.set_ylim(0, 1.15 * max(y))
    ax.set_ylabel("parameters")
    ax.yaxis.set_major_locator(MaxNLocator(3))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda count, _: _number(count)))
    end = max(story.spent, 1.0)
    unit, prefix = magnitude(end)
    ax.set_xlim(0, end)
    ax.xaxis.set_major_locator(MaxNLocator(6))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda flops, _: f"{flops / unit:g}"))
    ax.set_xlabel(f"compute spent, {prefix}FLOP")
    quieten(ax)


def _mark(figure: "Figure", axes: "Sequence[Axes]", story: GrowthStory) -> None:
    """Draw a line through all axes for each step that changed the model, with a label above."""
    top, found = axes[0], labels(story)
    texts = []
    for flops, label, color in found:
        for ax in axes:
            ax.axvline(flops, color=color, lw=0.7, alpha=0.7, zorder=1)
        texts.append(
            top.annotate(
                label,
                (flops, 1),
                xycoords=("data", "axes fraction"),
                xytext=(0, 3),
                textcoords="offset points",
                fontsize=7.5,
                color=color,
                annotation_clip=False,
            )
        )
    figure.draw_without_rendering()  # sets the widths of axes and texts
    dots = figure.dpi / 72
    right = figure.bbox.x1 / dots
    ends = [-math.inf] * ROWS
    for text in texts:
        box = text.get_window_extent()
        start, width = box.x0 / dots, box.width / dots
        start = min(start, right - width - 4)
        row = next((row for row in range(ROWS) if ends[row] + 5 < start), None)
        if row is None:
            text.remove()
            continue
        ends[row] = start + width
        text.set_position((start - box.x0 / dots, 3 + LINE * row))


def labels(story: GrowthStory) -> list[tuple[float, str, str]]:
    """Return compute, text and color of the label of each step that changed the model: one for a step."""
    found: list[tuple[float, str, str]] = []
    blocks = story.blocks[0]
    for _, here in groupby(story.marks, key=lambda mark: mark.step):
        marks, before = list(here), blocks
        blocks = marks[-1].blocks
        shown = [mark for mark in marks if mark.kind in BIRTHS + REMOVALS]
        if shown:
            names = dict.fromkeys(mark.kind for mark in shown)
            parts = [_label([mark for mark in shown if mark.kind == kind], before) for kind in names]
            color = EARTH if shown[-1].kind in REMOVALS else GREEN
            found.append((float(shown[0].flops), ", ".join(parts), color))
    return found


def _label(marks: Sequence[Mark], blocks: int) -> str:
    kind = marks[0].kind
    if kind == "deepen":
        return f"{blocks} → {marks[-1].blocks} blocks"
    if kind in ("plant", "prune", "fossilize"):
        seed = marks[0].detail.rpartition(": ")[2]
        return f"{kind} {seed}" if len(marks) == 1 else f"{kind} {len(marks)} seeds"
    return kind if len(marks) == 1 else f"{kind} ×{len(marks)}"


def growth_html(story: GrowthStory) -> str:
    """Return what happened to a model as one HTML page that needs no other file."""
    said = summary(story)
    caption = (
        "Above, the training loss; below, the parameters, both against the compute spent. Every line is a change of the"
        " model; the table lists them all."
    )
    if not story.losses:
        caption = "Parameters against the compute spent. Every line is a change of the model; the table lists them all."
    pictures = "".join(
        f'<figure class="{name}">{_inline(story, name, size, said)}<figcaption class="quiet">{caption}</figcaption>'
        "</figure>\n"
        for name, size in {"roomy": (8.0, 4.6), "narrow": (4.4, 4.6)}.items()
    )
    parts = [
        f"<h1>{escape(said)}</h1>",
        pictures,
        section("What happened when", _events(story)),
        details("Options", story.options),
    ]
    return page(f"Growth of {story.name}", parts, CSS)


def _inline(story: GrowthStory, name: str, size: tuple[float, float], said: str) -> str:
    """Return a picture as an SVG element whose colors are those of the page, light or dark."""
    file = io.BytesIO()
    draw_growth(story, file, size=size, has_title=False, style=INLINE)
    svg = file.getvalue().decode()
    svg = re.sub(r"<metadata>.*?</metadata>|<\?xml.*?\?>|<!DOCTYPE.*?>", "", svg, flags=re.DOTALL).strip()
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg)
    svg = re.sub(r'( id="|url\(#|href="#)', rf"\1{name}-", svg)
    for color, variable in VARIABLES.items():
        svg = svg.replace(color, f"var(--{variable})")
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(said)}"', 1)


def _events(story: GrowthStory) -> str:
    head = "".join(
        f'<th class="{"text" if name == "what" else ""}">{name}</th>'
        for name in ("step", "compute", "what", "loss", "parameters")
    )
    rows = []
    for (step, kind), here in groupby(story.marks, key=lambda mark: (mark.step, mark.kind)):
        marks = list(here)
        last = marks[-1]
        about = "; ".join(mark.detail for mark in marks if mark.detail)
        style = "win" if kind in BIRTHS else "loss" if kind in REMOVALS else ""
        loss = "" if last.loss is None else f"{last.loss:.3g}"
        rows.append(
            f'<tr><td>{step:,}</td><td>{last.share:.0%}</td><td class="text {style}">{escape(kind)}'
            f'{" " * bool(about)}<span class="quiet">{escape(about)}</span></td>'
            f"<td>{loss}</td><td>{_number(last.parameters)}</td></tr>"
        )
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>" if rows else ""
