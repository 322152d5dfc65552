"""Arms that depend on what others did: bare hosts with as many FLOPs, grown topologies from scratch, replays."""

import math
from collections.abc import Sequence

import torch

from esper.exam.runs import ArmResult, Replay, run_arm
from esper.exam.sitting import Played, Sitting
from esper.exam.sizes import resized
from esper.exam.verdicts import NEVER, RIGHT_SIZE
from esper.leyline.state import SlotState
from esper.simic.evaluation import evaluate
from esper.tamiyo.policies import Never, Policy
from esper.tolaria.static_env import StaticEnv


def as_long(arm: ArmResult, cost: float) -> int:
    """Return the number of epochs that `cost` FLOPs buy an arm."""
    return max(1, round(arm.episode * cost / arm.mean("flops")))


def longer(sitting: Sitting, played: Played) -> ArmResult:
    """Train bare hosts for as many FLOPs as the policy spends."""
    epochs = as_long(played.others[NEVER], played.ours.mean("flops"))
    (lr,) = sitting.tuner.tuned([[Never()]], epochs)
    return sitting.play("longer", [Never()], lr, epochs)


def static(sitting: Sitting, played: Played) -> ArmResult:
    """Train the policy's topologies from scratch for as many epochs."""
    return from_scratch(sitting, played, "static", played.ours.episode)


def static_longer(sitting: Sitting, played: Played) -> ArmResult:
    """Train the policy's topologies from scratch for as many FLOPs."""
    epochs = as_long(played.others["static"], played.ours.mean("flops"))
    return from_scratch(sitting, played, "static, longer", epochs)


def from_scratch(sitting: Sitting, played: Played, name: str, episode: int) -> ArmResult:
    """Train the policy's topologies from scratch, at the best learning rate for those grown on tuning hosts."""
    tuner, lr = sitting.tuner, sitting.tuner.grid[0]
    if len(tuner.grid) > 1:
        purpose = f"learning rate of {name}, {episode} epochs"
        (lr,) = tuner.chosen(purpose, lambda: [tuner.best_rate(tried_from_scratch(sitting, played.grown(), episode))])
    sitting.tell(f"{name} on the hosts that count")
    runs = []
    for run in played.ours.runs:
        env = sitting.hosts.scored(lr, episode)
        runs.append(sitting.run(StaticEnv(env.fleet, run.topology, env.config, env.test), Never(), name))
    return ArmResult(name, runs, episode, lr)


def grown_on_tuning_hosts(sitting: Sitting, policies: Sequence[Policy], lr: float) -> list[SlotState]:
    """Return the topologies that each training of a policy grows on its tuning hosts."""
    hosts, found = sitting.tuner.shared_by(len(policies)), []
    for n, policy in enumerate(policies):
        env = sitting.hosts.charged(sitting.hosts.tuning(hosts, [lr], training=n), [policy])
        found.append(run_arm(env, policy, sitting.rent, sitting.rng_seed).topology)
    return found


def tried_from_scratch(sitting: Sitting, grown: Sequence[SlotState], episode: int) -> list[list[float]]:
    """Return the mean validation J of topologies from scratch, for each training and learning rate."""
    hosts = sitting.tuner.shared_by(len(grown))

    def tried(training: int, rate: float) -> float:
        env = sitting.hosts.tuning(hosts, [rate], training, episode)
        again = StaticEnv(env.fleet, grown[training], env.config)
        return evaluate(again, Never(), sitting.rent).objective.mean().item()

    return [[tried(n, rate) for rate in sitting.tuner.grid] for n in range(len(grown))]


def replay(sitting: Sitting, played: Played) -> ArmResult:
    """Repeat the actions of each training on other hosts."""
    sitting.tell("replay")
    ours, runs = played.ours, []
    for n, run in enumerate(ours.runs):
        env = sitting.hosts.charged(sitting.hosts.others(ours.lr, training=n), [played.policies[n]])
        runs.append(sitting.run(env, Replay(run.actions), "replay"))
    return ArmResult("replay", runs, ours.episode, ours.lr, paired=False)


def right_size(sitting: Sitting, played: Played) -> ArmResult:
    """Train hosts of the teacher's shape, which pay rent for their size beyond the bare host's."""
    taught = resized(sitting, (int(sitting.facts["teacher_width"]),), host="mlp")
    (lr,) = taught.tuner.tuned([[Never()]])
    arm = taught.play(RIGHT_SIZE, [Never()], lr)
    size, bare = (s.hosts.example.fleet.trunk.layout.num_parameters for s in (taught, sitting))
    (run,), growth = arm.runs, size / bare - 1
    paid = run.outcome._replace(
        objective=run.outcome.objective - sitting.rent * math.log1p(growth),
        growth=torch.full_like(run.outcome.growth, growth),
    )
    return arm._replace(runs=[run._replace(outcome=paid)], paired=False)
