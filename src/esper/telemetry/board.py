"""A run at a glance, in a terminal."""

import math
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from esper.leyline.reports import Anomaly, HeadReport, UpdateReport

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 44
"""Of bars and curves, in characters."""
RECENT = 5
"""Updates that the time to go is estimated from."""
OP_COLORS = {
    "WAIT": "grey50",
    "GERMINATE": "green3",
    "ADVANCE": "chartreuse3",
    "SET_ALPHA_TARGET": "dodger_blue2",
    "FOSSILIZE": "orange4",
    "PRUNE": "indian_red",
}


class Board:
    """What has been heard of a run; rich draws it."""

    def __init__(self, title: str, updates: int, heard: Sequence[UpdateReport] = ()) -> None:
        self.title, self.updates, self.reports = title, updates, list(heard)

    def hear(self, report: UpdateReport) -> None:
        self.reports.append(report)

    def close(self) -> None:
        pass

    def __rich__(self) -> RenderableType:
        if not self.reports:
            return Panel(Text("the first update is being made", "dim"), title=self.title, title_align="left")
        last = self.reports[-1]
        parts: list[RenderableType] = [self._progress(), self._curves(), _mix(last.ops), _occupancy(last.occupancy)]
        parts += [Text(), _health(last.heads), *_anomalies([a for r in self.reports for a in r.anomalies])]
        return Panel(Group(*parts), title=self.title, title_align="left", width=92)

    def _progress(self) -> RenderableType:
        made = len(self.reports)
        recent = [sum(report.seconds.values()) for report in self.reports[-RECENT:]]
        left = (self.updates - made) * sum(recent) / len(recent)
        bar = ProgressBar(self.updates, made, width=WIDTH, complete_style="green3", finished_style="green3")
        return _row("updates", bar, f"{made} of {self.updates}, {duration(left)} to go")

    def _curves(self) -> RenderableType:
        objectives = [r.objective for r in self.reports if r.objective is not None]
        growths = [r.growth for r in self.reports if r.growth is not None]
        rows = [_curve("J", objectives, "green3"), _curve("growth", growths, "orange3")]
        return Group(*rows, _curve("entropy", [r.entropy for r in self.reports], "grey62"))


def sparkline(values: Sequence[float], width: int = WIDTH) -> str:
    """The newest values as a row of bars, from the lowest to the highest of them; a gap where one is not finite."""
    shown = list(values)[-width:]
    known = [x for x in shown if math.isfinite(x)]
    low = min(known, default=0.0)
    span = (max(known, default=0.0) - low) or 1.0
    bars = [min(int((x - low) / span * len(BARS)), len(BARS) - 1) if math.isfinite(x) else None for x in shown]
    return "".join(" " if bar is None else BARS[bar] for bar in bars)


def duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"


def line(report: UpdateReport) -> str:
    """An update where nothing can be redrawn."""
    j = "   -  " if report.objective is None else f"{report.objective:.4f}"
    grown = "" if report.growth is None else f"growth {report.growth:5.2f}  "
    took = sum(report.seconds.values())
    said = [f"update {report.update:4d}  J {j}  {grown}entropy {report.entropy:.2f}  {took:.1f} s"]
    return "\n".join([*said, *(f"  {told(anomaly)}" for anomaly in report.anomalies)])


def told(anomaly: Anomaly) -> str:
    return f"{anomaly.kind} ({anomaly.where}): {anomaly.explanation}; {anomaly.suggestion}"


def _row(name: str, drawn: RenderableType, said: str) -> Table:
    row = Table.grid(padding=(0, 2))
    row.add_column(width=9, style="dim")
    row.add_column(width=WIDTH)
    row.add_column()
    row.add_row(name, drawn, said)
    return row


def _curve(name: str, values: Sequence[float], color: str) -> Table:
    if not values:
        return _row(name, Text("no life has ended yet", "dim"), "")
    return _row(name, Text(sparkline(values), color), f"{values[-1]:.4f}  (from {values[0]:.4f})")


def _mix(ops: Mapping[str, int]) -> RenderableType:
    """One bar, cut into the shares of all ops, and what they are."""
    total = sum(ops.values()) or 1
    bar, legend = Text(), Text()
    before = 0
    for op, count in ops.items():
        until = before + count
        cells = round(until / total * WIDTH) - round(before / total * WIDTH)
        before = until
        bar.append("█" * cells, OP_COLORS.get(op, "white"))
        legend.append(f"{op.lower().replace('_', ' ')} ", OP_COLORS.get(op, "white"))
        legend.append(f"{count / total:.0%}  ", "dim")
    return Group(_row("actions", bar, ""), Padding(legend, (0, 0, 0, 11)))


def _occupancy(shares: Sequence[float]) -> RenderableType:
    text = Text()
    for s, share in enumerate(shares):
        text.append(f"s{s} ")
        text.append(BARS[min(int(share * len(BARS)), len(BARS) - 1)] * 4, "green3")
        text.append(f" {share:.0%}   ", "dim")
    return _row("slots", text, "")


def _health(heads: Sequence[HeadReport]) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name in ("head", "decisions", "entropy", "KL", "clipped", "ratios", "gradient"):
        table.add_column(name, justify="left" if name == "head" else "right")
    for head in heads:
        ratios = "-" if head.ratio_min is None else f"{head.ratio_min:.2f} to {head.ratio_max:.2f}"
        numbers = [_number(x, ".3f") for x in (head.entropy, head.approx_kl, head.clip_fraction)]
        style = "dim" if not head.samples else None
        table.add_row(
            head.name.replace("_", " "), f"{head.samples:,}", *numbers, ratios, f"{head.grad_norm:.3f}", style=style
        )
    return table


def _number(x: float | None, form: str) -> str:
    return "-" if x is None else format(x, form)


def _anomalies(anomalies: Sequence[Anomaly]) -> list[RenderableType]:
    return [Text(f"update {a.update}: {told(a)}", "yellow") for a in anomalies[-3:]]
