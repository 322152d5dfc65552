"""Choose the learning rate of every arm on hosts that are for this alone."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch

from esper.exam.hosts import Hosts
from esper.simic.search import compare
from esper.tamiyo.policies import Policy

Tell = Callable[[str], object]
"""Called with each step of an exam, for progress displays."""


@runtime_checkable
class Choices(Protocol):
    """What exams have chosen so far, by purpose; a dict will do. If it is kept, an interrupted exam resumes."""

    def get(self, purpose: str, /) -> Sequence[float] | None:
        """Return a choice; None if it has not been made."""
        ...

    def __setitem__(self, purpose: str, choice: Sequence[float], /) -> None: ...


class Tuner:
    """Chooses for the arms of one exam, each choice once."""

    def __init__(self, hosts: Hosts, rent: float, rng_seed: int, tell: Tell, choices: Choices, where: str = "") -> None:
        self.hosts, self.rent, self.rng_seed = hosts, rent, rng_seed
        self.tell, self.choices, self.where = tell, choices, f"{where}{hosts.name}: "
        self.grid = [rate * hosts.fleet.train.lr for rate in sorted(hosts.config.rates)]
        """Learning rates to choose from."""

    def chosen(self, purpose: str, choose: Callable[[], Sequence[float]]) -> Sequence[float]:
        """Announce a choice, then make it, unless it has been made before."""
        self.tell(purpose)
        found = self.choices.get(self.where + purpose)
        if found is None:
            found = choose()
            self.choices[self.where + purpose] = found
        return found

    def tuned(self, arms: Sequence[Sequence[Policy]], episode: int | None = None) -> Sequence[float]:
        """Return the learning rate of each arm that has the best mean validation J on hosts reserved for tuning."""
        if len(self.grid) == 1:
            return self.grid * len(arms)

        def choose() -> list[float]:
            hosts = self.shared_by(len(arms[0]))
            found = [self.tried(nth, hosts, episode, n) for n, nth in enumerate(zip(*arms, strict=True))]
            return [self.best_rate(by_training) for by_training in zip(*found, strict=True)]

        epochs = episode or self.hosts.fleet.env.decisions
        return self.chosen(f"learning rates of {', '.join(arm[0].name for arm in arms)}, {epochs} epochs", choose)

    def best_rate(self, tried: Sequence[Sequence[float]]) -> float:
        """Return the rate of the grid with the best J, averaged over trainings."""
        return self.grid[int(torch.tensor(tried).mean(0).argmax())]

    def tried(
        self, policies: Sequence[Policy], hosts: int, episode: int | None = None, training: int = 0
    ) -> list[list[float]]:
        """Return the mean validation J of each policy at each learning rate, on the n-th training's tuning hosts."""
        at_once, found = max(self.hosts.at_once // (hosts * len(self.grid)), 1), []
        for start in range(0, len(policies), at_once):
            each = [policy for policy in policies[start : start + at_once] for _ in self.grid]
            rates = self.grid * (len(each) // len(self.grid))
            env = self.hosts.charged(self.hosts.tuning(hosts, rates, training, episode), each)
            found += [outcome.objective.mean().item() for outcome in compare(env, each, self.rent, self.rng_seed)]
        return [found[i : i + len(self.grid)] for i in range(0, len(found), len(self.grid))]

    def shared_by(self, trainings: int) -> int:
        """Return the tuning hosts of each training, so that all trainings together have `tuned_on`."""
        return -(-self.hosts.config.tuned_on // trainings)
