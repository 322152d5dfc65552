"""The picture and the page of a growth: what they say of chains, seeds, trials and runs cut short."""

import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

from conftest_growth import GPT, ResNet
from esper.dashboard.growth import GrowthStory, Mark, Point, _mark, growth_html, labels, summary
from esper.dashboard.style import short
from esper.growth import Doubling, Growth, grow, resume
from esper.growth.reports import story_of
from esper.leyline.errors import EsperError, FileError

MARKS = (
    Mark("attach", 0, 0.0, 0, 3_600_000, 2, None, ""),
    Mark("deepen", 900, 0.12, 1 * 10**15, 7_000_000, 4, 2.0, "h: 2 to 4 blocks"),
    Mark("blended", 990, 0.2, 15 * 10**14, 7_000_000, 4, 1.9, "h"),
    Mark("deepen", 2000, 0.36, 3 * 10**15, 13_900_000, 8, 1.5, "h: 4 to 8 blocks"),
    Mark("finish", 4237, 1.0, 83 * 10**14, 13_900_000, 8, 0.9, ""),
)
STORY = GrowthStory(
    name="GPT",
    steps=4237,
    spent=8.3e15,
    budget=8.3e15,
    is_over=True,
    parameters=(3_600_000, 13_900_000),
    blocks=(2, 8),
    points=[Point(10**12, 3_600_000, 5.553, None), Point(83 * 10**14, 13_900_000, 0.8604, 0.9)],
    marks=MARKS,
    options={"policy": "Doubling", "total": 9000},
)


