"""What a terminal shows of a run."""

import math
import re
from io import StringIO

import pytest
from rich.console import Console

from esper.leyline.errors import EsperError
from esper.leyline.reports import Anomaly, HeadReport
from esper.simic.anomalies import HEADS
from esper.telemetry.board import BARS, OP_COLORS, Board, duration, sparkline, thinned
from esper.telemetry.setting import setting_of
from telemetry_toys import report

FLEET = {"task": "mnist1d", "host": "cnn1d", "widths": [4, 4, 4], "hosts": 24}


def recipe(updates: int = 10, *, pretrain: tuple[dict, ...] = (), fleets: tuple[dict, ...] = (FLEET,)) -> dict:
    """A recipe as plain data, as it stands in a run folder."""
    return {"name": "x", "pretrain": list(pretrain), "fleets": list(fleets), "learn": {"updates": updates}}


def drawn(board: Board, width: int = 100) -> str:
    out = StringIO()
    Console(file=out, width=width, force_terminal=False).print(board)
    return out.getvalue()


def rows(board: Board, width: int = 80) -> dict[str, str]:
    """What stands behind each label."""
    inner = [line[2:-2] for line in drawn(board, width).splitlines()[1:-1]]
    return {line[:8].strip(): line[10:].strip() for line in inner if line[:8].strip()}


def test_before_the_first_update_it_says_so():
    assert "first update" in drawn(Board("runs/x", 10))


def test_it_shows_how_far_how_well_and_what_is_done():
    board = Board("runs/x", 10)
    ops = {"WAIT": 3000, "GERMINATE": 999, "ADVANCE": 1, "PRUNE": 0}
    for update in range(7):
        took = {"collect": 12.0, "learn": 8.0} if update >= 2 else {"collect": 100.0}
        board.hear(
            report(update, objective=0.5 + update / 10, ops=ops, seconds=took, occupancy=(0.25, 1.0), growth=1.5)
        )
    found = rows(board)
    assert "runs/x" in drawn(board)
    assert found["updates"].endswith("7 of 10")
    assert found["time"] == "5 min 00 s so far, 1 min 00 s to go", "three times what the last five took"
    assert found["J"] == "1.100, best 1.100"
    assert "0.500 to 1.100" in drawn(board)
    assert found["growth"].endswith("+150% parameters")
    assert "wait 75%  germinate 25%  advance <1%" in drawn(board)
    assert "prune" not in drawn(board)
    assert found["filled"] == "s0 ▃▃▃ 25%  s1 ███ 100%"


def test_j_is_compared_with_hosts_that_never_grow():
    board = Board("x", 10, [report(n, objective=j, growth=0.5) for n, j in enumerate((0.81, 0.885, 0.882))])
    assert rows(board)["J"] == "0.882, best 0.885"
    assert "never" not in drawn(board)
    board.start({"never": 0.805, "seconds": 0.0})
    assert rows(board)["J"] == "0.882, best 0.885; never grows: 0.805, +0.077"
    assert "never: the same hosts left alone" in drawn(board)
    assert board.line() == "update    2  J 0.8820  (never grows: +0.077)  growth  0.50  0.0 s"


def test_it_says_what_is_trained_where_and_for_how_long():
    setting = setting_of(recipe(), {"device": "cpu"})
    board = Board("x", 10, [report(0, seconds={"collect": 30.0})], setting=setting)
    board.start({"never": None, "seconds": 45.0})
    assert rows(board)["task"] == "mnist1d, cnn1d 4-4-4: 24 hosts at a time, on cpu"
    assert rows(board)["time"] == "1 min 15 s so far, 4 min 30 s to go", "the warm start is part of it"
    going_on = setting_of(recipe() | {"warm_start": {"run": "runs/before"}}, {})
    board = Board("x", 10, [report(0, seconds={"collect": 30.0})], setting=going_on)
    board.start({"never": None, "seconds": 4500.0})
    assert rows(board)["time"].startswith("30 s so far"), "and the run before it is not"


def test_every_stage_is_shown_for_itself():
    """Their hosts differ, and so J does."""
    first = recipe(2, fleets=(FLEET, FLEET | {"task": "spirals"}))
    setting = setting_of(recipe(3, pretrain=(first,)), {})
    assert setting.updates == 5
    board = Board("x", setting.updates, setting=setting)
    expected = ["0.900, best 0.900", "no episode has ended yet", "0.300, best 0.300", "0.200, best 0.300"]
    for update, j in enumerate((0.9, 0.8, 0.3, 0.2, 0.4)):
        board.hear(report(update, objective=j))
        if update == 0:
            assert rows(board)["task"] == "stage 1 of 2: 2 fleets, 48 hosts at a time: mnist1d, spirals"
        if update < 4:
            assert rows(board)["J"] == expected[update]
    assert rows(board)["task"] == "stage 2 of 2: mnist1d, cnn1d 4-4-4: 24 hosts at a time"
    assert rows(board)["J"] == "0.400, best 0.400"


