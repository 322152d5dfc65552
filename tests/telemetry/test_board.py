"""What a terminal shows of a run."""

from io import StringIO

import pytest
from rich.console import Console

from esper.leyline.reports import Anomaly, HeadReport
from esper.simic.anomalies import HEADS
from esper.telemetry.board import BARS, OP_COLORS, Board, duration, sparkline
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
    assert "7 of 10, 1 min 00 s left" in text, "three times what the last five took"
    assert "1.1000  (first 0.5000)" in text
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
    assert "raise entropy_coef" in Board("x", 2, [report(0, anomalies=(anomaly,))]).line().plain


def test_an_anomaly_is_told_once_and_counted():
    def anomalous(update: int, *places: str):
        found = (Anomaly(update, "entropy collapse", where, f"it is {update} % open", "do this") for where in places)
        return report(update, anomalies=tuple(found))

    board, lines = Board("x", 4), []
    for update, places in enumerate((["op"], ["op", "slot"], ["op"], [])):
        board.hear(anomalous(update, *places))
        lines.append(board.line().plain.splitlines()[1:])
    assert lines == [
        ["  entropy collapse (op): it is 0 % open; do this"],
        ["  entropy collapse (slot): it is 1 % open; do this"],
        [],
        ["  entropy collapse (op), 3 updates so far"],
    ]
    text = " ".join(drawn(board).replace("│", "").split())
    assert text.endswith(
        "entropy collapse (slot), update 1: it is 1 % open; do this"
        " entropy collapse (op), 3 updates so far: it is 2 % open; do this"
        f" ╰{'─' * 78}╯"
    )


def test_the_latest_anomalies_are_shown_and_the_others_counted():
    many = tuple(Anomaly(0, "starving head", head, "why", "what to do") for head in ("op", "slot", "style", "tempo"))
    text = drawn(Board("x", 2, [report(0, anomalies=many)]))
    assert text.count("what to do") == 3
    assert "and 1 more anomalies" in text


BUSY = {
    "objective": 0.5636,
    "growth": 3.2,
    "ops": dict.fromkeys(OP_COLORS, 1_000),
    "occupancy": (0.25, 1.0, 0.5, 0.0, 0.75, 1.0, 0.1, 0.33),
    "seconds": {"collect": 2_000.0, "learn": 1_500.0},
    "heads": tuple(HeadReport(name, 123_456, 0.0123, 0.25, 0.9, 0.1, 12.34, 48.9064, 0.5) for name in HEADS),
    "anomalies": (Anomaly(0, "entropy collapse", "alpha_target", "it explored before " * 5, "raise entropy_coef"),),
}


@pytest.mark.parametrize("width", [60, 80, 120])
def test_it_fits_a_terminal_of_80_columns(width):
    text = drawn(Board("runs/" + "long-name-" * 12, 1_000, [report(n, **BUSY) for n in range(60)]), width)
    assert max(map(len, text.splitlines())) == min(width, 80)
    if width >= 80:
        assert text.startswith("╭─ …") == text.count("…") == 1, "only the title is cut, at its beginning"
        assert "60 of 1000, 913 h 53 min left" in text
        (row,) = [row for row in text.splitlines() if "alpha target" in row and "123,456" in row]
        assert row.split()[3:] == ["123,456", "0.900", "0.012", "0.250", "0.10", "to", "12.34", "48.906", "│"]


def test_text_of_users_is_never_markup():
    name = "runs/[bold]x[/] [link=nowhere]"
    odd = Anomaly(0, "[red]kind", "[/]", "[blink]", "[/nothing]")
    for reports in ([], [report(0, anomalies=(odd,))]):
        assert name in drawn(Board(name, 2, reports))
    assert "[red]kind ([/]), update 0: [blink]; [/nothing]" in drawn(Board(name, 2, [report(0, anomalies=(odd,))]))
    out = StringIO()
    Console(file=out, width=80).print(Board(name, 2, [report(0, anomalies=(odd,))]).line())
    assert "[red]kind ([/]): [blink]; [/nothing]" in out.getvalue()


def test_nothing_known_is_no_number():
    assert "J    -" in Board("x", 2, [report(0, objective=None, growth=None)]).line().plain
    assert "no episode has ended yet" in drawn(Board("x", 2, [report(0, objective=None)]))


def test_sparklines_go_from_the_lowest_to_the_highest_of_the_newest():
    assert [sparkline(values, 4) for values in ([1.0], [2.0, 2.0], [0.0, 1.0])] == ["▁", "▁▁", "▁█"]
    assert sparkline([99.0, 0.0, 8.0, 4.0, 2.0], 4) == "▁█▅▃"


def test_what_is_not_finite_is_a_gap():
    assert sparkline([0.0, float("nan"), 1.0]) == f"{BARS[0]} {BARS[-1]}"
    assert sparkline([float("nan")]) == " "
    assert "nan" in drawn(Board("x", 2, [report(0, entropy=float("nan"))]))


def test_durations_are_said_as_people_say_them():
    assert [duration(x) for x in (5, 65, 3700)] == ["5 s", "1 min 05 s", "1 h 01 min"]
