"""Plans that are searched for."""

from dataclasses import replace

from esper.exam.plans import grid_plans, random_candidates
from esper.simic.search import random_plans
from small_exams import SMALL, sitting


def test_plans_differ_from_those_of_the_warm_start():
    one = sitting(replace(SMALL, plans=20))
    by_chance, grid = random_candidates(one), grid_plans(one)
    shown = random_plans(one.hosts.example.setting, 20, one.rng_seed)
    assert {str(plan) for plan in by_chance}.isdisjoint(str(plan) for plan in shown)
    singles = 2 * len(one.hosts.example.setting.space.slots) * len(one.hosts.example.setting.space.blueprints)
    assert (len(by_chance), len(grid)) == (20, singles + 20)
    assert {line.decision for plan in grid for line in plan.plan} == {0, 1}, "at the beginning, and after a quarter"
