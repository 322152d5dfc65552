"""Turn records into JSON for pages: exams, episodes, growths, and what a run is about."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from esper.dashboard.curves import Curves
from esper.dashboard.exam_text import about
from esper.dashboard.plain import count, inside, number, short, text, tidy
from esper.dashboard.sentences import does, exam_sentence
from esper.dashboard.style import in_unit
from esper.exam.records import ArmReport, ExamReport, Interval

LOWER_IS_BETTER = ("loss", "squared_error")
"""Metrics of `leyline/objectives.py` of which less is better."""
LARGEST = 1e100
"""Numbers from here on are taken for damage."""
LONGEST = 1 << 20
"""Characters of one decision of a garden."""


def exams_view(exams: Sequence[ExamReport]) -> dict[str, Any]:
    """Return the exams of a run for a page."""
    return {"exams": [exam_view(exam) for exam in exams]}


def exam_view(exam: ExamReport) -> dict[str, Any]:
    """Return an exam for a page."""
    found = {
        "setting": exam.setting,
        "sentence": exam_sentence(exam),
        "about": _about(exam),
        "policy": exam.policy,
        "metric": exam.metric,
        "lower_is_better": exam.metric in LOWER_IS_BETTER,
        "data": exam.data,
        "hosts": exam.hosts,
        "trainings": exam.trainings,
        "rent": exam.rent,
        "budget": exam.budget,
        "episode": exam.episode,
        "arms": [_arm(arm, exam) for arm in exam.arms],
    }
    return tidy(found)


def _about(exam: ExamReport) -> str:
    try:
        return about(exam)
    except ArithmeticError:  # a budget of 0, or a number that is not finite, in a damaged file
        return ""


def _arm(arm: ArmReport, exam: ExamReport) -> dict[str, Any]:
    score = mean_interval(arm.scores)
    return {
        "name": arm.name,
        "does": does(arm.name, exam.policy),
        "verdict": arm.verdict,
        "own": arm.name == exam.policy,
        "metric": arm.mean,
        "iqm": arm.iqm,
        "low": arm.iqm_interval.low,
        "high": arm.iqm_interval.high,
        "score": score.mean if score else None,
        "score_low": score.low if score else None,
        "score_high": score.high if score else None,
        "j": arm.j,
        "growth": arm.growth,
        "params": arm.params,
        "flops": arm.flops,
        "lr": arm.lr,
        "plan": arm.plan,
        "difference": interval(arm.difference),
    }


def interval(found: Interval | None) -> dict[str, float] | None:
    """Return an interval for a page."""
    return None if found is None else {"mean": found.mean, "low": found.low, "high": found.high}


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Return the mean of several numbers with its 95 % interval, from the normal distribution; None without any."""
    known = [x for x in values if abs(x) < LARGEST]
    if not known:
        return None
    mean = sum(known) / len(known)
    spread = math.sqrt(sum((x - mean) ** 2 for x in known) / max(len(known) - 1, 1) / len(known))
    return Interval(mean, mean - 1.96 * spread, mean + 1.96 * spread)


