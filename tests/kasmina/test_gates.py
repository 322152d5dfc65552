"""Each gate opens for its own reasons: worked out by hand for hosts with one slot each."""

import pytest
import torch

from esper.kasmina import LifecycleConfig
from esper.kasmina.gates import GATES
from esper.kasmina.lifecycle import empty_slots, unmeasured
from esper.leyline.actions import Graft
from esper.leyline.lifecycle import Gate
from esper.leyline.state import Vitals

CONFIG = LifecycleConfig(min_training=2, training=4, min_holding=3, min_contribution=0.125, min_prune_age=5, embargo=6)
NO_TRAINING = LifecycleConfig(min_training=0, training=0)
WELL, SICK, UNKNOWN = True, False, torch.nan
HOSTS = {
    Gate.SANE: ({"sane": [WELL, SICK, WELL]}, [True, False, True]),
    Gate.PLANTED: (
        {"blueprint": [0, -1, 2, 0], "healthy": [WELL, WELL, SICK, WELL], "graft": [0, 0, 0, Graft.REPLACE]},
        [True, False, False, False],
    ),
    Gate.READY: (
        {"blueprint": [3, -1, 3, 3], "healthy": [WELL, WELL, SICK, WELL], "graft": [*[Graft.REPLACE] * 3, Graft.GATE]},
        [True, False, False, False],
    ),
    Gate.TRAINED: (
        {"age": [1, 2, 2, 3], "seed_age": [9, 2, 9, 3], "healthy": [WELL, WELL, SICK, WELL]},
        [False, True, False, True],
    ),
    Gate.SETTLED: (
        {
            "alpha": [0.7, 0.7, 0.5, 0.7],
            "alpha_target": [0.7, 0.5, 0.7, 0.5],
            "ramp_elapsed": [1, 3, 3, 0],
            "ramp_epochs": [3, 3, 3, 0],
        },
        [True, False, False, False],
    ),
    Gate.WORTHY: (
        {"age": [2, 3, 3, 3, 4], "seed_age": [9] * 5, "contribution": [0.2, 0.2, 0.125, UNKNOWN, -0.2]},
        [False, True, False, False, False],
    ),
    Gate.RIPE: (
        {"seed_age": [4, 5, 4], "age": [9, 0, 0], "healthy": [WELL, WELL, SICK]},
        [False, True, True],
    ),
    Gate.FADED: (
        {"alpha": [0.5, 0.5, 0.0, 0.5], "ramp_elapsed": [1, 2, 0, 0], "ramp_epochs": [3, 3, 8, 0]},
        [False, True, True, True],
    ),
    Gate.RESTED: ({"age": [5, 6, 7], "seed_age": [0, 0, 0]}, [False, True, True]),
    Gate.OPEN: ({"alpha": [0.2, 0.7], "alpha_target": [0.7, 0.7], "healthy": [SICK, WELL]}, [True, True]),
}


@pytest.mark.parametrize("gate", Gate)
def test_a_gate_opens_for_its_own_reasons_and_for_each_host_by_itself(gate):
    fields, expected = HOSTS[gate]
    columns = {name: torch.tensor(values)[:, None] for name, values in fields.items()}
    state = empty_slots(len(expected), 1)
    state = state._replace(**{name: x for name, x in columns.items() if name in state._fields})
    vitals = {name: x[:, 0] if name == "sane" else x for name, x in columns.items() if name in Vitals._fields}
    opened = GATES[gate](state, unmeasured(state)._replace(**vitals), CONFIG)
    assert opened[:, 0].tolist() == expected


@pytest.mark.parametrize("graft", Graft)
def test_without_silent_training_every_seed_is_ready_at_once(graft):
    state = empty_slots(1, 1)._replace(blueprint=torch.tensor([[0]]), graft=torch.tensor([[int(graft)]]))
    gates = {gate: bool(GATES[gate](state, unmeasured(state), NO_TRAINING)) for gate in (Gate.PLANTED, Gate.READY)}
    assert gates == {Gate.PLANTED: False, Gate.READY: True}
