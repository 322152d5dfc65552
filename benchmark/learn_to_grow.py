"""Does a controller learn to grow MNIST-1D hosts? A map of what plans pay, a training, a paired comparison.

The comparison's hosts are fresh: neither the search for a plan nor the training has seen their weights or batches.
"""

import json
import sys
import time
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import tyro

from esper.leyline.specs import HostSpec
from esper.simic import CollectConfig, LearnConfig, PPOConfig, RentSchedule, RewardConfig, train
from esper.simic.cloning import CloneConfig, clone
from esper.simic.rollout import record_lives
from esper.simic.search import best_plan, compare, random_plans, single_plans
from esper.tamiyo import Controller, ControllerConfig
from esper.tamiyo.files import save_controller
from esper.tamiyo.policies import FixedPlan, Heuristic, Learned, Never, RandomLegal
from esper.tasks import load_task
from esper.tolaria import Engine, EnvConfig, Fleet, FleetEnv, TrainConfig

SEARCH, TRAIN, SCORE = 1_000, 2_000, 3_000
"""Bands of rng_seeds: no host is in two of them."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    device: str = "cpu"
    seed: int = 1
    """Of the controller, of its training, and of the plans that it is compared with."""
    episode: int = 20
    batch: int = 128
    lr: float = 5e-3
    rent: float = 0.02
    hosts: int = 256
    group: int = 16
    updates: int = 60
    ramp: int = 0
    """Updates over which the rent rises from 0."""
    ppo: PPOConfig = PPOConfig(lr=1.5e-3, entropy_coef=0.02, entropy_end=0.002, anneal=45, epochs=4, minibatches=16)
    reward: RewardConfig = RewardConfig()
    controller: ControllerConfig = ControllerConfig(hidden=128)
    start: Literal["scratch", "plans"] = "scratch"
    """From random weights, or as a clone of the best of the searched plans."""
    plans: int = 50
    searched: int = 12
    """Hosts that each plan is tried on."""
    scored: int = 100
    """Fresh hosts for each policy at the end."""
    minutes: float = 10.0
    """Training ends after this time, whatever was planned."""
    map: bool = False
    """Only map what single plans and the search's plans pay."""
    quick: bool = False
    """A few minutes of nothing, to see that it runs."""
    save: str | None = None