def test_what_is_tried_is_the_seeds_that_are_planted_most():
    planted = {"norm": 2, "conv_heavy": 24, "mlp": 0, "attention": 6, "lora": 4, "shift": 4}
    board = Board("x", 10, [report(0, planted=planted, episodes=16)])
    assert rows(board)["planted"] == "40 seeds in 16 hosts:  conv_heavy 60%  attention 15%  lora 10%"
    assert "│           and 2 more  " in drawn(board), "broken between two of them"
    assert "planted" not in rows(Board("x", 10, [report(0, planted={}, episodes=16)])), "older runs do not say"
    assert "planted" not in rows(Board("x", 10, [report(0, planted=planted, episodes=0)]))


@pytest.mark.parametrize(
    "damage", [{}, {"fleets": 3}, {"fleets": [{}]}, {"learn": {}}, {"fleets": [FLEET | {"hosts": "many"}]}]
)
def test_a_damaged_recipe_is_said(damage):
    found = recipe() | damage if damage else {}
    with pytest.raises(EsperError, match=r"the recipe of the run is damaged: .* while reading its fleets and updates"):
        setting_of(found, {})


HEADED = (HeadReport("op", 40, 0.01, 0.2, 0.9, 0.8, 1.2, 0.5, 0.4), HeadReport("style", 0, *[None] * 5, 0.0, 0.0))


def test_heads_are_shown_on_request():
    quiet, board = (Board("x", 2, [report(0, heads=HEADED)], heads=heads) for heads in (False, True))
    assert not any(name in drawn(quiet) + quiet.line() for name in ("entropy", "style", "KL"))
    (op,) = [row for row in drawn(board).splitlines() if " op " in row]
    assert op.split()[2:-1] == ["40", "0.900", "0.010", "0.200", "0.80", "to", "1.20", "0.500"]
    (style,) = [row for row in drawn(board).splitlines() if " style " in row]
    assert style.split()[2:7] == ["0", "-", "-", "-", "-"]
    assert "entropy" in rows(board)
    said = [" ".join(line.split()) for line in board.line().splitlines()[1:]]
    assert said[0] == "op 40 entropy 0.900 KL 0.010 clipped 0.200 ratios 0.80 to 1.20 gradient 0.500"
    assert said[1] == "style 0 entropy - KL - clipped - ratios - gradient 0.000"


def test_anomalies_come_with_what_to_do():
    anomaly = Anomaly(0, "entropy collapse", "op", "it is certain", "raise entropy_coef")
    assert "raise entropy_coef" in drawn(Board("x", 2, [report(0, anomalies=(anomaly,))]))
    assert "raise entropy_coef" in Board("x", 2, [report(0, anomalies=(anomaly,))]).line()


def test_an_anomaly_is_told_once_and_counted():
    def anomalous(update: int, *places: str):
        found = (Anomaly(update, "entropy collapse", where, f"it is {update} % open", "do this") for where in places)
        return report(update, anomalies=tuple(found))

    board, lines = Board("x", 4), []
    for update, places in enumerate((["op"], ["op", "slot"], ["op"], [])):
        board.hear(anomalous(update, *places))
        lines.append(board.line().splitlines()[1:])
    assert lines == [
        ["  entropy collapse (op): it is 0 % open; do this"],
        ["  entropy collapse (slot): it is 1 % open; do this"],
        [],
        ["  entropy collapse (op) × 3, last at update 2"],
    ]
    text = " ".join(drawn(board).replace("│", "").split())
    assert (
        "warning: entropy collapse (slot), update 1: it is 1 % open; do this"
        " warning: entropy collapse (op) × 3, last at update 2: it is 2 % open; do this" in text
    )


def test_the_latest_anomalies_are_shown_and_the_others_counted():
    many = tuple(Anomaly(0, "starving head", head, "why", "what to do") for head in ("op", "slot", "style", "tempo"))
    text = drawn(Board("x", 2, [report(0, anomalies=many)]))
    assert text.count("what to do") == 3
    assert "and 1 more: `esper report` lists all warnings" in text


BUSY = {
    "objective": 0.5636,
    "growth": 3.2,
    "ops": dict.fromkeys(OP_COLORS, 1_000),
    "occupancy": (0.25, 1.0, 0.5, 0.0, 0.75, 1.0, 0.1, 0.33),
    "planted": {"conv_heavy": 300, "depthwise": 200, "bottleneck": 100, "attention": 1},
    "episodes": 100,
    "seconds": {"collect": 2_000.0, "learn": 1_500.0},
    "heads": tuple(HeadReport(name, 123_456, 0.0123, 0.25, 0.9, 0.1, 12.34, 48.9064, 0.5) for name in HEADS),
    "anomalies": (Anomaly(0, "entropy collapse", "alpha_target", "it explored before " * 5, "raise entropy_coef"),),
}


