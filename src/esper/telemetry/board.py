"""Draw the state of a run in a terminal."""

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
COLUMNS = 80
"""Width of the board, in characters."""
LABEL, WIDTH = 9, 32
"""Width of row labels, and of bars and curves, in characters."""
RECENT = 5
"""Number of latest updates from which the remaining time is estimated."""
LATEST = 3
"""Number of anomalies shown."""
OP_COLORS = {
    "WAIT": "grey50",
    "GERMINATE": "green3",
    "ADVANCE": "chartreuse3",
    "SET_ALPHA_TARGET": "dodger_blue2",
    "FOSSILIZE": "orange4",
    "PRUNE": "indian_red",
}


class Board:
    """Terminal view of a run; rich can print it, and redraw it after every update."""

    def __init__(self, title: str, updates: int, heard: Sequence[UpdateReport] = ()) -> None:
        self.title, self.updates, self.reports = title, updates, list(heard)

    def hear(self, report: UpdateReport) -> None:
        """Add the report of the next update."""
        self.reports.append(report)

    def close(self) -> None:
        pass

    def line(self) -> Text:
        """Describe the last update in one line, for output that cannot be redrawn.

        An anomaly is described below the line when it first occurs, and counted below the run's last line.
        """
        *earlier, last = self.reports
        known = _grouped(earlier)
        lines = [_numbers(last), *(f"  {describe(a)}" for a in last.anomalies if (a.kind, a.where) not in known)]
        if len(self.reports) >= self.updates:
            repeated = [found for found in _grouped(self.reports).values() if len(found) > 1]
            lines += [f"  {_counted(found)}" for found in repeated]
        return Text("\n".join(lines))

    def __rich__(self) -> RenderableType:
        room = COLUMNS - 8
        title = Text(self.title if len(self.title) <= room else f"…{self.title[1 - room :]}")
        if not self.reports:
            waiting = Text("waiting for the first update", "dim")
            return Panel(waiting, title=title, title_align="left", width=COLUMNS)
        last = self.reports[-1]
        parts: list[RenderableType] = [self._progress(), self._curves(), _mix(last.ops), _occupancy(last.occupancy)]
        parts += [Text(), _health(last.heads), *_anomalies(self.reports)]
        return Panel(Group(*parts), title=title, title_align="left", width=COLUMNS)

    def _progress(self) -> RenderableType:
        made = len(self.reports)
        recent = [sum(report.seconds.values()) for report in self.reports[-RECENT:]]
        left = (self.updates - made) * sum(recent) / len(recent)
        bar = ProgressBar(self.updates, made, width=WIDTH, complete_style="green3", finished_style="green3")
        return _row("updates", bar, f"{made} of {self.updates}, {duration(left)} left")

    def _curves(self) -> RenderableType:
        objectives = [r.objective for r in self.reports if r.objective is not None]
        growths = [r.growth for r in self.reports if r.growth is not None]
        rows = [_curve("J", objectives, "green3"), _curve("growth", growths, "orange3")]
        return Group(*rows, _curve("entropy", [r.entropy for r in self.reports], "grey62"))


def sparkline(values: Sequence[float], width: int = WIDTH) -> str:
    """Draw the latest values as a row of bars between their minimum and maximum, with a gap where one is not finite."""
    shown = list(values)[-width:]
    known = [x for x in shown if math.isfinite(x)]
    low = min(known, default=0.0)
    span = (max(known, default=0.0) - low) or 1.0
    bars = [min(int((x - low) / span * len(BARS)), len(BARS) - 1) if math.isfinite(x) else None for x in shown]
    return "".join(" " if bar is None else BARS[bar] for bar in bars)


