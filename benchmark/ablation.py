"""What happens without each ingredient? Spirals, hosts of 4 and 4 units, small enough for two cores.

Every line is one training, scored on fresh hosts that are paired over all lines.
"""

import json
from dataclasses import dataclass

import tyro

from esper.kasmina.gates import LifecycleConfig
from esper.leyline.specs import HostSpec
from esper.simic import CollectConfig, LearnConfig, PPOConfig, RentSchedule, RewardConfig, train_controller
from esper.simic.evaluation import evaluate
from esper.tamiyo import Controller, ControllerConfig
from esper.tamiyo.policies import LearnedPolicy, Never, RandomLegal
from esper.tasks import load_task
from esper.tolaria import EnvConfig, Fleet, FleetEnv, TrainConfig

RENT = 0.02
BASE = {"lr": 1e-3, "entropy_coef": 0.02, "epochs": 4}
VARIANTS: dict[str, dict[str, dict[str, object]]] = {
    "all": {},
    "no comparison of siblings": {"ppo": {"group_baseline": False}},
    "no memory": {"controller": {"recurrent": False}},
    "no entropy bonus": {"ppo": {"entropy_coef": 0.0}},
    "full rent from the start": {"rent": {"start": RENT}},
    "one epoch": {"ppo": {"epochs": 1}},
    "no telemetry": {"controller": {"telemetry": False}},
    "prune at any age": {"lifecycle": {"min_prune_age": 0}},
    "sparse reward": {"reward": {"family": "sparse"}},
    "contribution reward": {"reward": {"family": "contribution"}},
}


@dataclass(frozen=True, kw_only=True)
class Ablation:
    variants: tuple[str, ...] = tuple(VARIANTS)
    seeds: tuple[int, ...] = (1, 2)
    updates: int = 16
    hosts: int = 48
    scored: int = 64


def env_for(num_hosts: int, group: int, rng_seed: int, **lifecycle: int) -> FleetEnv:
    task = load_task("spirals", examples=1000)
    spec = HostSpec("mlp", task.spec.inputs, task.spec.outputs, (4, 4))
    gates = LifecycleConfig(**lifecycle)  # pyright: ignore[reportArgumentType]
    fleet = Fleet(spec, task, range(num_hosts), TrainConfig(lr=1e-2), lifecycle=gates)
    return FleetEnv(fleet, EnvConfig(episode=16, group=group, rng_seed=rng_seed))


def main(asked: Ablation) -> None:
    never = evaluate(env_for(asked.scored, 1, 99), Never(), RENT).objective
    chance = evaluate(env_for(asked.scored, 1, 99), RandomLegal(), RENT).objective
    print(json.dumps({"never": round(never.mean().item(), 4), "random": round(chance.mean().item(), 4)}), flush=True)
    for seed in asked.seeds:
        for name in asked.variants:
            parts: dict[str, dict] = VARIANTS[name]  # pyright: ignore[reportAssignmentType]
            lifecycle = parts.get("lifecycle", {})
            controller = Controller(ControllerConfig(**parts.get("controller", {})), rng_seed=seed)
            config = LearnConfig(
                updates=asked.updates,
                ppo=PPOConfig(**{**BASE, **parts.get("ppo", {})}),
                collect=CollectConfig(horizon=16),
                reward=RewardConfig(**parts.get("reward", {})),
                rent=RentSchedule(**{"end": RENT, "updates": asked.updates // 2, **parts.get("rent", {})}),
                rng_seed=seed,
            )
            *_, last = train_controller([env_for(asked.hosts, 8, 10 + seed, **lifecycle)], controller, config)
            found = evaluate(env_for(asked.scored, 1, 99, **lifecycle), LearnedPolicy(controller), RENT)
            gain = found.objective - never
            row = {
                "variant": name,
                "seed": seed,
                "J": round(found.objective.mean().item(), 4),
                "gain": round(gain.mean().item(), 4),
                "half": round((1.96 * gain.std() / len(gain) ** 0.5).item(), 4),
                "growth": round(found.growth.mean().item(), 2),
                "germinations": round(last.ops["GERMINATE"] / max(last.episodes, 1), 2),
            }
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(tyro.cli(Ablation))