def life_row(index: int, life: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of an episode in the list of all."""
    epochs = inside(life, "epochs")
    return {
        "index": index,
        **{name: text(life.get(name), 100) for name in ("task", "kind", "arm")},
        "host": count(life.get("host")),
        "score": short(number(inside(epochs, -1, "score"))),
        "growth": short(number(inside(epochs, -1, "growth"))),
        "epochs": len(epochs) if isinstance(epochs, list | tuple) else 0,
    }


def scores_of(life: Mapping[str, Any] | None) -> list[float | None] | None:
    """Return the scores of an episode; None without one."""
    epochs = inside(life, "epochs")
    if not isinstance(epochs, list | tuple):
        return None
    return [short(number(inside(epoch, "score"))) for epoch in epochs]


def life_view(life: Mapping[str, Any], never: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return an episode for a page.

    Args:
        life: The episode, as plain data.
        never: The episode of an equal host that never grew.
    """
    epochs = [tidy(epoch) for epoch in _list(life.get("epochs")) if isinstance(epoch, Mapping)]
    slots = _list(inside(epochs, 0, "slots"))
    row = life_row(0, life)
    return {
        **{name: row[name] for name in ("task", "kind", "arm", "host")},
        "slots": [inside(slot, "name") for slot in slots],
        "never": scores_of(never),
        "epochs": epochs,
    }


def hosts_of(recipe: Mapping[str, Any]) -> list[str]:
    """Return what each fleet of a recipe trains, such as "mnist1d, cnn1d 4-4-4"."""
    found = []
    fleets = recipe.get("fleets")
    for fleet in fleets if isinstance(fleets, list) else ():
        task, kind = (text(inside(fleet, name), 60) or "?" for name in ("task", "host"))
        widths = inside(fleet, "widths")
        size = "-".join(str(w) for w in widths if count(w) is not None) if isinstance(widths, list) else ""
        found.append(f"{task}, {kind} {size}".strip())
    return list(dict.fromkeys(found))


def facts(recipe: Mapping[str, Any], environment: Mapping[str, Any], curves: Curves | None = None) -> list[list[str]]:
    """Return what a page says first about a run: pairs of label and text."""
    settings = hosts_of(recipe)
    shown = "; ".join(settings[:3]) + (f"; and {len(settings) - 3} more" if len(settings) > 3 else "")
    device, threads = text(environment.get("device"), 60), count(environment.get("threads"))
    found = {
        "Recipe": text(recipe.get("name"), 100),
        "Hosts" if len(settings) != 1 else "Host": shown,
        "Device": f"{device}, {threads} thread{'s' * (threads > 1)}"
        if device and threads and device == "cpu"
        else device,
        "Price of growth": _number(inside(recipe, "learn", "rent", "end")),
        "Esper": text(environment.get("esper"), 60),
        "torch": text(environment.get("torch"), 60),
        "Command": text(environment.get("command"), 300),
    }
    return [[label, said] for label, said in found.items() if said]


def growth_facts(header: Mapping[str, Any]) -> list[list[str]]:
    """Return what a page says first about a growth: pairs of label and text. The header is what growth.json holds."""
    options, budget = header.get("options"), number(header.get("budget"))
    slots = [text(slot, 100) or "?" for slot in _list(inside(options, "slots"))]
    found = {
        "Policy": text(inside(options, "policy"), 100),
        "Budget": None if budget is None else f"{' '.join(in_unit(budget))}FLOP",
        "Largest growth": _number(inside(options, "max_growth")),
        "Slots": ", ".join(slots),
    }
    return [[label, said] for label, said in found.items() if said]


def _number(value: object) -> str | None:
    found = number(value)
    return None if found is None else f"{found:g}"


def garden_frames(record: object, decisions: Iterable[int]) -> list[dict[str, Any]]:
    """Return some decisions of an update for a page: the state of every host, its op and its score.

    Args:
        record: A line of garden.jsonl, as plain data.
        decisions: Which of its decisions.
    """
    fleets = _list(inside(record, "fleets"))
    return [
        {
            "update": count(inside(record, "update")),
            "decision": n,
            "fleets": [
                {
                    "cells": text(inside(fleet, "cells", n), LONGEST) or "",
                    "ops": text(inside(fleet, "ops", n), LONGEST) or "",
                    "scores": [number(score) for score in _list(inside(fleet, "scores", n))],
                    "born": [host for host in _list(inside(fleet, "born", n)) if count(host) is not None],
                }
                for fleet in fleets
            ],
        }
        for n in decisions
    ]


def garden_fleets(record: object) -> list[dict[str, Any]]:
    """Return what the fleets of a garden are. The record is a line of garden.jsonl, as plain data."""
    return [
        {
            "label": text(inside(fleet, "label"), 100) or "",
            "hosts": count(inside(fleet, "hosts")) or 0,
            "slots": [text(slot, 40) or "?" for slot in _list(inside(fleet, "slots"))],
        }
        for fleet in _list(inside(record, "fleets"))
    ]


def decisions_in(record: object) -> int:
    """Return the number of decisions in a line of garden.jsonl, given as plain data; 0 if it is none."""
    fleets = _list(inside(record, "fleets")) if count(inside(record, "update")) is not None else ()
    return max((len(_list(inside(fleet, "cells"))) for fleet in fleets), default=0)


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()