def env_for(x: Experiment, num_hosts: int, group: int, rng_seed: int) -> FleetEnv:
    task = load_task("mnist1d")
    spec = HostSpec("cnn1d", task.spec.inputs, task.spec.outputs, (8, 8, 8))
    engine = Engine.on(x.device)
    fleet = Fleet(spec, task, range(num_hosts), TrainConfig(batch_size=x.batch, lr=x.lr), engine=engine)
    return FleetEnv(fleet, EnvConfig(episode=x.episode, group=group, rng_seed=rng_seed))


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def payoffs(x: Experiment) -> None:
    """What every single plan pays on 12 hosts, and, chosen there, the best ones on fresh hosts."""
    setting = env_for(x, 2, 1, 0).setting
    named = [Never(), RandomLegal(), Heuristic()]
    plans = [*single_plans(setting, (0, x.episode // 4, x.episode // 2)), *random_plans(setting, x.plans, x.seed)]
    policies = [*named, *plans]
    found = compare(env_for(x, len(policies) * x.searched, len(policies), SEARCH), policies, x.rent)
    order = sorted(range(len(policies)), key=lambda i: -found[i].objective.mean().item())
    never = found[0].objective
    for rank, i in enumerate(order):
        o = found[i]
        text = str(policies[i]) if isinstance(policies[i], FixedPlan) else policies[i].name
        gain = o.objective - never
        say(
            rank=rank,
            plan=text,
            J=round(o.objective.mean().item(), 4),
            gain=round(gain.mean().item(), 4),
            se=round((gain.std() / len(gain) ** 0.5).item(), 4),
            score=round(o.score.mean().item(), 4),
            growth=round(o.growth.mean().item(), 3),
        )
    top = [Never(), *(policies[i] for i in order[:7])]
    for policy, o in zip(top, compare(env_for(x, 8 * x.scored, 8, SCORE), top, x.rent), strict=True):
        text = str(policy) if isinstance(policy, FixedPlan) else policy.name
        say(
            fresh=text,
            J=round(o.objective.mean().item(), 4),
            se=round((o.objective.std() / len(o.objective) ** 0.5).item(), 4),
        )


def learn(x: Experiment) -> None:
    setting = env_for(x, 2, 1, 0).setting
    plans = random_plans(setting, x.plans, x.seed)
    plan, means = best_plan(env_for(x, x.plans * x.searched, x.plans, SEARCH + x.seed), plans, x.rent)
    say(best=str(plan), J=round(means.max().item(), 4), median=round(means.median().item(), 4))
    controller = Controller(x.controller, rng_seed=x.seed).to(x.device)
    if x.start == "plans":
        imitate(x, controller, [plans[i] for i in means.argsort(descending=True)[:4]])
    config = LearnConfig(
        updates=x.updates,
        ppo=x.ppo,
        reward=x.reward,
        collect=CollectConfig(horizon=x.episode),
        rent=RentSchedule(end=x.rent, updates=x.ramp),
        rng_seed=x.seed,
    )
    started = time.perf_counter()
    for report in train([env_for(x, x.hosts, x.group, TRAIN + x.seed)], controller, config):
        say(
            update=report.update,
            t=round(time.perf_counter() - started, 1),
            J=report.objective and round(report.objective, 4),
            score=report.score and round(report.score, 4),
            growth=report.growth and round(report.growth, 3),
            entropy=round(report.entropy, 3),
            kl=round(report.kl, 4),
            ev=round(report.explained_variance or 0, 3),
            ops=list(report.ops.values()),
            seconds={name: round(s, 2) for name, s in report.seconds.items()},
        )
        if time.perf_counter() - started > 60 * x.minutes:
            break
    trained = time.perf_counter() - started
    if x.save:
        save_controller(x.save, controller)
    score(x, controller, plan, trained)


def imitate(x: Experiment, controller: Controller, plans: list[FixedPlan]) -> None:
    env = env_for(x, 64 * len(plans), len(plans), SEARCH + 500 + x.seed)
    rollout = record_lives(env, plans, controller, x.rent, x.reward, x.seed)
    *_, last = clone(controller, [rollout], CloneConfig(epochs=60, rng_seed=x.seed))
    say(cloned=round(last.held_out_loss, 3), likelihood=last.likelihood)


def score(x: Experiment, controller: Controller, plan: FixedPlan, trained: float) -> None:
    policies = [
        Never(),
        RandomLegal(),
        Heuristic(),
        plan,
        Learned(controller),
        Learned(controller, greedy=True, name="greedy"),
    ]
    names = ["never", "random", "heuristic", "best plan", "learned", "learned, greedy"]
    found = compare(env_for(x, len(policies) * x.scored, len(policies), SCORE + x.seed), policies, x.rent)
    for name, o in zip(names, found, strict=True):
        against = {}
        for other, rival in zip(names, found, strict=True):
            if name.startswith("learned") and not other.startswith("learned"):
                gain = o.objective - rival.objective
                half = 1.96 * gain.std() / len(gain) ** 0.5
                against[other] = [round(v.item(), 4) for v in (gain.mean(), gain.mean() - half, gain.mean() + half)]
        say(
            policy=name,
            seed=x.seed,
            J=round(o.objective.mean().item(), 4),
            score=round(o.score.mean().item(), 4),
            growth=round(o.growth.mean().item(), 3),
            sick=round(o.sick.mean().item(), 3),
            minutes=round(trained / 60, 2),
            **({"against": against} if against else {}),
        )


if __name__ == "__main__":
    asked = tyro.cli(Experiment)
    if asked.quick:
        asked = replace(asked, hosts=8, group=4, updates=2, plans=3, searched=2, scored=2, episode=8)
    print(json.dumps(asdict(asked)), file=sys.stderr)
    (payoffs if asked.map else learn)(asked)
