"""FLOPs by hand: two for each product of a weight and an activation, or of two activations."""

import pytest

from esper.kasmina.cost import host_flops, seed_flops
from esper.leyline.actions import Graft
from esper.leyline.specs import SlotSpec, Stream
from toys import SPECS

TOKENS = 6
BLOCK = TOKENS * 8 * 24 + 2 * TOKENS * TOKENS * 8 + 3 * TOKENS * 8 * 8
HOSTS = {
    "mlp": 6 * 8 + 8 * 8 + 8 * 3,
    "cnn1d": 6 * (5 * 2 * 4) + 3 * (5 * 4 * 6) + 6 * 3,
    "cnn2d": 6 * 7 * (9 * 1 * 4) + 3 * 3 * (9 * 4 * 6) + 6 * 3,
    "transformer": 2 * BLOCK + TOKENS * 8 * 5,
}


@pytest.mark.parametrize("kind", SPECS)
def test_a_host_costs_its_matrix_products(kind):
    assert host_flops(SPECS[kind]) == 2 * HOSTS[kind]


def test_a_gate_costs_something_and_the_other_grafts_nothing():
    """A low-rank seed of 8 channels goes through 2 and back; the gate is one more output."""
    slot = SlotSpec("s0", Stream.VECTOR, (8,))
    cost = {graft: seed_flops(slot, "low_rank", graft) for graft in Graft}
    through = 2 * (8 * 2 + 2 * 8)
    assert cost == {Graft.ADD: through, Graft.MULTIPLY: through, Graft.GATE: through + 2 * 8}
