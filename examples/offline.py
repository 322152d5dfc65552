"""Learn a growth policy offline: record the heuristic and random plans on spirals, learn from the recordings alone with
implicit Q-learning, and compare the result with hosts that never grow.

python examples/offline.py [episodes.safetensors]
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import esper
from esper.simic.search import random_plans

RENT = 0.02
"""Price of growth in J = score - rent * ln(1 + growth)."""
PLANS = 7
RECORDED, FRESH = 1_000, 2_000
"""Random seeds of the hosts that episodes are recorded on, and of those that are compared."""


def build_env(group: int, hosts: int, rng_seed: int) -> esper.FleetEnv:
    """An env with `hosts` groups of identical hosts, one for each of the policies that are recorded side by side."""
    fleet = esper.recipe("spirals").fleets[0]
    env = replace(fleet.env, group=group, rng_seed=rng_seed)
    return replace(fleet, hosts=hosts * group, env=env).build(esper.Engine())


def main(path: Path) -> None:
    example = build_env(1, 1, RECORDED)
    policies = [esper.Heuristic(), *random_plans(example.setting, PLANS)]
    controller = esper.Controller(esper.ControllerConfig(hidden=32, slot_hidden=16))
    env = build_env(len(policies), 16, RECORDED)
    rollout = esper.record_episodes(env, policies, controller, RENT, esper.RewardConfig(), rng_seed=0)
    esper.save_episodes(path, rollout, "heuristic and random plans")
    print(f"recorded {rollout.reward.shape[1]} episodes of {len(policies)} policies into {path}")

    episodes, _ = esper.load_episodes(path)
    config = esper.OfflineConfig(epochs=40, beta=30.0)
    first, *_, last = esper.learn_offline(controller, [episodes], config)
    print(f"learned offline: policy loss {first.policy_loss:.2f} -> {last.policy_loss:.2f}")

    for policy in (esper.Never(), esper.LearnedPolicy(controller)):
        outcome = esper.evaluate(build_env(1, 48, FRESH), policy, RENT)
        print(f"{policy.name:>7}: J {outcome.objective.mean():.3f}, growth {outcome.growth.mean():.2f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp()) / "episodes.safetensors")
