"""Let a policy grow hosts for one episode: all hosts of a fleet, or one host alone."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esper.leyline.errors import EsperError
from esper.leyline.reports import EpochReport
from esper.leyline.rng import Purpose, key, uniform
from esper.leyline.state import Setting, Signals
from esper.simic.rewards import objective
from esper.tamiyo.features import View, empty_history, remember
from esper.tamiyo.policies import Policy, draws
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
    metric: Float[Tensor, " N"]
    growth: Float[Tensor, " N"]
    """Parameters of all seeds over those of the bare host."""
    flops: Float[Tensor, " N"]
    """FLOPs of the whole episode."""
    sick: Float[Tensor, " N"]
    """1 if the host failed, else 0."""


def evaluate(
    env: FleetEnv,
    policy: Policy,
    rent: float,
    rng_seed: int = 0,
    budget: float = float("inf"),
    on_step: StepCallback = lambda actions, step: None,
) -> Outcome:
    """Evaluate a policy for one episode of fresh hosts.

    Args:
        env: Fleet to play on. It is reset first, and must not be staggered: some episodes would be cut short.
        policy: Policy that chooses the actions.
        rent: Price of growth in the objective, J = score − rent · ln(1 + growth).
        rng_seed: Seed of sampled actions.
        budget: Largest growth that the policy may reach; unlimited by default.
        on_step: Called after every decision, with the actions and their result.

    Returns:
        The outcome of every host.

    Example:
        >>> env = esper.FleetEnv(esper.Fleet(host, task, range(16)))
        >>> esper.evaluate(env, esper.Heuristic(), rent=0.02).objective.mean()
    """
    signals = env.reset()
    hosts, device = len(signals.age), signals.age.device
    fresh = torch.ones_like(signals.sibling)
    history = remember(empty_history(hosts, device), signals, fresh)
    rents, budgets = (torch.full((hosts,), x, device=device) for x in (rent, budget))
    policy.begin(env.setting, hosts, device)
    alive, found = fresh.clone(), Outcome(*(torch.zeros(len(Outcome._fields), hosts, device=device)))
    for decision in range(env.setting.episode):
        view = View(signals, history, env.setting, rents, budgets)
        action = policy.decide(view, fresh, _uniform(rng_seed, decision, hosts, env.setting, device))
        step = env.step(action)
        on_step(action, step)
        over = (step.terminated | step.truncated) & alive
        final = step.final if step.test is None else on_test(step, env)
        ended = Outcome(
            objective(final, rents) - step.penalty,
            final.score.float(),
            final.metric.float(),
            final.growth.float(),
            found.flops + final.flops.float(),
            step.terminated.float(),
        )
        running = found._replace(flops=torch.where(alive, ended.flops, found.flops))
        found = Outcome(*(torch.where(over, new, old) for new, old in zip(ended, running, strict=True)))
        alive &= ~over
        signals, fresh = step.signals, step.terminated | step.truncated
        history = remember(history, signals, fresh)
    return found


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
        epochs: Decisions in the episode. Policies know how many are left.
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
    return _grown(trainer, policy, epochs, torch.tensor([rent]), torch.tensor([budget]), rng_seed)


def _grown(
    trainer: HostTrainer, policy: Policy, epochs: int, rent: Tensor, budget: Tensor, rng_seed: int
) -> Iterator[EpochReport]:
    cpu, setting, signals = torch.device("cpu"), trainer.setting(epochs), trainer.signals(0)
    fresh = torch.ones_like(signals.sibling)
    history = remember(empty_history(1, cpu), signals, fresh)
    policy.begin(setting, 1, cpu)
    for decision in range(epochs):
        if not bool(signals.vitals.sane):
            raise EsperError(
                f"the host diverged in epoch {trainer.epoch - 1}: its loss or weights are not finite;"
                " train it with a smaller TrainConfig.lr"
            )
        view = View(signals, history, setting, rent, budget)
        (action,) = policy.decide(view, fresh, _uniform(rng_seed, decision, 1, setting, cpu))
        report = trainer.decide(action.tolist())
        yield report
        signals, fresh = trainer.signals(decision + 1, report), torch.zeros_like(fresh)
        history = remember(history, signals, fresh)


def _uniform(rng_seed: int, decision: int, hosts: int, setting: Setting, device: torch.device) -> Float[Tensor, "N A"]:
    """Return the uniform numbers from which a policy samples one decision of every host."""
    keys = key(key(rng_seed, Purpose.ACTION, decision), torch.arange(hosts, device=device))
    return uniform(keys, draws(setting))


def on_test(step: Step, env: FleetEnv) -> Signals:
    """Return the final signals with score and metric on test data; a failed host scores at chance."""
    assert step.test is not None
    chance, guess = env.setting.chance, env.setting.guess
    score = torch.where(step.terminated, chance, step.test.score)
    metric = torch.where(step.terminated, chance if env.fleet.objective.direction == "max" else guess, step.test.metric)
    return step.final._replace(score=score.to(step.final.score), metric=metric.to(step.final.metric))
