"""Draw the state of a run in a terminal."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from esper.leyline.reports import Anomaly, HeadReport, UpdateReport
from esper.telemetry.setting import Setting

BARS = "▁▂▃▄▅▆▇█"
COLUMNS = 80
"""Width of the board, in characters, where the terminal has room for it."""
LABEL, GAP, FRAME = 8, 2, 4
"""Width of row labels, between them and their row, and of the frame, in characters."""
WIDTH = 32
"""Greatest width of bars and curves, in characters."""
NUMBERS = 34
"""Width of what stands behind a bar or curve, in characters."""
RECENT = 5
"""Number of latest updates from which the remaining time is estimated."""
LATEST = 3
"""Number of anomalies shown."""
SHOWN = 3
"""Number of blueprints shown."""
ABOUT_J, ABOUT_NEVER = "J is the score minus the price of growth", "never: the same hosts left alone"
OP_COLORS = {
    "WAIT": "grey50",
    "GERMINATE": "green3",
    "ADVANCE": "chartreuse3",
    "SET_ALPHA_TARGET": "dodger_blue2",
    "FOSSILIZE": "orange4",
    "PRUNE": "indian_red",
}


class Board:
    """Terminal view of a run; rich can print it, and redraw it after every update.

    Attributes:
        reports: The updates so far.
        never: Mean J of hosts that never grow; None if it is not known.
    """

    def __init__(
        self,
        title: str,
        updates: int,
        heard: Sequence[UpdateReport] = (),
        *,
        setting: Setting | None = None,
        heads: bool = False,
    ) -> None:
        self.title, self.updates, self.reports = title, updates, list(heard)
        self.setting, self.heads = setting, heads
        self.never: float | None = None
        self.before = 0.0
        """Seconds before the first update."""

    def start(self, found: Mapping[str, Any]) -> None:
        """Take over what is known of the time before the first update, as `RunFolder.start` returns it."""
        self.never = found.get("never")
        is_other = self.setting is not None and self.setting.continues  # the seconds are those of another run, too
        self.before = 0.0 if is_other else found.get("seconds", 0.0)

    def hear(self, report: UpdateReport) -> None:
        """Add the report of the next update."""
        self.reports.append(report)

    def close(self) -> None:
        pass

    @property
    def left(self) -> float:
        """Estimated seconds that remain."""
        recent = [_took(report) for report in self.reports[-RECENT:]]
        return (self.updates - len(self.reports)) * sum(recent) / len(recent) if recent else 0.0

    def line(self) -> str:
        """Describe the last update in one line, for output that cannot be redrawn.

        An anomaly is described below the line when it first occurs, and counted below the run's last line.
        """
        *earlier, last = self.reports
        to_go = f"  {duration(self.left)} to go" if self.left else ""
        known = _grouped(earlier)
        lines = [_numbers(last, self.never) + to_go]
        lines += [f"  {_head_line(head)}" for head in last.heads if self.heads]
        lines += [f"  {describe(a)}" for a in last.anomalies if (a.kind, a.where) not in known]
        if len(self.reports) >= self.updates:
            repeated = [found for found in _grouped(self.reports).values() if len(found) > 1]
            lines += [f"  {_counted(found)}" for found in repeated]
        return "\n".join(lines)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width = min(options.max_width, COLUMNS)
        rows = Rows(width - FRAME - LABEL - GAP)
        room = width - FRAME - 4
        title = Text(self.title if len(self.title) <= room else f"…{self.title[1 - room :]}")
        parts = [*self._about(rows), *self._state(rows)]
        yield Panel(Group(*parts), title=title, title_align="left", width=width)

    def _about(self, rows: "Rows") -> list[RenderableType]:
        """Say what is trained, and where."""
        if self.setting is None:
            return []
        index, _ = self.setting.at(len(self.reports))
        stages, stage = self.setting.stages, self.setting.stages[index]
        if len(set(stage.fleets)) == 1:
            said = f"{stage.fleets[0]}: {stage.hosts} hosts at a time"
        else:
            said = f"{len(stage.fleets)} fleets, {stage.hosts} hosts at a time: {', '.join(stage.tasks)}"
        device = f", on {self.setting.device}" if self.setting.device else ""
        part = f"stage {index + 1} of {len(stages)}: " if len(stages) > 1 else ""
        return [rows.line("task", f"{part}{said}{device}")]

    def _state(self, rows: "Rows") -> list[RenderableType]:
        if not self.reports:
            return [Text("waiting for the first update", "dim")]
        last = self.reports[-1]
        _, first = self.setting.at(len(self.reports)) if self.setting else (0, 0)
        reports = self.reports[first:]
        parts = [*self._progress(rows), *_objective(rows, reports, self.never), *_growth(rows, reports)]
        parts += [*_tried(rows, last), *_mix(rows, last.ops)]
        if self.heads:
            entropies = [r.entropy for r in reports]
            parts += [Text(), *_curve(rows, "entropy", entropies, "grey62"), _health(last.heads, rows.width)]
        about = ABOUT_J if self.never is None else f"{ABOUT_J}; {ABOUT_NEVER}"
        return [*parts, *_warnings(self.reports), Text(), Text(f"{about}.", "dim")]

    def _progress(self, rows: "Rows") -> list[RenderableType]:
        made, took = len(self.reports), self.before + sum(map(_took, self.reports))
        bar = ProgressBar(
            self.updates, made, width=rows.bar, complete_style="green3", finished_style="green3", style="grey23"
        )
        to_go = f" so far, {duration(self.left)} to go" if self.left else ""
        return [rows.beside("updates", bar, f"{made} of {self.updates}"), rows.line("time", f"{duration(took)}{to_go}")]


class Rows:
    """Makes the rows of a board: a label, and what stands behind it."""

    def __init__(self, width: int) -> None:
        self.width = width
        """Characters behind the label."""
        self.bar = max(min(WIDTH, width - GAP - NUMBERS), 8)
        """Characters of a bar or curve."""

    def line(self, label: str, said: str | Text) -> Table:
        """Return a row of text."""
        row = Table.grid(padding=(0, GAP, 0, 0))
        row.add_column(width=LABEL, style="dim", no_wrap=True)
        row.add_column(width=self.width)
        row.add_row(label, said if isinstance(said, Text) else Text(said))
        return row

    def beside(self, label: str, drawn: RenderableType, said: str) -> Table:
        """Return a row with a bar or curve, and text behind it."""
        row = Table.grid(padding=(0, GAP, 0, 0))
        row.add_column(width=LABEL, style="dim", no_wrap=True)
        row.add_column(width=self.bar)
        row.add_column(width=self.width - self.bar - GAP)
        row.add_row(label, drawn, Text(said))
        return row

    def flow(self, label: str, entries: Iterable[Text]) -> Table:
        """Return a row of entries, broken only between them."""
        lines = [Text()]
        for entry in entries:
            if lines[-1] and len(lines[-1]) + GAP + len(entry) > self.width:
                lines.append(Text())
            lines[-1].append("  " if lines[-1] else "").append_text(entry)
        return self.line(label, Text("\n").join(lines))


def sparkline(values: Sequence[float], width: int = WIDTH) -> str:
    """Draw the latest values as a row of bars between their minimum and maximum, with a gap where one is not finite."""
    shown = list(values)[-width:]
    known = [x for x in shown if math.isfinite(x)]
    low = min(known, default=0.0)
    span = (max(known, default=0.0) - low) or 1.0
    bars = [min(int((x - low) / span * len(BARS)), len(BARS) - 1) if math.isfinite(x) else None for x in shown]
    return "".join(" " if bar is None else BARS[bar] for bar in bars)


def thinned(values: Sequence[float], width: int) -> list[float]:
    """Return the means of at most `width` runs of values of about equal length, of those in each that are finite."""
    count = min(width, len(values))
    parts = [values[i * len(values) // count : (i + 1) * len(values) // count] for i in range(count)]
    return [sum(known) / len(known) if (known := _finite(part)) else math.nan for part in parts]


def duration(seconds: float) -> str:
    """Format a duration, such as "1 min 05 s"."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"