class Page(HTMLParser):
    """The elements of a page, its visible text, and what it holds twice or fetches."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self.fetched: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(text)
        assert self.open == [], "every element is closed"

    def handle_starttag(self, tag, attrs):
        if tag != "meta":
            self.open.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag != "meta":
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "table" in self.open:
            self.rows[-1][-1] += data
        if data.strip() and "body" in self.open:
            self.texts.append((self.open[-1], data))

    def of(self, tag: str) -> list[str]:
        return [text for where, text in self.texts if where == tag]


def tokens(step: int) -> Tensor:
    """Sequences whose next token follows from the last two."""
    g = torch.Generator().manual_seed(step)
    x = list(torch.randint(32, (2, 4), generator=g))
    for _ in range(6):
        x.append((3 * x[-1] + x[-2] + 1) % 32)
    return torch.stack(x, 1)


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())


def train(growth: Growth, steps: int = 10_000, losses: bool = True, spoiled: int | None = None) -> Growth:
    for _ in range(steps):
        if growth.done:
            break
        loss = loss_of(growth.model, tokens(growth.steps))
        loss.backward()
        growth.optimizer.step()
        growth.optimizer.zero_grad()
        growth.step((100 * loss if growth.steps + 1 == spoiled else loss) if losses else None)
    return growth


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), 1e-2)


def made(total: int = 80, **options: Any) -> Growth:
    torch.manual_seed(0)
    model = GPT(2)
    return grow(model, adamw(model), total=total, **options)


def written(growth: Growth, folder: Path) -> tuple[str, Page]:
    growth.report_html(folder / "page.html")
    text = (folder / "page.html").read_text(encoding="utf-8")
    growth.plot(folder / "picture.png")
    assert (folder / "picture.png").read_bytes().startswith(b"\x89PNG")
    return text, Page(text)


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> tuple[Growth, str, Page]:
    """A run of two births, and its page."""
    growth = train(made())
    return growth, *written(growth, tmp_path_factory.mktemp("told"))


# One sentence.


def test_one_sentence_says_what_happened():
    assert summary(STORY) == (
        "Grew from 2 to 8 blocks (3.6 M to 13.9 M parameters) in 4,237 steps; loss 5.55 to 0.86;"
        " 8.3 PFLOP spent of 8.3."
    )


def happened(*kinds: str) -> list[Mark]:
    return [replace(MARKS[1], kind=kind) for kind in kinds]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"blocks": (2, 2), "parameters": (4960, 4960)}, "Stayed at 2 blocks (4,960 parameters) in 4,237 steps;"),
        ({"blocks": (0, 0)}, "Did not grow (3.6 M to 13.9 M parameters)"),
        ({"is_over": False, "steps": 1, "spent": 2e12}, "in 1 step so far; loss 5.55 to 0.86; 2 TFLOP spent of 8.3 P"),
        ({"points": STORY.points[:1]}, "; loss 5.55; 8.3"),
        ({"points": []}, " steps; 8.3 PFLOP spent"),
        ({"points": [*STORY.points, Point(83 * 10**14, 5, float("nan"), None)]}, "loss 5.55 to 0.86;"),
        ({"marks": happened("deepen", "rollback")}, "; 1 birth rolled back; 8.3"),
        ({"marks": happened("undo", "discard", "undo")}, "; 2 changes undone; 1 trial discarded;"),
        ({"marks": happened("plant", "plant", "prune"), "blocks": (2, 2)}, "Planted 2 seeds and pruned 1 (3.6"),
        ({"marks": happened("plant")}, "Grew from 2 to 8 blocks, planted 1 seed (3.6"),
        ({"steps": 0, "budget": None, "parameters": (4960, 4960)}, "Has not been trained yet (4,960 parameters)."),
    ],
)
def test_the_sentence_fits_every_kind_of_run(change, said):
    assert said in summary(replace(STORY, **change))


@pytest.mark.parametrize(("count", "said"), [(999, "999"), (999_999, "1 M"), (13_940_000, "13.9 M"), (8.3e15, "8.3 P")])
def test_large_counts_are_short(count, said):
    assert short(count) == said


# Labels.


def test_chains_that_are_deepened_at_one_step_share_one_label():
    model = ResNet(2)
    growth = grow(model, adamw(model), total=30, policy=lambda g: None, example=torch.zeros(4, 3, 8, 8))
    assert growth.deepen()
    assert [event.kind for event in growth.log] == ["attach", "deepen", "deepen"]
    assert [text for _, text, _ in labels(story_of(growth))] == ["4 → 8 blocks"]


def test_a_label_names_the_seed_or_counts_several():
    def text(*kinds: str) -> list[str]:
        marks = [replace(MARKS[1], kind=kind, detail="stage.fc1: low_rank") for kind in kinds]
        return [label for _, label, _ in labels(replace(STORY, marks=marks))]

    assert text("plant") == ["plant low_rank"]
    assert text("plant", "plant", "rollback") == ["plant 2 seeds, rollback"]
    assert text("attach", "blended", "finish") == []


@pytest.mark.parametrize("width", [8.0, 4.4])
def test_labels_never_overlap_and_stay_in_the_picture(width):
    at = [0.0, 0.01, 0.02, 0.5, 0.5, 0.52, 0.9, 0.99, 0.995, 1.0]
    marks = [replace(MARKS[1], step=i, flops=round(x * 8.3e15)) for i, x in enumerate(at)]
    story = replace(STORY, marks=marks)
    figure = Figure(figsize=(width, 3), layout="constrained")
    ax = figure.subplots()
    ax.set_xlim(0, story.spent)
    _mark(figure, [ax], story)
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in ax.texts if text.get_text()]
    assert len(boxes) == len(at)
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
    assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1 for box in boxes)


def test_labels_that_find_no_place_are_left_out():
    story = replace(STORY, marks=[replace(MARKS[1], step=i) for i in range(30)])
    figure = Figure(figsize=(8, 3), layout="constrained")
    _mark(figure, [figure.subplots()], story)
    texts = [text for text in figure.axes[0].texts if text.get_text()]
    assert 0 < len(texts) < 10
    assert len(figure.axes[0].lines) == 30


# The curve of parameters.


def test_the_curve_of_parameters_ends_with_a_change_between_two_steps():
    growth = train(made(policy=lambda g: None), 3)
    growth.deepen()
    sizes = story_of(growth).sizes
    assert sizes[0] == (0.0, growth.num_initial)
    assert sizes[-1] == (growth.spent, growth.num_parameters)
    assert sizes[-2] == sizes[-1], "the event comes behind the measurement of its step"
    assert [x for x, _ in sizes] == sorted(x for x, _ in sizes)


# The page.


def test_a_run_with_two_births_is_told_from_its_first_to_its_last_step(tmp_path):
    growth = train(made(evaluate=lambda: 3.0))
    growth.finish()
    text, page = written(growth, tmp_path)
    assert page.texts[0][0] == "h1"
    assert page.texts[0][1] == summary(story_of(growth))
    assert page.texts[0][1].startswith("Grew from 2 to 8 blocks (4,960 to 18.3 k parameters) in ")
    for words in ("2 → 4 blocks", "4 → 8 blocks", "compute spent, MFLOP", "parameters", "validation"):
        assert page.of("text").count(words) == 2, f"{words}: in the picture for wide and for narrow screens"
    head, first, *_, last = page.rows
    assert head == ["step", "compute", "what", "loss", "parameters"]
    assert first == ["0", "0%", "attach", "", "4,960"]
    assert last[:3] == [f"{growth.steps}", "100%", "finish"]
    assert [row[2] for row in page.rows[2:-1]] == [
        "deepen blocks: 2 to 4 blocks",
        "blended blocks",
        "deepen blocks: 4 to 8 blocks",
        "blended blocks",
    ]
    (options,) = page.of("pre")
    assert '"policy": "Doubling"' in options
    assert '"total": 80' in options
    assert "<details>" in text


def test_the_page_needs_nothing_else_and_is_the_same_when_written_again(told, tmp_path):
    growth, text, page = told
    assert not re.search(r"https?://|@import|<script|<link|url\((?!#)", text)
    assert all(source.startswith("#") for source in page.fetched)
    assert {source[1:] for source in page.fetched} <= set(page.ids)
    assert set(re.findall(r"url\(#([^)]*)\)", text)) <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert written(growth, tmp_path)[0] == text


def test_every_color_follows_the_mode_of_the_reader(told):
    _, text, _ = told
    pictures = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(pictures) == 2
    for picture in pictures:
        assert not re.findall(r"(?:fill|stroke): #[0-9a-f]{3,6}", picture)
        assert set(re.findall(r"var\(--(\w+)\)", picture)) <= set(re.findall(r"--(\w+): #", text))
    light, dark = text.split("@media (prefers-color-scheme: dark)")
    assert set(re.findall(r"--(\w+): #", light)) == set(re.findall(r"--(\w+): #", dark))


def test_names_are_text_and_not_tags():
    page = Page(
        growth_html(replace(STORY, name="<b>", marks=[replace(MARKS[1], detail="<b>x: 2")], options={"a": "<b>"}))
    )
    assert "b" not in [tag for tag, _ in page.texts]
    assert page.rows[1][2] == "deepen <b>x: 2"


def test_a_rollback_is_told(tmp_path):
    growth = train(made(policy=Doubling((0.2,)), blend=8), spoiled=20)
    _, page = written(growth, tmp_path)
    assert "Stayed at 2 blocks (4,960 parameters)" in page.texts[0][1]
    assert "1 birth rolled back" in page.texts[0][1]
    assert page.of("text").count("rollback") == 2
    assert any(row[2].startswith("rollback loss") for row in page.rows)


def test_seeds_in_slots_are_told(tmp_path):
    growth = made(total=200, slots=[r"blocks\.\d\.down"], policy="heuristic", evaluate=lambda: 1.0)
    growth.evaluate = lambda: float(loss_of(growth.model, tokens(-1)))
    growth = train(growth)
    _, page = written(growth, tmp_path)
    planted = [event for event in growth.log if event.kind == "plant"]
    assert planted
    assert page.texts[0][1].startswith(f"Planted {len(planted)} seed")
    assert any(words.startswith("plant ") for words in page.of("text"))
    assert f"plant {planted[0].detail}" in [row[2] for row in page.rows]


def test_without_losses_parameters_alone_are_drawn(tmp_path):
    _, page = written(train(made(), losses=False), tmp_path)
    assert "loss" not in page.texts[0][1]
    assert "loss" not in "".join(page.of("text"))
    assert page.of("text").count("parameters") == 2
    assert page.of("figcaption")[0].startswith("Parameters against")


def test_a_metric_far_from_the_loss_has_an_axis_of_its_own():
    far = replace(STORY, points=[replace(p, metric=(p.loss or 0) + 1000) for p in STORY.points])
    assert {"training loss", "validation metric"} <= set(Page(growth_html(far)).of("text"))
    assert "validation metric" not in Page(growth_html(STORY)).of("text")


def test_runs_that_never_grew_never_stepped_or_go_on_are_told(tmp_path):
    for steps, said in {
        0: "Has not been trained",
        1: "in 1 step so far",
        9: "in 9 steps so far",
        99: "in 80 steps;",
    }.items():
        _, page = written(train(made(policy=lambda g: None), steps), tmp_path)
        assert said in page.texts[0][1]


def test_a_resumed_run_is_told_as_if_it_had_never_stopped(told, tmp_path):
    _, whole, _ = told
    first = train(made(), 30)
    first.save(tmp_path / "saved")
    torch.manual_seed(0)
    second = train(resume(GPT(2), adamw, tmp_path / "saved"))
    assert written(second, tmp_path)[0] == whole


# Errors.


def test_without_matplotlib_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    growth = made(policy=lambda g: None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for write in (growth.plot, growth.report_html):
        with pytest.raises(EsperError, match=re.escape("pip install 'esper-nn[plot]'")):
            write(tmp_path / "x.png")
    assert not list(tmp_path.iterdir())


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    growth = made(policy=lambda g: None)
    with pytest.raises(FileError, match=r"cannot write .*nowhere"):
        growth.plot(tmp_path / "nowhere" / "x.png")
    with pytest.raises(FileError, match=r"cannot write .*nowhere"):
        growth.report_html(tmp_path / "nowhere" / "x.html")
    with pytest.raises(EsperError, match=r"must end in \.png, \.svg or \.pdf, not in \.doc"):
        growth.plot(tmp_path / "x.doc")


# The points of the curves.


def test_every_evaluation_and_every_reported_metric_is_a_point_of_the_curves():
    torch.manual_seed(0)
    x = torch.randint(32, (2, 8))
    values = iter(range(1000))
    for evaluate in (None, lambda: float(next(values))):
        model = GPT(1)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        growth = grow(model, optimizer, total=900, policy=lambda g: None, evaluate=evaluate)
        reported = []
        while not growth.done:
            loss = F.cross_entropy(model(x).flatten(0, 1), x.flatten())
            loss.backward()
            optimizer.step()
            growth.step(loss)
            if evaluate is None and growth.steps % 100 == 50:
                growth.report(growth.steps)
                reported.append(float(growth.steps))
        seen = [point.metric for point in growth.history if point.metric is not None]
        assert seen == (reported if evaluate is None else [float(i) for i in range(25)])
        assert len(growth.history) < 450
