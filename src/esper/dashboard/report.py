"""Write the report of a run: one HTML file that holds what the page of `esper ui` would be told."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from esper.dashboard.bundle import page
from esper.dashboard.curves import Curves
from esper.dashboard.plain import count, inside, text, tidy
from esper.dashboard.sentences import WORDS, run_sentence
from esper.dashboard.views import exams_view, facts, life_row, life_view
from esper.exam.records import ExamReport, Life
from esper.leyline.json_records import jsonable
from esper.leyline.reports import UpdateReport

EXAMPLES, MOST_EXAMPLES = 3, 12
"""Episodes that a report holds: of each exam, and of all."""
POINTS = 600
RUN = "/api/runs/report"
"""Where the page looks for the run."""


@dataclass(frozen=True, kw_only=True)
class Story:
    """Contents of a report."""

    name: str
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    reports: Sequence[UpdateReport]
    exams: Sequence[ExamReport]
    lives: Sequence[Life]
    state: str = "done"
    """What the run is doing: running, stopped or done."""
    never: float | None = None
    """J of hosts that never grow; None if it was not measured."""

    def lives_of(self, exam: ExamReport, arm: str) -> list[int]:
        """Return the indices of the recorded episodes of one policy in one exam."""
        asked = (exam.task, exam.host, arm)
        return [i for i, life in enumerate(self.lives) if (life.task, life.kind, life.arm) == asked]


def html(story: Story) -> str:
    """Return the report as one HTML file that needs no other."""
    return page(story.name, {"paths": answers(story)})


def answers(story: Story) -> dict[str, Any]:
    """Return what the server of `esper ui` would answer about a run, by path."""
    curves = Curves()
    for report in story.reports:
        curves.add(jsonable(asdict(report)))
    updates = count(inside(story.config, "learn", "updates"))
    lives = [jsonable(asdict(life)) for life in story.lives]
    return {
        "/api/words": WORDS,
        RUN: _detail(story, curves, updates),
        f"{RUN}/curves?points={POINTS}": curves.view(POINTS, never=story.never, exams=story.exams, of=updates),
        f"{RUN}/exams": exams_view(story.exams),
        f"{RUN}/lives": {"lives": [life_row(i, life) for i, life in enumerate(lives)]},
        **{f"{RUN}/lives/{i}": life_view(lives[i], _never(lives, i)) for i in _examples(story)},
    }


def _detail(story: Story, curves: Curves, updates: int | None) -> dict[str, Any]:
    said = run_sentence(
        state=story.state,
        updates=curves.updates,
        of=updates,
        objective=curves.last,
        never=story.never,
        exams=story.exams,
    )
    return {
        "id": "report",
        "kind": "run",
        "name": text(story.name, 200) or "run",
        "title": text(story.config.get("name"), 100) or "",
        "state": story.state,
        "sentence": said,
        "facts": facts(story.config, story.environment),
        "config": tidy(story.config),
        "environment": tidy(story.environment),
        "problem": None,
        "reading": 1,
        "views": ["run"],
        "resume": None,
        "never": story.never,
    }


def _examples(story: Story) -> list[int]:
    """Return the indices of the episodes that the report holds: some of the policy under test in each exam."""

    def found() -> Iterator[int]:
        for exam in story.exams:
            yield from story.lives_of(exam, exam.policy)[:EXAMPLES]

    return list(dict.fromkeys(found()))[:MOST_EXAMPLES]


def _never(lives: Sequence[Mapping[str, Any]], index: int) -> Mapping[str, Any] | None:
    """Return the episode of an equal host that never grew."""
    asked = {name: lives[index][name] for name in ("task", "kind", "host")} | {"arm": "never"}
    return next((life for life in lives if asked.items() <= life.items()), None)
