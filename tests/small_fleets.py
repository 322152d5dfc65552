"""Small fleets and controllers for tests of learning."""

import torch

from esper.simic.rollout import CollectConfig, Collector, Rollout
from esper.simic.sequences import Sequences, to_sequences
from esper.tamiyo import Controller, ControllerConfig
from esper.tolaria import EnvConfig, Fleet, FleetEnv, TrainConfig
from toys import SPECS, toy_task


def make_env(kind: str, num_hosts: int, **options) -> FleetEnv:
    fleet = Fleet(SPECS[kind], toy_task(kind, 64, 32), range(num_hosts), TrainConfig(batch_size=32))
    return FleetEnv(fleet, EnvConfig(**options))


def controller_for(recurrent: bool = True) -> Controller:
    return Controller(ControllerConfig(recurrent=recurrent, hidden=16, slot_hidden=8), rng_seed=3)


def begun(envs: list[FleetEnv], controller: Controller, rent: float = 0.0, rng_seed: int = 0, **config) -> Collector:
    """Return fleets that have been reset, ready for a rollout."""
    fleets = Collector(envs, controller, CollectConfig(**config), rng_seed)
    fleets.begin(rent)
    return fleets


def sequences_of(rollout: Rollout, controller: Controller, advantage: torch.Tensor | None = None) -> Sequences:
    """Cut a rollout into sequences; by default, rewards stand for advantages."""
    advantage = rollout.reward if advantage is None else advantage
    blank = controller.blank(rollout.reward.shape[1], torch.device("cpu"))
    return to_sequences(rollout, advantage, rollout.reward, controller.config.recurrent, blank)
