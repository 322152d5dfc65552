"""Consoles that print text literally, and tables that fit a terminal of 80 columns."""

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from esper.dashboard.exam_text import about, cells, headings
from esper.exam.records import ExamReport

COLUMNS = ("metric", "IQM", "growth", "parameters", "FLOPs", "time", "J", "ahead", "P(better)")
"""Columns of an exam's table, cells of its arms."""
DROPPED_FIRST = ("time", "FLOPs", "parameters", "IQM", "metric", "P(better)", "growth", "J")
"""Columns that a narrow terminal leaves out, in this order."""
MIDDLE = 20
"""Widest column between the first and the last of a list."""
PIPE_WIDTH = 136
"""Columns of an exam's table where output is no terminal: enough for all of it."""


def literal_console(stderr: bool = False) -> Console:
    """Return a console that prints text as it is: without markup, emoji codes or coloured numbers."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False, log_path=False)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table: the first column is never broken, the others wrap at words."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for n, heading in enumerate(headings):
        table.add_column(heading, no_wrap=n == 0, max_width=MIDDLE if 0 < n < len(headings) - 1 else None)
    for row in rows:
        table.add_row(*row)
    literal_console().print(table)


def show_exam(exam: ExamReport, console: Console) -> None:
    """Print the table of an exam, with as many of its columns as the terminal has room for."""
    if not console.is_terminal:
        console.width = max(console.width, PIPE_WIDTH)
    columns, left_out, unlimited = list(COLUMNS), [], console.options.update(width=1000)
    table = exam_table(exam, columns)
    for column in DROPPED_FIRST:
        if console.measure(table, options=unlimited).maximum <= console.width:
            break
        columns.remove(column)
        left_out.append(headings(exam, [column])[0])
        table = exam_table(exam, columns)
    console.print(table)
    if left_out:
        console.print(f"A wider terminal also shows: {', '.join(reversed(left_out))}.", style="dim")


def exam_table(exam: ExamReport, columns: Sequence[str] = COLUMNS) -> Table:
    """Return the table of an exam: one row for each arm."""
    title = Text(f"{exam.setting}: {exam.hosts} fresh hosts, {exam.data} data", "bold")
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1))
    below = about(exam)
    table.caption, table.caption_justify = Text(below) if below else None, "left"
    table.add_column("policy", overflow="fold", max_width=24)
    for name in headings(exam, columns):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for arm in exam.arms:
        color = {"better": "green", "worse": "red", "level": ""}[arm.verdict]
        told = cells(arm)
        texts = (Text(told[column], color if column == "ahead" else "") for column in columns)
        table.add_row(Text(arm.name), *texts, Text(arm.verdict if arm.difference else "", color))
    return table
