"""Collect the log of a growth, line by line, in memory that does not grow with its length."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from esper.dashboard.growth import GrowthStory, Mark, Point, summary
from esper.dashboard.plain import count, inside, number, short, text, tidy

MOST_POINTS, MOST_EVENTS = 2048, 4000
"""Measurements and events that are kept: of more measurements every other, of more events the latest half."""
MOST_FLOPS = 10**30
"""Largest number that a line can hold without being damaged."""


class GrowthLog:
    """The measurements and events of a growth, from the lines of its log as plain data."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.latest: Point | None = None
        """The last measurement, which is shown even where only some are kept."""
        self.events: list[Mark] = []
        self.every, self.measured = 1, 0
        self.steps, self.flops, self.skipped = 0, 0, 0
        self.parameters: int | None = None
        self.blocks: int | None = None
        self.is_finished = False

    def add(self, line: object) -> bool:
        """Add a line, and return whether it holds a measurement or an event; else it is counted as skipped."""
        kind = "point" if inside(line, "point") is not None else "event"
        record = inside(line, kind)
        step, flops, parameters = (count(inside(record, n), MOST_FLOPS) for n in ("step", "flops", "parameters"))
        if step is None or flops is None or parameters is None or step < self.steps:
            self.skipped += 1
            return False
        self.steps, self.parameters, self.flops = step, parameters, max(self.flops, flops)
        if kind == "point":
            self._add_point(record)
        else:
            self._add_event(record)
        return True

    def _add_point(self, record: Mapping[str, Any]) -> None:
        loss, metric = (number(record.get(name)) for name in ("loss", "metric"))
        self.latest = Point(record["flops"], record["parameters"], loss, metric)
        if self.measured % self.every == 0:
            self.points.append(self.latest)
        self.measured += 1
        if len(self.points) > MOST_POINTS:
            self.points, self.every = self.points[::2], 2 * self.every

    def _add_event(self, record: Mapping[str, Any]) -> None:
        kind, blocks = text(record.get("kind"), 40) or "?", count(record.get("blocks"))
        self.blocks = self.blocks if blocks is None else blocks
        self.is_finished = kind == "finish"
        self.events.append(
            Mark(
                kind=kind,
                step=record["step"],
                share=number(record.get("progress")) or 0.0,
                flops=record["flops"],
                parameters=record["parameters"],
                blocks=self.blocks or 0,
                loss=number(record.get("loss")),
                detail=text(record.get("detail"), 300) or "",
            )
        )
        if len(self.events) > MOST_EVENTS:
            self.events = self.events[MOST_EVENTS // 2 :]

    def _shown(self) -> list[Point]:
        is_kept = self.latest is None or self.points[-1] is self.latest
        return self.points if is_kept else [*self.points, self.latest]  # pyright: ignore

    def story(self, header: Mapping[str, Any]) -> GrowthStory:
        """Return what happened so far. The header is what growth.json holds."""
        parameters, blocks = (count(header.get(name)) for name in ("parameters", "blocks"))
        budget, options = budget_in(header), header.get("options")
        parameters = parameters if parameters is not None else (self.parameters or 0)
        blocks = blocks if blocks is not None else (self.blocks or 0)
        return GrowthStory(
            name=text(header.get("name"), 100) or "the model",
            steps=self.steps,
            spent=float(self.flops),
            budget=budget,
            is_over=self.is_finished or (budget is not None and self.flops >= budget),
            parameters=(parameters, parameters if self.parameters is None else self.parameters),
            blocks=(blocks, blocks if self.blocks is None else self.blocks),
            points=self._shown(),
            marks=self.events,
            options=options if isinstance(options, Mapping) else {},
        )

    def view(self, header: Mapping[str, Any]) -> dict[str, Any]:
        """Return the growth for a page. The header is what growth.json holds."""
        story = self.story(header)
        return {
            "sentence": summary(story),
            "name": story.name,
            "steps": story.steps,
            "spent": story.spent,
            "budget": story.budget,
            "is_over": story.is_over,
            "parameters": list(story.parameters),
            "blocks": list(story.blocks),
            "points": _columns(self._shown()),
            "events": [asdict(mark) for mark in self.events],
            "options": tidy(story.options),
        }


def budget_in(header: Mapping[str, Any]) -> float | None:
    """Return the operations that a growth may spend; None if its header does not say."""
    found = number(header.get("budget"))
    return found if found is not None and found > 0 else None


def _columns(points: list[Point]) -> dict[str, list[float | None]]:
    return {
        "flops": [point.flops for point in points],
        "loss": [short(point.loss) for point in points],
        "metric": [short(point.metric) for point in points],
        "parameters": [point.parameters for point in points],
    }
