"""Arms that follow a plan: the best of a search, on hosts of different learning rates."""

from collections.abc import Sequence

from esper.exam.hosts import AROUND
from esper.exam.runs import ChosenPlan
from esper.exam.sitting import Sitting
from esper.exam.verdicts import ORACLE
from esper.recipes.config import Band
from esper.simic.search import pair_plans, random_plans, single_plans, successive_halving
from esper.tamiyo.policies import FixedPlan


def best_random_plan(sitting: Sitting) -> ChosenPlan:
    """Return the best of `config.plans` random plans."""
    return best(sitting, "best plan", random_candidates(sitting))


def grid_oracle(sitting: Sitting) -> ChosenPlan:
    """Return the best of a grid of plans."""
    return best(sitting, ORACLE, grid_plans(sitting))


def random_candidates(sitting: Sitting) -> list[FixedPlan]:
    """Return `config.plans` random plans."""
    return random_plans(sitting.hosts.example.setting, sitting.config.plans, _rng_seed(sitting))


def grid_plans(sitting: Sitting) -> list[FixedPlan]:
    """Return all plans of a single seed at two times, and `config.plans` pairs of them."""
    setting, times = sitting.hosts.example.setting, (0, sitting.fleet.env.decisions // 4)
    return [
        *single_plans(setting, times),
        *pair_plans(setting, times, sitting.config.plans, _rng_seed(sitting)),
    ]


def best(sitting: Sitting, name: str, plans: Sequence[FixedPlan]) -> ChosenPlan:
    """Return the winner of a tournament of plans."""
    hosts = sitting.hosts

    def choose() -> list[float]:
        (winners,), lives = successive_halving(hosts.tournament, plans, [sitting.rent], len(AROUND), room=hosts.at_once)
        return [plans.index(winners[0]), lives]

    index, lives = map(int, sitting.tuner.chosen(f"{name}, chosen among {len(plans)}", choose))
    hosts.around.fleet = None  # its memory may be needed
    return ChosenPlan(plans[index], name, lives)


def _rng_seed(sitting: Sitting) -> int:
    """Return a seed of other plans than those that the policy may have begun with."""
    return Band.PLANS + sitting.rng_seed
