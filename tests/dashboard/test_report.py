"""A run's report: one file, which holds what the server would answer."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from esper.cli.report import write_report
from esper.dashboard.report import MOST_EXAMPLES, RUN, Story, answers, html
from esper.dashboard.views import exams_view
from esper.leyline.errors import FileError
from esper.leyline.reports import Anomaly
from esper.telemetry import RunFolder
from esper.telemetry.lock import locked
from telemetry_toys import arm, exam, life, report, small_run
from ui_toys import Asker

NOTHING = Story(name="x", config={}, environment={}, reports=[], exams=[], lives=[])
NAME = "a <b>bold run"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> RunFolder:
    return RunFolder.open(small_run(tmp_path_factory.getbasetemp(), tmp_path_factory.mktemp("runs") / NAME))


class Page(HTMLParser):
    """Which tags are open, what the page is called, where it points to, and the data in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []
        self.title = self.data = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.open += [tag] if tag != "meta" else []
        self.sources += [value or "" for name, value in attrs if name in ("src", "href", "action")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "title":
            self.title += data
        if self.open and self.open[-1] == "script" and data.startswith('{"paths":'):
            self.data += data

    @property
    def paths(self):
        return json.loads(self.data)["paths"]


def test_the_page_is_whole_and_needs_nothing_else(folder):
    text = write_report(folder).read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == page.sources == []
    assert page.title == NAME
    assert "<b>bold" not in text, "names are text, not tags"
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg|github\.com/leeoniya/uPlot)", text)


def test_a_report_holds_what_the_server_would_answer(folder):
    held = Page(write_report(folder).read_text(encoding="utf-8")).paths
    ask = Asker(folder.path.parent)
    (row,) = ask.listed()
    assert held["/api/words"] == ask("/api/words").json
    for path, found in held.items():
        if path.startswith(f"{RUN}/"):
            assert found == ask(path.replace(RUN, f"/api/runs/{row['id']}")).json, path
    detail = ask(f"/api/runs/{row['id']}").json
    assert held[RUN] == detail | {"id": "report", "views": ["run"], "resume": None}
    assert len([path for path in held if path.startswith(f"{RUN}/lives/")]) == 2, "both hosts of the exam"


def test_a_report_says_what_the_run_is_doing(folder, tmp_path):
    path = tmp_path / "run"
    small_run(tmp_path.parent, path)
    run = RunFolder.open(path)

    def state() -> str:
        return Page(write_report(run).read_text(encoding="utf-8")).paths[RUN]["state"]

    assert state() == "done"
    run.controller_path.unlink()
    assert state() == "stopped"
    with locked(path / ".lock", path):
        assert state() == "running"


def test_a_run_that_has_hardly_begun_can_be_told():
    assert Page(html(NOTHING)).paths[f"{RUN}/curves?points=600"]["updates"] == 0
    begun = replace(NOTHING, reports=[report(0, objective=None, score=None, growth=None)])
    assert Page(html(begun)).paths[f"{RUN}/curves?points=600"]["x"] == [0]


def test_an_exam_can_be_told_without_its_training():
    told = answers(replace(NOTHING, exams=[exam(arm("learned"), arm("never", 0.1, 0.05, 0.2))]))
    assert told[f"{RUN}/exams"] == exams_view([exam(arm("learned"), arm("never", 0.1, 0.05, 0.2))])
    assert "0 updates" not in told[RUN]["sentence"]


def test_an_exams_lives_are_its_own():
    """Not those of another task, kind of host or policy."""
    own = life("WAIT")
    never = replace(own, arm="never", epochs=(replace(own.epochs[0], score=0.25),))
    others = [replace(own, task="elsewhere"), replace(own, kind="cnn1d 4"), replace(own, arm="random"), never]
    story = replace(NOTHING, exams=[exam(arm("learned"))], lives=[*others, own])
    assert story.lives_of(exam(), "learned") == [4]
    told = answers(story)
    assert f"{RUN}/lives/4" in told
    assert f"{RUN}/lives/3" not in told
    assert told[f"{RUN}/lives/4"]["never"] == [0.25], "an equal host that never grew"
    assert len(told[f"{RUN}/lives"]["lives"]) == 5


def test_a_report_of_many_exams_stays_small():
    exams = [replace(exam(arm("learned")), task=f"task {i}") for i in range(9)]
    lives = [replace(life("WAIT"), task=f"task {i}", host=host) for i in range(9) for host in range(5)]
    told = answers(replace(NOTHING, exams=exams, lives=lives))
    examples = [path for path in told if path.startswith(f"{RUN}/lives/")]
    assert len(examples) == MOST_EXAMPLES


def test_anomalies_are_told():
    anomaly = Anomaly(3, "value collapse", "critic", "it expects <nothing>", "lower lr")
    again = replace(NOTHING, reports=[report(n, anomalies=(replace(anomaly, update=n),)) for n in (3, 4, 9)])
    (found,) = answers(again)[f"{RUN}/curves?points=600"]["anomalies"]
    assert (found["kind"], found["count"], found["updates"]) == ("value collapse", 3, [3, 4, 9]), "once, with a count"
    assert "it expects <nothing>" not in html(again)
    assert r"it expects \u003cnothing>" in html(again)


def test_a_report_of_numbers_that_are_not_finite_can_be_read():
    text = html(replace(NOTHING, reports=[report(0, objective=float("nan"), value_loss=float("inf"))]))
    assert Page(text).paths[f"{RUN}/curves?points=600"]["columns"]["value_loss"] == [None]


def test_a_damaged_log_is_named(folder, tmp_path):
    path = small_run(tmp_path.parent, tmp_path / "run")
    (path / "reports.jsonl").write_text("{}\n")
    with pytest.raises(FileError, match=r"reports\.jsonl is damaged"):
        write_report(RunFolder.open(path))


def test_a_performance_profile_is_the_share_of_hosts_above_each_threshold():
    """As rliable defines it: the fraction of runs whose score exceeds tau."""
    one = replace(arm("x"), scores=(0.2, 0.4, 0.4, 0.9))
    assert [one.above(tau) for tau in (0.0, 0.2, 0.3, 0.4, 0.9)] == [1.0, 0.75, 0.75, 0.25, 0.0]


def test_a_loss_needs_less_proof_than_a_win():
    def found(chance: float, *vs: float) -> str:
        return replace(arm("x", *vs), p_value=chance).verdict

    assert found(0.01, 0.1, 0.05, 0.15) == "better"
    assert found(0.2, 0.1, 0.05, 0.15) == "level", "one of many arms may be above by chance"
    assert found(0.2, -0.1, -0.15, -0.05) == "worse"
    assert found(0.01, 0.1, -0.05, 0.25) == found(0.2, -0.1, -0.25, 0.05) == "level"
