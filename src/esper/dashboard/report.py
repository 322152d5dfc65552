"""Write the report of a run: one HTML file with its figures embedded."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from esper.dashboard.exam_text import about, cells, headings
from esper.dashboard.life import draw_life
from esper.dashboard.page import details, page, section
from esper.dashboard.pictures import (
    draw_actions,
    draw_contributions,
    draw_exam,
    draw_frontier,
    draw_heads,
    draw_learning,
    draw_profiles,
)
from esper.dashboard.style import spoken
from esper.exam.records import ArmReport, ExamReport, Life
from esper.leyline.reports import Anomaly, UpdateReport

EXAMPLES = 3
"""Number of hosts whose episodes are drawn."""
COLUMNS = ("metric", "IQM", "IQM lies in", "growth", "parameters", "FLOPs", "time", "epochs", "lr", "J", "ahead")
COLUMNS += ("P(better)", "p", "in score")
COLORS = {"better": "win", "worse": "loss", "level": ""}


@dataclass(frozen=True, kw_only=True)
class Story:
    """Contents of a report."""

    name: str
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    reports: Sequence[UpdateReport]
    exams: Sequence[ExamReport]
    lives: Sequence[Life]

    def lives_of(self, exam: ExamReport, arm: str) -> list[Life]:
        """Return the recorded episodes of one policy in one exam."""
        return [life for life in self.lives if (life.task, life.kind, life.arm) == (exam.task, exam.host, arm)]


@dataclass(frozen=True)
class Picture:
    """Image file of a report, with its section and caption."""

    section: str
    caption: str
    path: Path


def draw(story: Story, folder: Path) -> list[Picture]:
    """Draw all figures of a report as PNG files into `folder`."""
    pictures: list[Picture] = []

    def add(section: str, name: str, caption: str) -> Path:
        pictures.append(Picture(section, caption, folder / f"{name}.png"))
        return folder / f"{name}.png"

    if story.reports:
        draw_learning(story.reports, add("learning", "learning", "Learning curves of the controller."))
        draw_heads(story.reports, add("heads", "heads", "Health of each head. White: no decision used it."))
    for number, exam in enumerate(story.exams):
        own = story.lives_of(exam, exam.policy)
        draw_exam(exam, add(f"exam {number}", f"exam-{number}", ""))
        draw_frontier(exam, add(f"exam {number}", f"frontier-{number}", "Score against size and cost."))
        caption = "Performance profiles: the further to the right, the better."
        draw_profiles(exam, add(f"exam {number}", f"profiles-{number}", caption))
        caption = f"Seeds at the end of {len(own)} episodes on {exam.task} ({exam.host})."
        draw_contributions(own, add("seeds", f"seeds-{number}", caption))
        caption = f"Ops chosen on {exam.task} ({exam.host}), in percent of decisions."
        if story.reports or own:
            draw_actions(story.reports, own, add("actions", f"actions-{number}", caption))
        for life in own[:EXAMPLES]:
            twin = next((t.epochs for t in story.lives_of(exam, "never") if t.host == life.host), ())
            caption = f"Host {life.host} on {exam.task} ({exam.host}), and a copy that never grew."
            path = add("lives", f"life-{number}-{life.host}", caption)
            draw_life(life.epochs, path, twin=twin, metric=exam.metric)
    if story.reports and not story.exams:
        caption = "Ops chosen, in percent of decisions."
        draw_actions(story.reports, [], add("actions", "actions", caption))
    return pictures


def html(story: Story, pictures: Sequence[Picture]) -> str:
    """Return the report as one HTML page that needs no other file."""

    def shown(name: str) -> str:
        return "".join(_figure(p) for p in pictures if p.section == name)

    setup = details("Recipe", story.config) + details("Environment", story.environment)
    exams = "".join(_exam(exam) + shown(f"exam {number}") for number, exam in enumerate(story.exams))
    parts = [
        f"<h1>{escape(story.name)}</h1>",
        f'<p class="quiet">{escape(_summary(story))}</p>',
        _overview(story.exams) if len(story.exams) > 1 else "",
        section("Exams" if len(story.exams) > 1 else "Exam", exams),
        section("Learning", shown("learning")),
        section("Chosen ops", shown("actions")),
        section("Example episodes", shown("lives")),
        section("Contribution of seeds", shown("seeds")),
        section("Heads", shown("heads")),
        section("Anomalies", _anomalies(story.reports)),
        section("Recipe and environment", setup),
    ]
    return page(story.name, parts)


def verdict(exam: ExamReport) -> str:
    """Summarize an exam in one sentence, wins and losses alike."""
    words = {"better": "beats", "level": "shows no difference from", "worse": "loses to"}
    arms: dict[str, list[str]] = {how: [] for how in words}
    for arm in exam.arms:
        if arm.difference is not None:
            arms[arm.verdict].append(f"{arm.name} ({arm.difference.mean:+.3f})")
    clauses = [f"{words[how]} {', '.join(names)}" for how, names in arms.items() if names]
    return f"On {exam.hosts} fresh hosts of {exam.task}, by J, the controller {'; it '.join(clauses)}."


def _summary(story: Story) -> str:
    recipe, updates = story.config.get("name", ""), len(story.reports)
    decisions = sum(r.decisions for r in story.reports)
    minutes = sum(sum(r.seconds.values()) for r in story.reports) / 60
    where = f"{story.environment.get('device', '')}, torch {story.environment.get('torch', '')}"
    if not story.reports:
        return f"Recipe {recipe}, on {where}."
    return f"Recipe {recipe}: {updates} updates, {decisions:,} decisions, {minutes:.1f} minutes of training on {where}."


def _figure(picture: Picture) -> str:
    data = base64.b64encode(picture.path.read_bytes()).decode()
    caption = f'<figcaption class="quiet">{escape(picture.caption)}</figcaption>' if picture.caption else ""
    return f'<figure><img alt="{escape(picture.caption)}" src="data:image/png;base64,{data}">{caption}</figure>\n'


def _overview(exams: Sequence[ExamReport]) -> str:
    """Return one table of all exams: the policy's lead in J over each arm."""
    names = list(dict.fromkeys(arm.name for exam in exams for arm in exam.arms if arm.difference is not None))
    head = "".join(f'<th class="turn">{escape(name)}</th>' for name in ("setting", "J", *names))
    rows = []
    for exam in exams:
        arms = exam.by_name
        leads = "".join(_lead(arms[name]) if name in arms else "<td></td>" for name in names)
        own = f'<td class="text">{escape(exam.setting)}</td><td>{cells(arms[exam.policy])["J"]}</td>'
        rows.append(f"<tr>{own}{leads}</tr>")
    said = (
        f"Lead in J of {exams[0].policy} over each other policy. Green: better; brown: worse; else no difference shown."
        " Hover over a number for its interval."
    )
    table = f"<table><tr>{head}</tr>{''.join(rows)}</table>"
    return f'<div class="wide">{table}</div><p class="quiet">{escape(said)}</p>'


