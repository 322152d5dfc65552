"""Let a policy grow hosts for one episode: all hosts of a fleet, or one host alone."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esper.leyline.errors import EsperError
from esper.leyline.reports import EpochReport
from esper.leyline.state import Signals
from esper.simic.lives import Rent, Transition, episode
from esper.simic.rewards import objective
from esper.tamiyo.policies import Policy
from esper.tolaria import FleetEnv, HostTrainer
from esper.tolaria.env import Step

StepCallback = Callable[[Int[Tensor, "N H"], Step], None]
"""Called after every decision, with the actions and their result."""


class Outcome(NamedTuple):
    """The result of one episode of every host; of a failed host, that of its last good epoch.

    If the env has test data, score, metric and objective are measured on it, and a failed host scores at chance.
    """

    objective: Float[Tensor, " N"]
    """J: the score minus rent · ln(1 + growth), and minus the penalty if the host failed."""
    score: Float[Tensor, " N"]
    """Score from 0 to 1."""
    metric: Float[Tensor, " N"]
    """The task's metric, such as accuracy or loss."""
    growth: Float[Tensor, " N"]
    """Parameters of all seeds over those of the bare host."""
    flops: Float[Tensor, " N"]
    """FLOPs of the whole episode."""
    sick: Float[Tensor, " N"]
    """1 if the host failed, else 0."""


class Tally:
    """Folds the decisions of one fleet into the outcome of the first episode of every host."""

    def __init__(self, env: FleetEnv) -> None:
        self.env, self.alive = env, torch.ones_like(env.fleet.everyone)
        zeros = torch.zeros(len(Outcome._fields), len(self.alive), device=self.alive.device)
        self.outcome = Outcome(*zeros)

    def add(self, transition: Transition) -> None:
        """Count one decision."""
        (before,), (step,), found = transition.before, transition.steps, self.outcome
        over = (step.terminated | step.truncated) & self.alive
        final = step.final if step.test is None else on_test(step, self.env)
        ended = Outcome(
            objective(final, before.rent) - step.penalty,
            final.score.float(),
            final.metric.float(),
            final.growth.float(),
            found.flops + final.flops.float(),
            step.terminated.float(),
        )
        running = found._replace(flops=torch.where(self.alive, ended.flops, found.flops))
        self.outcome = Outcome(*(torch.where(over, new, old) for new, old in zip(ended, running, strict=True)))
        self.alive &= ~over


def evaluate(
    env: FleetEnv,
    policy: Policy,
    rent: Rent,
    rng_seed: int = 0,
    budget: float = float("inf"),
    on_step: StepCallback = lambda actions, step: None,
) -> Outcome:
    """Evaluate a policy for one episode of fresh hosts.

    Args:
        env: Fleet to play on. It is reset first, and must not be staggered: some episodes would be cut short.
        policy: Policy that chooses the actions.
        rent: Price of growth in the objective, J = score − rent · ln(1 + growth): one for all hosts, or one for each.
        rng_seed: Seed of sampled actions.
        budget: Largest growth that the policy may reach; unlimited by default.
        on_step: Called after every decision, with the actions and their result.

    Returns:
        The outcome of every host.

    Example:
        >>> env = esper.FleetEnv(esper.Fleet(host, task, range(16)))
        >>> esper.evaluate(env, esper.Heuristic(), rent=0.02).objective.mean()
    """
    tally = Tally(env)
    for transition in episode(env, policy, rent, rng_seed, budget):
        tally.add(transition)
        on_step(transition.actions[0], transition.steps[0])
    return tally.outcome


def grow_host(
    trainer: HostTrainer,
    policy: Policy,
    epochs: int,
    *,
    rent: float = 0.02,
    rng_seed: int = 0,
    budget: float = float("inf"),
) -> Iterator[EpochReport]:
    """Train one host while a policy decides when, where and what to grow.

    Every iteration is one decision and one epoch. The policy chooses what it would choose for the host in a fleet under
    `evaluate` with the same seeds. Unlike there, a host that diverges is not replaced.

    Args:
        trainer: Host to train, fresh or already trained. It is the grown host afterwards.
        policy: Any policy; `esper.LearnedPolicy(esper.load_controller())` is the controller that ships with Esper.
        epochs: Decisions in the episode, which ends earlier if `trainer.budget` is spent.
        rent: Price of growth that a learned policy takes into account, J = score − rent · ln(1 + growth).
        rng_seed: Seed of sampled actions.
        budget: Largest growth that the policy may reach; unlimited by default.

    Returns:
        An iterator that trains one epoch per item and yields its report.

    Raises:
        EsperError: If `epochs` is less than 1; or, while iterating, if an epoch leaves a loss or weights that are not
            finite and more epochs were to follow.

    Example:
        >>> policy = esper.LearnedPolicy(esper.load_controller(), greedy=True)
        >>> for report in esper.grow_host(trainer, policy, epochs=20):
        ...     print(report.epoch, report.op, report.metric)
        >>> esper.save_model("grown.safetensors", trainer.host)
    """
    if epochs < 1:
        raise EsperError(f"epochs must be at least 1, not {epochs}")
    return _reports(OneHost(trainer, epochs), policy, rent, rng_seed, budget)


def _reports(world: "OneHost", policy: Policy, rent: float, rng_seed: int, budget: float) -> Iterator[EpochReport]:
    for transition in episode(world, policy, rent, rng_seed, budget):
        assert world.report is not None
        yield world.report
        if transition.steps[0].truncated:
            return
        world.require_sane(transition.after[0].signals)


class OneHost:
    """One host as a world of its own. It is not replaced when it diverges."""

    def __init__(self, trainer: HostTrainer, epochs: int) -> None:
        self.trainer, self.epochs, self.setting, self.age = trainer, epochs, trainer.setting(epochs), 0
        self.report: EpochReport | None = None
        """Report of the last epoch."""

    def reset(self) -> Signals:
        """Return the first signals of the host as it is."""
        self.age = 0
        signals = self.trainer.signals(0)
        self.require_sane(signals)
        return signals

    def step(self, actions: Int[Tensor, "1 H"]) -> Step:
        """Apply one action and train for one epoch."""
        self.report = self.trainer.decide(actions[0].tolist())
        self.age += 1
        signals, no = self.trainer.signals(self.age, self.report), torch.zeros(1, dtype=torch.bool)
        refused, truncated = (
            torch.tensor([self.report.refused]),
            torch.tensor([self.age >= self.epochs or self.trainer.over]),
        )
        return Step(signals, signals, no.float(), refused, no, truncated)

    def require_sane(self, signals: Signals) -> None:
        """Raise EsperError if the host has diverged."""
        if not bool(signals.vitals.sane):
            raise EsperError(
                f"the host diverged in epoch {self.trainer.epoch - 1}: its loss or weights are not finite;"
                " train it with a smaller TrainConfig.lr"
            )


def on_test(step: Step, env: FleetEnv) -> Signals:
    """Return the final signals with score and metric on test data; a failed host scores at chance."""
    assert step.test is not None
    chance, guess = env.setting.chance, env.setting.guess
    score = torch.where(step.terminated, chance, step.test.score)
    metric = torch.where(step.terminated, chance if env.fleet.objective.direction == "max" else guess, step.test.metric)
    return step.final._replace(score=score.to(step.final.score), metric=metric.to(step.final.metric))
