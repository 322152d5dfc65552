"""A slot holds at most one seed, and a seed keeps the shape of its slot's stream."""

import pytest
import torch

from esper.kasmina import register_blueprint, unregister_blueprint
from esper.kasmina.layers import Linear
from esper.kasmina.slots import Slot, build_seed
from esper.leyline.actions import Graft
from esper.leyline.errors import EsperError
from esper.leyline.specs import SlotSpec, Stream

SPEC = SlotSpec("s0", Stream.VECTOR, (8,))


def test_a_slot_holds_one_seed_and_adds_its_delta_by_alpha(rng):
    slot, x = Slot(SPEC), torch.randn(3, 8, generator=rng)
    first, second = build_seed(SPEC, "mlp", Graft.ADD), build_seed(SPEC, "norm", Graft.MULTIPLY)
    for p in first.parameters():
        p.data.uniform_(generator=rng)
    slot.plant(first)
    assert torch.equal(slot(x), x)
    slot.alpha.fill_(0.25)
    torch.testing.assert_close(slot(x), x + 0.25 * first(x))
    torch.testing.assert_close(slot(x, torch.tensor(0.5)), x + 0.5 * first(x))
    with pytest.raises(EsperError, match="slot 's0' holds a seed already"):
        slot.plant(second)
    assert slot.seed is first
    slot.uproot()
    slot.plant(second)
    assert slot.alpha == 0


def test_a_seed_that_would_change_the_shape_of_this_stream_is_refused():
    """It passes the probe of registration, whose streams are narrower."""
    register_blueprint("odd", lambda slot: Linear(slot.channels, slot.channels - (slot.channels == 32)), "vector")
    try:
        with pytest.raises(
            EsperError, match=r"'odd' in slot 's0' of shape \(32,\) changes the stream's shape to \(31,\)"
        ):
            build_seed(SlotSpec("s0", Stream.VECTOR, (32,)), "odd", Graft.ADD)
    finally:
        unregister_blueprint("odd", "vector")