def duration(seconds: float) -> str:
    """Format a duration, such as "1 min 05 s"."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"


def describe(anomaly: Anomaly) -> str:
    """Describe an anomaly in one sentence, with what to try."""
    return f"{anomaly.kind} ({anomaly.where}): {anomaly.explanation}; {anomaly.suggestion}"


def _numbers(report: UpdateReport) -> str:
    j = "   -  " if report.objective is None else f"{report.objective:.4f}"
    grown = "" if report.growth is None else f"growth {report.growth:5.2f}  "
    took = sum(report.seconds.values())
    return f"update {report.update:4d}  J {j}  {grown}entropy {report.entropy:.2f}  {took:.1f} s"


def _grouped(reports: Sequence[UpdateReport]) -> dict[tuple[str, str], list[Anomaly]]:
    """All anomalies by kind and place, in the order of their first occurrence."""
    found: dict[tuple[str, str], list[Anomaly]] = {}
    for anomaly in (a for report in reports for a in report.anomalies):
        found.setdefault((anomaly.kind, anomaly.where), []).append(anomaly)
    return found


def _counted(found: Sequence[Anomaly]) -> str:
    times = f"update {found[0].update}" if len(found) == 1 else f"{len(found)} updates so far"
    return f"{found[-1].kind} ({found[-1].where}), {times}"


def _row(name: str, drawn: RenderableType, said: str) -> Table:
    row = Table.grid(padding=(0, 2))
    row.add_column(width=LABEL, style="dim")
    row.add_column(width=WIDTH)
    row.add_column()
    row.add_row(name, drawn, said)
    return row


def _curve(name: str, values: Sequence[float], color: str) -> Table:
    if not values:
        return _row(name, Text("no episode has ended yet", "dim"), "")
    return _row(name, Text(sparkline(values), color), f"{values[-1]:.4f}  (first {values[0]:.4f})")


def _mix(ops: Mapping[str, int]) -> RenderableType:
    """Draw the share of each op as one bar, with a legend."""
    total = sum(ops.values()) or 1
    bar, legend = Text(), Text()
    before = 0
    for i, (op, count) in enumerate(ops.items()):
        until = before + count
        cells = round(until / total * WIDTH) - round(before / total * WIDTH)
        before = until
        bar.append("█" * cells, OP_COLORS.get(op, "white"))
        end = "\n" if i % 3 == 2 and i + 1 < len(ops) else "  "
        legend.append(f"{op.lower().replace('_', ' ')} ", OP_COLORS.get(op, "white"))
        legend.append(f"{count / total:.0%}{end}", "dim")
    return Group(_row("actions", bar, ""), Padding(legend, (0, 0, 0, LABEL + 2)))


def _occupancy(shares: Sequence[float]) -> RenderableType:
    text = Text()
    for s, share in enumerate(shares):
        text.append(f"s{s} ")
        text.append(BARS[min(int(share * len(BARS)), len(BARS) - 1)] * 4, "green3")
        text.append(f" {share:<8.0%}", "dim")
    row = Table.grid(padding=(0, 2))
    row.add_column(width=LABEL, style="dim")
    row.add_column(width=COLUMNS - LABEL - 6)
    row.add_row("slots", text)
    return row


def _health(heads: Sequence[HeadReport]) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    for name in ("head", "decisions", "entropy", "KL", "clipped", "ratios", "gradient"):
        table.add_column(name, justify="left" if name == "head" else "right")
    for head in heads:
        ratios = "-" if head.ratio_min is None else f"{head.ratio_min:.2f} to {head.ratio_max:.2f}"
        numbers = [_number(x, ".3f") for x in (head.entropy, head.approx_kl, head.clip_fraction)]
        style = "dim" if not head.samples else None
        name = Text(head.name.replace("_", " "))
        table.add_row(name, f"{head.samples:,}", *numbers, ratios, f"{head.grad_norm:.3f}", style=style)
    return table


def _number(x: float | None, form: str) -> str:
    return "-" if x is None else format(x, form)


def _anomalies(reports: Sequence[UpdateReport]) -> list[RenderableType]:
    """Describe each of the latest anomalies once, with the number of updates that had it."""
    found = sorted(_grouped(reports).values(), key=lambda same: same[-1].update)
    lines = [f"{_counted(same)}: {same[-1].explanation}; {same[-1].suggestion}" for same in found[-LATEST:]]
    if len(found) > LATEST:
        lines.append(f"and {len(found) - LATEST} more anomalies: `esper report` lists all")
    return [Text(text, "yellow") for text in ("", *lines)] if lines else []
