"""Small fleets and controllers for tests of learning."""

from esper.tamiyo import Controller, ControllerConfig
from esper.tolaria import EnvConfig, Fleet, FleetEnv, TrainConfig
from toys import SPECS, toy_task


def make_env(kind: str, num_hosts: int, **options) -> FleetEnv:
    fleet = Fleet(SPECS[kind], toy_task(kind, 64, 32), range(num_hosts), TrainConfig(batch_size=32))
    return FleetEnv(fleet, EnvConfig(**options))


def controller_for(recurrent: bool = True) -> Controller:
    return Controller(ControllerConfig(recurrent=recurrent, hidden=16, slot_hidden=8), rng_seed=3)
