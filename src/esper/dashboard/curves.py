"""Collect the curves of a run, report by report, in memory that does not grow with their number."""

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import add
from typing import Any

from esper.dashboard.plain import count, number, short, text
from esper.exam.records import ExamReport
from esper.leyline.reports import HeadReport, UpdateReport

LIMIT = 2048
"""Largest number of buckets of updates; beyond it, neighbours are merged."""
COLUMNS = ("objective", "score", "growth", "entropy", "approx_kl", "explained_variance", "policy_loss", "value_loss")
COLUMNS += ("grad_norm", "reward", "rent", "episodes", "sick", "seconds")
OF_HEADS = ("entropy", "approx_kl")
OLD = {new: old for old, new in (HeadReport.RENAMED | UpdateReport.RENAMED).items()}
"""Names of fields in files of earlier versions."""
MOST_SERIES, MOST_ANOMALIES, MOST_UPDATES = 256, 100, 200
"""Bounds on what a damaged or hostile log can make grow."""


class Series:
    """Sums of one number over buckets of updates, and how many updates had it."""

    def __init__(self, buckets: int = 0) -> None:
        self.sums = array("d", bytes(8 * buckets))
        self.counts = array("Q", bytes(8 * buckets))

    def open(self) -> None:
        """Begin another bucket."""
        self.sums.append(0.0)
        self.counts.append(0)

    def add(self, value: float) -> None:
        """Add a number to the last bucket."""
        self.sums[-1] += value
        self.counts[-1] += 1

    def halve(self) -> None:
        """Merge every two neighbours of an even number of buckets."""
        self.sums = array("d", map(add, self.sums[::2], self.sums[1::2]))
        self.counts = array("Q", map(add, self.counts[::2], self.counts[1::2]))

    def totals(self, every: int) -> list[float]:
        """Return the sums over so many neighbours each."""
        return [sum(self.sums[i : i + every]) for i in range(0, len(self.sums), every)]

    def means(self, every: int) -> list[float | None]:
        """Return the means over so many neighbours each; None where no update had the number."""
        counts = (sum(self.counts[i : i + every]) for i in range(0, len(self.counts), every))
        return [short(total / n) if n else None for total, n in zip(self.totals(every), counts, strict=True)]


@dataclass
class Found:
    """An anomaly of one kind in one place, over all updates."""

    count: int = 0
    every: int = 1
    """Of so many occurrences, one is listed."""
    updates: list[int] = field(default_factory=list)
    explanation: str = ""
    suggestion: str = ""

    def add(self, update: int, explanation: str, suggestion: str) -> None:
        """Add an occurrence."""
        if self.count % self.every == 0:
            self.updates.append(update)
        if len(self.updates) > MOST_UPDATES:
            self.updates, self.every = self.updates[::2], 2 * self.every
        self.count += 1
        self.explanation, self.suggestion = explanation, suggestion


