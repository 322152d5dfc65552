"""A run's report: everything in one file, win or lose."""

import re
from dataclasses import replace
from html import escape
from html.parser import HTMLParser

import pytest

from esper.cli.report import write_report
from esper.dashboard.pictures import _by_decision
from esper.dashboard.report import Story, draw, html, verdict
from esper.leyline.actions import Op
from esper.leyline.reports import Anomaly
from esper.telemetry import RunFolder
from telemetry_toys import arm, exam, life, report, small_run

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> RunFolder:
    copy = tmp_path_factory.mktemp("runs") / "a <b>bold</b> run"
    return RunFolder.open(small_run(tmp_path_factory.getbasetemp(), copy))


class Page(HTMLParser):
    """Which tags are open, which sections there are, and where sources point."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.titles: list[str] = []
        self.sources: list[str] = []
        self.links = 0
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "img"):
            self.open.append(tag)
        self.sources += [value or "" for name, value in attrs if name == "src"]
        self.links += tag in ("link", "script")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "h2":
            self.titles.append(data)


def test_the_page_is_whole_and_needs_nothing_else(folder):
    path = write_report(folder)
    assert path is not None
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert page.links == 0
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    assert not re.search(r"https?://", text)
    assert page.titles[:4] == ["Exam", "Learning", "Chosen ops", "Example episodes"]
    assert {"Heads", "Anomalies", "Contribution of seeds", "Recipe and environment"} <= set(page.titles)
    assert "<b>bold" not in text, "names are text, not tags"


def test_every_picture_is_a_file_too(folder):
    pictures = sorted((folder.path / "pictures").iterdir())
    assert {p.name for p in pictures} >= {
        "learning.png",
        "heads.png",
        "exam-0.png",
        "frontier-0.png",
        "profiles-0.png",
        "actions-0.png",
        "life-0-0.png",
    }
    assert all(p.read_bytes().startswith(PNG) for p in pictures)


def test_a_run_that_has_hardly_begun_can_be_told(tmp_path):
    nothing = Story(name="x", config={}, environment={}, reports=[], exams=[], lives=[])
    assert Page(html(nothing, draw(nothing, tmp_path))).open == []
    ops = {"WAIT": 3, "GERMINATE": 1}
    begun = replace(nothing, reports=[report(0, objective=None, score=None, growth=None, ops=ops, decisions=4)])
    assert Page(html(begun, draw(begun, tmp_path))).titles[0] == "Learning"


def test_an_exam_can_be_told_without_its_training(folder, tmp_path):
    told = Story(name="x", config={}, environment={}, reports=[], exams=folder.exams(), lives=[])
    page = html(told, draw(told, tmp_path))
    assert Page(page).titles[0] == "Exam"
    assert "0 updates" not in page


def test_an_exams_lives_are_its_own():
    """Not those of another task, kind of host or policy."""
    own = life("WAIT")
    others = [replace(own, task="elsewhere"), replace(own, kind="cnn1d 4"), replace(own, arm="never")]
    story = Story(name="x", config={}, environment={}, reports=[], exams=[exam()], lives=[*others, own])
    assert story.lives_of(exam(), "learned") == [own]


def test_shares_of_ops_are_of_the_lives_that_last_so_long():
    """Two lives plant first; one ends there, and the other waits."""
    shares = _by_decision([life("GERMINATE"), life("GERMINATE", "WAIT")])
    assert [shares[op] for op in (Op.GERMINATE, Op.WAIT)] == [[1, 0], [0, 1]]
    assert _by_decision([]) == []


def test_anomalies_are_told():
    anomaly = Anomaly(3, "value collapse", "critic", "it expects <nothing>", "lower lr")
    story = Story(name="x", config={}, environment={}, reports=[report(3, anomalies=(anomaly,))], exams=[], lives=[])
    assert "it expects &lt;nothing&gt;; lower lr" in html(story, [])
    again = replace(story, reports=[report(n, anomalies=(replace(anomaly, update=n),)) for n in (3, 4, 9)])
    assert html(again, []).count("value collapse") == html(again, []).count("3 (3 to 9)") == 1, "once, with a count"


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


def test_several_exams_are_seen_at_a_glance_and_told_one_by_one(folder):
    (held,) = folder.exams()
    other = replace(held, task="elsewhere", arms=(*held.arms, arm("rival", -0.2, -0.3, -0.1)))
    story = Story(name="x", config={}, environment={}, reports=[], exams=[held, other], lives=[])
    page = html(story, [])
    overview, rest = page.split("<h2>Exams</h2>")
    assert Page(page).open == []
    assert '<td class="loss" title="(-0.300 to -0.100)">-0.200</td>' in overview
    assert overview.count("<td></td>") == 1, "who sat only one of them"
    for told in (held, other):
        assert overview.count(escape(told.setting)) == rest.count(f"<h3>{escape(told.setting)}</h3>") == 1
        assert rest.count(escape(verdict(told))) == 1
    (alone, *_) = html(replace(story, exams=[held]), []).split("<h2>Exam</h2>")
    assert "<table>" not in alone, "one needs no overview"


def test_the_verdict_says_wins_losses_and_neither():
    arms = (
        arm("learned"),
        arm("never", 0.1, 0.05, 0.15),
        arm("random", 0.01, -0.1, 0.2),
        arm("best", -0.2, -0.3, -0.1),
    )
    said = verdict(exam(*arms))
    assert "beats never (+0.100)" in said
    assert "shows no difference from random (+0.010)" in said
    assert "loses to best (-0.200)" in said
    assert said.startswith("On 30 fresh hosts of digits")
