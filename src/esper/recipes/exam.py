"""A recipe's exam: its controller against simple policies on fresh hosts."""

from collections.abc import Sequence

from esper.leyline.reports import ExamReport, Life
from esper.recipes.config import Recipe
from esper.simic.exam import examine
from esper.tamiyo import Controller
from esper.tamiyo.policies import Heuristic, Learned, Never, Policy, RandomLegal

EXAM = 1_000_000
"""Between the rng_seeds of hosts to learn from and those of hosts in exams."""
TOLD = 12
"""Hosts whose lives are told in full."""


def hold_exam(recipe: Recipe, controller: Controller, hosts: int) -> tuple[list[ExamReport], list[Life]]:
    """Of every fleet of the recipe, under its final rent."""
    rent = recipe.learn.rent.end
    exams, lives = [], []
    for fleet in recipe.fleets:
        arms: Sequence[Policy] = [Learned(controller), Never(), RandomLegal(), Heuristic()]
        env = fleet.build_group(recipe.engine, hosts, len(arms), EXAM, test=True)
        report, told = examine(env, arms, rent, recipe.learn.rng_seed, min(TOLD, hosts))
        exams.append(report)
        lives += told
    return exams, lives
