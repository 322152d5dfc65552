"""Draw what growing did to one model, and write it as an HTML page."""

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from io import BytesIO
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esper.dashboard.page import details, page, section
from esper.dashboard.style import EARTH, GREEN, GRID, INK, QUIET, drawing, in_unit, magnitude, quieten, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BIRTHS = ("deepen", "plant", "keep", "fossilize")
REMOVALS = ("prune", "undo", "discard", "rollback")
LEAST_RATIO = 5
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
figcaption { font-size: .88rem; }
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
    path: str | Path | BytesIO,
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
            title = textwrap.fill(summary(story), round(11 * size[0]))
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
        look: dict[str, Any] = {"ms": 4, "mfc": "#ffffff", "mec": INK, "mew": 0.9, "ls": "", "label": "validation"}
        lines += own.plot([x for x, _ in story.metrics], metrics, "o", **look)
        own.set_ylabel("validation metric" if apart or not losses else "loss")
    _by_magnitude(ax, losses if apart else losses + metrics)
    if apart:
        _by_magnitude(own, metrics)
    quieten(ax)
    if apart:
        quieten(own, grid=False)
    if len(lines) > 1:
        ax.legend(handles=lines, frameon=False, fontsize=8, loc="upper right")


def _by_magnitude(ax: "Axes", values: Sequence[float]) -> None:
    """Make the y axis logarithmic if its values differ much, with few tick labels in full."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    if min(values) > 0 and max(values) > LEAST_RATIO * min(values):
        few = max(values) > 50 * min(values)
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1, 2, 3, 5)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        ax.yaxis.set_minor_locator(NullLocator())


def _draw_sizes(ax: "Axes", story: GrowthStory) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    x, y = [flops for flops, _ in story.sizes], [count for _, count in story.sizes]
    ax.plot(x, y, color=GREEN, lw=1.8, drawstyle="steps-post")
    ax.fill_between(x, y, step="post", color=GREEN, alpha=0.12, lw=0)
    ax.set_ylim(0, 1.15 * max(y))
    ax.set_ylabel("parameters")
    ax.yaxis.set_major_locator(MaxNLocator(3))
    unit, prefix = magnitude(max(y))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count / unit:g} {prefix}" if count else "0"))
    end = max(story.spent, 1.0)
    size, name = magnitude(end)
    ax.set_xlim(0, end)
    ax.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda flops, _: f"{flops / size:g}"))
    ax.set_xlabel(f"compute spent, {name}FLOP")
    quieten(ax)


def _mark(figure: "Figure", axes: "Sequence[Axes]", story: GrowthStory) -> None:
    """Draw a line through all axes for each step that changed the model, with a label above."""
    top, texts = axes[0], []
    place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
    for flops, label, color in labels(story):
        for ax in axes:
            ax.axvline(flops, color=color, lw=0.7, alpha=0.7, zorder=1)
        text = top.annotate(label, (flops, 1), xytext=(2, 3), fontsize=7.5, color=color, annotation_clip=False, **place)
        texts.append((flops, text, color))
    figure.draw_without_rendering()  # sets the widths of axes and texts
    dots = figure.dpi / 72
    starts = [math.inf] * ROWS
    # From right to left: a label that is raised over later ones stands left of them, where its line crosses none.
    for flops, text, color in reversed(texts):
        box = text.get_window_extent()
        row = next((row for row in range(ROWS) if box.x1 / dots + 3 < starts[row]), None)
        if row is None:
            text.remove()
            continue
        starts[row] = box.x0 / dots
        text.set_position((2, 3 + LINE * row))
        line: dict[str, Any] = {"arrowstyle": "-", "color": color, "lw": 0.7, "alpha": 0.7, "shrinkA": 0, "shrinkB": 0}
        end = (0, 3 + LINE * (row + 0.7))
        top.annotate("", (flops, 1), xytext=end, arrowprops=line, annotation_clip=False, **place)


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
    curves = [name for name, known in {"training loss": story.losses, "validation": story.metrics}.items() if known]
    shown = f"Above {' and '.join(curves)}, below parameters," if curves else "Parameters"
    caption = f"{shown} against the compute spent. Every line is a change of the model; the table lists them all."
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
    file = BytesIO()
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
