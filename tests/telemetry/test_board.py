"""A run at a glance: what a terminal shows."""

from io import StringIO

from rich.console import Console

from esper.leyline.reports import Anomaly, HeadReport
from esper.telemetry.board import BARS, Board, duration, line, sparkline
from telemetry_toys import report


def drawn(board: Board, width: int = 100) -> str:
    out = StringIO()
    Console(file=out, width=width, force_terminal=False).print(board)
    return out.getvalue()


def test_before_the_first_update_it_says_so():
    assert "first update" in drawn(Board("runs/x", 10))


def test_it_shows_how_far_how_well_and_what_is_done():
    board = Board("runs/x", 10)
    ops = {"WAIT": 30, "GERMINATE": 10}
    for update in range(7):
        took = {"collect": 12.0, "learn": 8.0} if update >= 2 else {"collect": 100.0}
        board.hear(report(update, objective=0.5 + update / 10, ops=ops, seconds=took, occupancy=(0.25, 1.0)))
    text = drawn(board)
    assert "runs/x" in text
    assert "7 of 10, 1 min 00 s to go" in text, "three times what the last five took"
    assert "1.1000  (from 0.5000)" in text
    assert "wait 75%" in text
    assert "germinate 25%" in text
    assert "s0 ▃▃▃▃ 25%" in text
    assert "s1 ████ 100%" in text


def test_every_head_has_its_row_and_the_unheard_no_numbers():
    heads = (HeadReport("op", 40, 0.01, 0.2, 0.9, 0.8, 1.2, 0.5, 0.4), HeadReport("style", 0, *[None] * 5, 0.0, 0.0))
    text = drawn(Board("x", 2, [report(0, heads=heads)]))
    (op,) = [row for row in text.splitlines() if " op " in row]
    assert "0.900" in op
    assert "0.80 to 1.20" in op
    (style,) = [row for row in text.splitlines() if " style " in row]
    assert style.split()[2:7] == ["0", "-", "-", "-", "-"]


def test_anomalies_come_with_what_to_do():
    anomaly = Anomaly(0, "entropy collapse", "op", "it is certain", "raise entropy_coef")
    assert "raise entropy_coef" in drawn(Board("x", 2, [report(0, anomalies=(anomaly,))]))
    assert "raise entropy_coef" in line(report(0, anomalies=(anomaly,)))


def test_nothing_known_is_no_number():
    assert "J    -" in line(report(0, objective=None, growth=None))
    assert "no life has ended yet" in drawn(Board("x", 2, [report(0, objective=None)]))


def test_sparklines_go_from_the_lowest_to_the_highest_of_the_newest():
    assert [sparkline(values, 4) for values in ([1.0], [2.0, 2.0], [0.0, 1.0])] == ["▁", "▁▁", "▁█"]
    assert sparkline([99.0, 0.0, 8.0, 4.0, 2.0], 4) == "▁█▅▃"


def test_what_is_not_finite_is_a_gap():
    assert sparkline([0.0, float("nan"), 1.0]) == f"{BARS[0]} {BARS[-1]}"
    assert sparkline([float("nan")]) == " "
    assert "nan" in drawn(Board("x", 2, [report(0, entropy=float("nan"))]))


def test_durations_are_said_as_people_say_them():
    assert [duration(x) for x in (5, 65, 3700)] == ["5 s", "1 min 05 s", "1 h 01 min"]