@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize("width", [60, 80, 120])
def test_it_fits_a_terminal_of_80_columns(width, heads):
    tasks = [FLEET | {"task": f"task{n}"} for n in range(30)]
    setting = setting_of(recipe(1_000, fleets=tuple(tasks)), {"device": "NVIDIA H200"})
    many = [report(n, **BUSY) for n in range(60)]
    board = Board("runs/" + "long-name-" * 12, 1_000, many, setting=setting, heads=heads)
    board.start({"never": 0.5, "seconds": 1e5})
    text = drawn(board, width)
    lines = text.splitlines()
    assert {len(line) for line in lines} == {min(width, 80)}
    assert all(line[0] + line[-1] in ("╭╮", "││", "╰╯") for line in lines)
    assert not re.search(r"[A-Za-z]…", text), "no word is cut"
    assert text.startswith("╭─ …") == text.count("…") == 1, "only the title is cut, at its beginning"
    found = rows(board, width)
    assert found["updates"].endswith("60 of 1000")
    assert found["time"] == "86 h 06 min so far, 913 h 53 min to go"
    assert found["J"] == "0.564, best 0.564; never grows: 0.500, +0.064"
    assert found["growth"].endswith("+320% parameters")
    wrapped = " ".join(" ".join(line[1:-1].split()) for line in lines)
    for whole in ("s7 ▃▃▃ 33%", "set alpha target 17%", "conv_heavy 50%", "601 seeds in 100 hosts:"):
        assert any(whole in line for line in lines), whole
    assert "task29" in wrapped
    if heads:
        (row,) = [line for line in lines if "alpha target" in line and "123,456" in line]
        shown = ["123,456", "0.900", "0.012", "0.250", "0.10", "to", "12.34", "48.906", "│"]
        assert row.split()[3:] == (shown if width >= 80 else [*shown[:3], "│"])


def test_curves_show_the_whole_run():
    """Not only as many updates as there are characters."""
    board = Board("x", 1_000, [report(n, objective=float(n >= 500), growth=0.1) for n in range(1_000)])
    (curve,) = [line for line in drawn(board).splitlines() if "0.000 to 1.000" in line]
    assert curve.split()[1] == "▁" * 15 + "█" * 15


def test_a_thinned_curve_keeps_its_mean():
    assert thinned([1.0, 3.0, 5.0, 7.0], 2) == [2.0, 6.0]
    assert thinned([1.0, 2.0, 6.0], 8) == [1.0, 2.0, 6.0]
    assert thinned([], 8) == []
    gaps = thinned([math.nan, 3.0, math.nan, math.nan], 2)
    assert gaps[0] == 3.0
    assert math.isnan(gaps[1])
    assert len(thinned([0.5] * 1001, 30)) == 30


def test_text_of_users_is_never_markup():
    name = "runs/[bold]x[/] [link=nowhere]"
    odd = Anomaly(0, "[red]kind", "[/]", "[blink]", "[/nothing]")
    for reports in ([], [report(0, anomalies=(odd,))]):
        assert name in drawn(Board(name, 2, reports))
    assert "[red]kind ([/]), update 0: [blink]; [/nothing]" in drawn(Board(name, 2, [report(0, anomalies=(odd,))]))
    assert "[red]kind ([/]): [blink]; [/nothing]" in Board(name, 2, [report(0, anomalies=(odd,))]).line()
    fleet = FLEET | {"task": "[bold]task[/]", "host": "[link]"}
    setting = setting_of(recipe(fleets=(fleet,)), {"device": "[red]"})
    board = Board(name, 2, [report(0, planted={"[/]": 4})], setting=setting)
    assert rows(board, 90)["task"] == "[bold]task[/], [link] 4-4-4: 24 hosts at a time, on [red]"
    assert rows(board)["planted"].endswith("[/] 100%")


def test_nothing_known_is_no_number():
    board = Board("x", 2, [report(0, objective=None, growth=None)])
    board.start({"never": 0.5, "seconds": 0.0})
    assert board.line() == "update    0  J    -    0.0 s"
    assert "no episode has ended yet" in drawn(Board("x", 2, [report(0, objective=None)]))


def test_sparklines_go_from_the_lowest_to_the_highest_of_the_newest():
    assert [sparkline(values, 4) for values in ([1.0], [2.0, 2.0], [0.0, 1.0])] == ["▁", "▁▁", "▁█"]
    assert sparkline([99.0, 0.0, 8.0, 4.0, 2.0], 4) == "▁█▅▃"


def test_what_is_not_finite_is_a_gap():
    assert sparkline([0.0, float("nan"), 1.0]) == f"{BARS[0]} {BARS[-1]}"
    assert sparkline([float("nan")]) == " "
    odd = report(0, entropy=float("nan"), objective=float("nan"))
    assert "not a number" in drawn(Board("x", 2, [odd], heads=True))
    assert "no episode has ended yet" in drawn(Board("x", 2, [odd]))


def test_durations_are_said_as_people_say_them():
    assert [duration(x) for x in (5, 65, 3700)] == ["5 s", "1 min 05 s", "1 h 01 min"]