def _lead(arm: ArmReport) -> str:
    mean, _, interval = cells(arm)["ahead"].partition(" ")
    return f'<td class="{COLORS[arm.verdict]}" title="{escape(interval)}">{mean}</td>'


def _exam(exam: ExamReport) -> str:
    small = (
        f"{exam.hosts} fresh hosts for every policy; episodes of {exam.episode} epochs; {exam.data} data;"
        f" J = score − {exam.rent:g} ln(1 + growth). {about(exam)}"
    )
    head = "".join(f"<th>{escape(name)}</th>" for name in ("policy", *headings(exam, COLUMNS)))
    table = f"<table><tr>{head}</tr>{''.join(map(_row, exam.arms))}</table>"
    said = f'<h3>{escape(exam.setting)}</h3><p class="verdict">{escape(verdict(exam))}</p>'
    return f'{said}<p class="quiet">{escape(small)}</p><div class="wide">{table}</div>'


def _row(arm: ArmReport) -> str:
    told = cells(arm)
    row = "".join(
        f'<td class="{COLORS[arm.verdict] if column == "ahead" else ""}">{told[column]}</td>' for column in COLUMNS
    )
    return f'<tr class="{"own" if arm.difference is None else ""}"><td>{escape(arm.name)}</td>{row}</tr>'


def _anomalies(reports: Sequence[UpdateReport]) -> str:
    """Return a table of anomalies: each once, with its number of updates and its latest description."""
    if not reports:
        return ""
    found: dict[tuple[str, str], list[Anomaly]] = {}
    for anomaly in (a for report in reports for a in report.anomalies):
        found.setdefault((anomaly.kind, anomaly.where), []).append(anomaly)
    if not found:
        return "<p>None.</p>"
    rows = "".join(
        f'<tr><td>{escape(kind)}</td><td class="text">{escape(spoken(where))}</td>'
        f'<td class="text">{_when([a.update for a in all_of])}</td>'
        f'<td class="text">{escape(all_of[-1].explanation)}; {escape(all_of[-1].suggestion)}</td></tr>'
        for (kind, where), all_of in found.items()
    )
    columns = ("where", "updates", "explanation and suggestion")
    head = "".join(f'<th class="text">{name}</th>' for name in columns)
    return f"<table><tr><th>kind</th>{head}</tr>{rows}</table>"


def _when(updates: Sequence[int]) -> str:
    return f"1 ({updates[0]})" if len(updates) == 1 else f"{len(updates)} ({updates[0]} to {updates[-1]})"