def describe(anomaly: Anomaly) -> str:
    """Describe an anomaly in one sentence, with what to try."""
    return f"{anomaly.kind} ({anomaly.where}): {anomaly.explanation}; {anomaly.suggestion}"


def _took(report: UpdateReport) -> float:
    return sum(report.seconds.values())


def _finite(values: Iterable[float | None]) -> list[float]:
    return [x for x in values if x is not None and math.isfinite(x)]


def _numbers(report: UpdateReport, never: float | None) -> str:
    j, gain = "   -  ", ""
    if report.objective is not None:
        j = f"{report.objective:.4f}"
        gain = "" if never is None else f"  (never grows: {report.objective - never:+.3f})"
    grown = "" if report.growth is None else f"  growth {report.growth:5.2f}"
    return f"update {report.update:4d}  J {j}{gain}{grown}  {_took(report):.1f} s"


def _grouped(reports: Sequence[UpdateReport]) -> dict[tuple[str, str], list[Anomaly]]:
    """All anomalies by kind and place, in the order of their first occurrence."""
    found: dict[tuple[str, str], list[Anomaly]] = {}
    for anomaly in (a for report in reports for a in report.anomalies):
        found.setdefault((anomaly.kind, anomaly.where), []).append(anomaly)
    return found


def _counted(found: Sequence[Anomaly]) -> str:
    last = found[-1]
    times = f", update {last.update}" if len(found) == 1 else f" × {len(found)}, last at update {last.update}"
    return f"{last.kind} ({last.where}){times}"