class Curves:
    """Curves of a run, from reports of its updates as plain data; old names of fields are understood.

    Example:
        >>> curves = Curves()
        >>> curves.add({"update": 0, "objective": 0.5, "ops": {"WAIT": 3, "PRUNE": 1}})
        True
        >>> curves.view(600)["mix"]
        {'WAIT': [0.75], 'PRUNE': [0.25]}
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit + limit % 2
        self.width = 1
        """Reports of a bucket."""
        self.filled = 0
        """Reports of the last bucket so far."""
        self.x = array("Q")
        """The last update of each bucket."""
        self.low, self.high = array("d"), array("d")
        """Smallest and largest J of each bucket; infinite where none is known."""
        self.series: dict[tuple[str, ...], Series] = {("column", name): Series() for name in COLUMNS}
        self.anomalies: dict[tuple[str, str], Found] = {}
        self.skipped = 0
        self.best: float | None = None
        self.last: float | None = None

    @property
    def updates(self) -> int:
        """The number of updates made."""
        return self.x[-1] + 1 if self.x else 0

    def add(self, report: object) -> bool:
        """Add the report of the next update, and return whether it is one; what is none is counted as skipped."""
        update = count(report.get("update")) if isinstance(report, Mapping) else None
        if update is None or update < self.updates:
            self.skipped += 1
            return False
        assert isinstance(report, Mapping)
        self._bucket(update)
        for name in COLUMNS[:-1]:
            self._add(("column", name), _field(report, name))
        self._add(("column", "seconds"), _total(report.get("seconds")))
        self._add_groups(report)
        self._add_objective(number(report.get("objective")))
        for anomaly in _list(report.get("anomalies")):
            self._add_anomaly(update, anomaly)
        return True

    def _bucket(self, update: int) -> None:
        """Make the bucket of the next report the last one."""
        if self.x and self.filled < self.width:
            self.x[-1] = update
            self.filled += 1
            return
        if len(self.x) == self.limit:
            self._halve()
        self.x.append(update)
        self.filled = 1
        self.low.append(math.inf)
        self.high.append(-math.inf)
        for series in self.series.values():
            series.open()

    def _halve(self) -> None:
        self.width *= 2
        self.x = self.x[1::2]
        self.low = array("d", map(min, self.low[::2], self.low[1::2]))
        self.high = array("d", map(max, self.high[::2], self.high[1::2]))
        for series in self.series.values():
            series.halve()

    def _add(self, key: tuple[str, ...], value: float | None) -> None:
        if value is None:
            return
        if key not in self.series:
            if len(self.series) >= MOST_SERIES:
                return
            self.series[key] = Series(len(self.x))
        self.series[key].add(value)

    def _add_groups(self, report: Mapping[str, Any]) -> None:
        for group, name in (("mix", "ops"), ("planted", "planted")):
            counts = report.get(name)
            for choice, times in counts.items() if isinstance(counts, Mapping) else ():
                self._add((group, _name(choice)), number(times))
        for head in _list(report.get("heads")):
            if isinstance(head, Mapping):
                for name in OF_HEADS:
                    self._add(("head", _name(head.get("name")), name), _field(head, name))

    def _add_objective(self, objective: float | None) -> None:
        if objective is None:
            return
        self.last = objective
        self.best = objective if self.best is None else max(self.best, objective)
        self.low[-1], self.high[-1] = min(self.low[-1], objective), max(self.high[-1], objective)

    def _add_anomaly(self, update: int, anomaly: object) -> None:
        if not isinstance(anomaly, Mapping):
            return
        key = (_name(anomaly.get("kind")), _name(anomaly.get("where")))
        if key in self.anomalies or len(self.anomalies) < MOST_ANOMALIES:
            said = (text(anomaly.get(part), 500) or "" for part in ("explanation", "suggestion"))
            self.anomalies.setdefault(key, Found()).add(update, *said)

    def spark(self, points: int) -> list[float | None]:
        """Return J in at most so many points."""
        return self.series["column", "objective"].means(self._every(points))

    def _every(self, points: int) -> int:
        return max(1, -(-len(self.x) // max(points, 1)))

    def view(
        self,
        points: int,
        *,
        never: float | None = None,
        exams: Sequence[ExamReport] = (),
        of: int | None = None,
        note: str | None = None,
    ) -> dict[str, Any]:
        """Return the curves for a page.

        Args:
            points: Largest number of buckets of updates.
            never: Mean J of hosts that never grow.
            exams: Exams whose J is shown as lines.
            of: Number of updates that the run is to make.
            note: What the page says about the log, besides the number of damaged lines.
        """
        every = self._every(points)
        starts = range(0, len(self.x), every)
        return {
            "updates": self.updates,
            "of": of,
            "x": [self.x[min(i + every, len(self.x)) - 1] for i in starts],
            "columns": {name: self.series["column", name].means(every) for name in COLUMNS},
            "low": {"objective": [short(min(self.low[i : i + every])) for i in starts]},
            "high": {"objective": [short(max(self.high[i : i + every])) for i in starts]},
            "mix": self._shares("mix", every),
            "planted": self._shares("planted", every),
            "heads": self._heads(every),
            "lines": lines(never, exams),
            "anomalies": self._anomalies(),
            "skipped": self.skipped,
            "note": " ".join(filter(None, (note, damage(self.skipped)))) or None,
        }

    def _shares(self, group: str, every: int) -> dict[str, list[float | None]]:
        totals = {key[1]: series.totals(every) for key, series in self.series.items() if key[0] == group}
        whole = [sum(parts) for parts in zip(*totals.values(), strict=True)]
        return {
            name: [short(part / all_of) if all_of > 0 else None for part, all_of in zip(parts, whole, strict=True)]
            for name, parts in totals.items()
        }

    def _heads(self, every: int) -> dict[str, dict[str, list[float | None]]]:
        found: dict[str, dict[str, list[float | None]]] = {}
        nothing: list[float | None] = [None] * len(range(0, len(self.x), every))
        for key, series in self.series.items():
            if key[0] == "head":
                head = found.setdefault(key[1], dict.fromkeys(OF_HEADS, nothing))
                head[key[2]] = series.means(every)
        return found

    def _anomalies(self) -> list[dict[str, Any]]:
        return [
            {
                "kind": kind,
                "where": where,
                "count": found.count,
                "updates": found.updates,
                "explanation": found.explanation,
                "suggestion": found.suggestion,
            }
            for (kind, where), found in self.anomalies.items()
        ]


def lines(never: float | None, exams: Sequence[ExamReport]) -> list[dict[str, Any]]:
    """Return values of J to draw as lines: of hosts that never grow, and of arms of exams.

    With several exams, a line is the mean over all of them, as J in training is the mean over all fleets.
    """
    found = [{"label": "never grows", "value": short(never)}] if never is not None else []
    arms = [exam.by_name for exam in exams]
    for name in dict.fromkeys(name for exam in arms for name in exam):
        js = [exam[name].j for exam in arms if name in exam]
        if len(js) == len(arms) and all(map(math.isfinite, js)):
            found.append({"label": f"exam: {text(name, 60)}", "value": short(sum(js) / len(js))})
    return found


def damage(skipped: int) -> str:
    """Say how many lines of a log were left out; empty if none were."""
    if not skipped:
        return ""
    return f"{skipped:,} {'line is' if skipped == 1 else 'lines are'} damaged and left out."


def _field(record: Mapping[str, Any], name: str) -> float | None:
    """Return a number from a report, under its present or its old name."""
    return number(record[name] if name in record else record.get(OLD.get(name, name)))


@lru_cache(maxsize=1024)
def _clean(name: str) -> str:
    return text(name, 60) or "?"


def _name(value: object) -> str:
    return _clean(value) if isinstance(value, str) and len(value) < 200 else text(value, 60) or "?"


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _total(seconds: object) -> float | None:
    if not isinstance(seconds, Mapping):
        return None
    return number(sum(x for x in map(number, seconds.values()) if x is not None))
