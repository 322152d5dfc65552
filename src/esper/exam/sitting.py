"""One sitting: the exam of one setting, and what its arms are played with."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from esper.exam.config import ExamConfig
from esper.exam.hosts import Hosts
from esper.exam.runs import ArmResult, ArmRun, ChosenPlan, run_arm
from esper.exam.tuning import Choices, Tell, Tuner
from esper.leyline.state import SlotState
from esper.recipes.config import FleetConfig, Recipe
from esper.tamiyo.policies import FixedPlan, Policy
from esper.tolaria import FleetEnv


class Played(NamedTuple):
    """The policy under test, and what has been played so far."""

    policies: Sequence[Policy]
    """All trainings of the policy under test."""
    ours: ArmResult
    others: Mapping[str, ArmResult]
    """Results of other arms, by name."""
    grown: Callable[[], Sequence[SlotState]]
    """Returns what each training grows on the tuning hosts."""


class Sitting:
    """The exam of one setting."""

    def __init__(
        self,
        recipe: Recipe,
        fleet: FleetConfig,
        config: ExamConfig,
        tell: Tell = lambda said: None,
        choices: Choices | None = None,
        where: str = "",
    ) -> None:
        self.recipe, self.fleet, self.config = recipe, fleet, config
        self.rent = recipe.learn.rent.end if config.price is None else config.price
        self.rng_seed = recipe.learn.rng_seed
        self.hosts = Hosts(fleet, recipe.engine, config)
        self.tell: Tell = lambda said: tell(f"{self.hosts.name}: {said}")
        self.choices: Choices = {} if choices is None else choices
        self.tried_sizes: list[tuple[float, float]] = []
        """The best learning rate of every fixed size, and its mean J; empty until they have been tried."""
        self.tuner = Tuner(self.hosts, self.rent, self.rng_seed, self.tell, self.choices, where)

    @property
    def facts(self) -> Mapping[str, float]:
        """What is known of the task, such as its teacher's width."""
        return self.hosts.example.fleet.task.facts

    @property
    def unseen(self) -> str:
        """What the policy was not trained on: the task, the kind of host, or both."""
        new = {
            "task": all(known.task != self.fleet.task for known in self.recipe.learned_from),
            "kind of host": all(known.host != self.fleet.host for known in self.recipe.learned_from),
        }
        return " and ".join(name for name, unseen in new.items() if unseen)

    def play(self, name: str, policies: Sequence[Policy], lr: float, episode: int | None = None) -> ArmResult:
        """Play all trainings of one policy, one after the other, on the hosts that count."""
        self.tell(f"{name} on the hosts that count")
        envs = (self.hosts.charged(self.hosts.scored(lr, episode), [policy]) for policy in policies)
        runs = [self.run(env, policy, name) for env, policy in zip(envs, policies, strict=True)]
        plan = policies[0] if isinstance(policies[0], FixedPlan) else None
        searched = plan.searched if isinstance(plan, ChosenPlan) else 0
        epochs = episode or self.fleet.env.decisions
        return ArmResult(name, runs, epochs, lr, searched, plan="" if plan is None else str(plan))

    def run(self, env: FleetEnv, policy: Policy, name: str) -> ArmRun:
        """Run the policy of an arm on all hosts of an env, and record some of their episodes."""
        return run_arm(env, policy, self.rent, self.rng_seed, min(self.config.recorded, self.config.hosts), name)

    def in_shape(self, fleet: FleetConfig) -> "Sitting":
        """Return a sitting with hosts of another shape, which tells nothing."""
        return Sitting(self.recipe, fleet, self.config, choices=self.choices, where=self.tuner.where)