def _warnings(reports: Sequence[UpdateReport]) -> list[RenderableType]:
    """Describe each of the latest anomalies once, with the number of updates that had it."""
    found = sorted(_grouped(reports).values(), key=lambda same: same[-1].update)
    lines = [f"warning: {_counted(same)}: {same[-1].explanation}; {same[-1].suggestion}" for same in found[-LATEST:]]
    if len(found) > LATEST:
        lines.append(f"and {len(found) - LATEST} more: `esper report` lists all warnings")
    return [Text(text, "yellow") for text in ("", *lines)] if lines else []


def _objective(rows: Rows, reports: Sequence[UpdateReport], never: float | None) -> list[RenderableType]:
    """Say how well the hosts do, and how well they would have done without growth."""
    known = _finite(r.objective for r in reports)
    if not known:
        return [rows.line("J", Text("no episode has ended yet", "dim"))]
    said = f"{known[-1]:.3f}, best {max(known):.3f}"
    if never is not None:
        said += f"; never grows: {never:.3f}, {known[-1] - never:+.3f}"
    return [rows.line("J", said), *_curve(rows, "", [_or_nan(r.objective) for r in reports], "green3")]


def _growth(rows: Rows, reports: Sequence[UpdateReport]) -> list[RenderableType]:
    known = _finite(r.growth for r in reports)
    if not known:
        return []
    drawn = Text(sparkline(thinned([_or_nan(r.growth) for r in reports], rows.bar)), "orange3")
    return [rows.beside("growth", drawn, f"{known[-1]:+.0%} parameters")]


def _curve(rows: Rows, label: str, values: Sequence[float], color: str) -> list[RenderableType]:
    drawn, known = Text(sparkline(thinned(values, rows.bar)), color), _finite(values)
    return [rows.beside(label, drawn, f"{min(known):.3f} to {max(known):.3f}" if known else "not a number")]


def _or_nan(x: float | None) -> float:
    return math.nan if x is None else x


def _tried(rows: Rows, report: UpdateReport) -> list[RenderableType]:
    """Say which seeds are planted, and where they are."""
    total, found = sum(report.planted.values()), []
    if total and report.episodes:
        most = sorted(report.planted.items(), key=lambda pair: -pair[1])
        entries = [f"{total:,} seeds in {report.episodes:,} hosts:"]
        entries += [f"{name} {_share(number, total)}" for name, number in most[:SHOWN] if number]
        others = sum(1 for _, number in most[SHOWN:] if number)
        entries += [f"and {others} more"] if others else []
        found.append(rows.flow("planted", map(Text, entries)))
    slots = [
        Text.assemble(f"s{s} ", (BARS[min(int(share * len(BARS)), len(BARS) - 1)] * 3, "green3"), f" {share:.0%}")
        for s, share in enumerate(report.occupancy)
    ]
    return [*found, rows.flow("filled", slots)] if slots else found


def _mix(rows: Rows, ops: Mapping[str, int]) -> list[RenderableType]:
    """Draw the share of each op as one bar, with a legend."""
    total, bar, before = sum(ops.values()), Text(), 0
    legend = []
    for op, number in ops.items():
        until = before + number
        cells = round(until / (total or 1) * rows.bar) - round(before / (total or 1) * rows.bar)
        before = until
        color = OP_COLORS.get(op, "white")
        bar.append("█" * cells, color)
        if number:
            legend.append(Text.assemble((f"{op.lower().replace('_', ' ')} ", color), (_share(number, total), "dim")))
    return [rows.beside("actions", bar, ""), rows.flow("", legend)] if total else []


def _share(number: int, total: int) -> str:
    share = number / total
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"


def _health(heads: Sequence[HeadReport], room: int) -> Table:
    """Return the statistics of all heads, with as many columns as there is room for."""
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    names = ("head", "decisions", "entropy", "KL", "clipped", "ratios", "gradient")
    names = names if room + LABEL + GAP >= COLUMNS - FRAME else names[:4]
    for name in names:
        table.add_column(name, justify="left" if name == "head" else "right")
    for head in heads:
        numbers = [_number(x, ".3f") for x in (head.entropy, head.approx_kl, head.clip_fraction)]
        cells = [f"{head.samples:,}", *numbers, _ratios(head), f"{head.grad_norm:.3f}"][: len(names) - 1]
        table.add_row(Text(_spoken(head.name)), *cells, style=None if head.samples else "dim")
    return table


def _head_line(head: HeadReport) -> str:
    """Say the statistics of a head in one line."""
    numbers = [_number(x, ".3f") for x in (head.entropy, head.approx_kl, head.clip_fraction)]
    said = f"{_spoken(head.name):12} {head.samples:7,}  entropy {numbers[0]}  KL {numbers[1]}  clipped {numbers[2]}"
    return f"{said}  ratios {_ratios(head)}  gradient {head.grad_norm:.3f}"


def _spoken(name: str) -> str:
    return name.replace("_", " ")


def _ratios(head: HeadReport) -> str:
    return "-" if head.ratio_min is None else f"{head.ratio_min:.2f} to {head.ratio_max:.2f}"


def _number(x: float | None, form: str) -> str:
    return "-" if x is None else format(x, form)
