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
    slot.alpha = 0.25
    torch.testing.assert_close(slot(x), x + 0.25 * first(x))
    torch.testing.assert_close(slot(x, torch.tensor(0.5)), x + 0.5 * first(x))
    with pytest.raises(EsperError, match="slot 's0' already holds a seed"):
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
            EsperError, match=r"'odd' in slot 's0' of shape \(32,\) changes the shape of the stream to \(31,\)"
        ):
            build_seed(SlotSpec("s0", Stream.VECTOR, (32,)), "odd", Graft.ADD)
    finally:
        unregister_blueprint("odd", "vector")


def test_alpha_is_a_number_that_the_state_dict_holds_as_a_tensor():
    slot, other = Slot(SPEC), Slot(SPEC)
    slot.alpha = torch.tensor(0.7)
    assert slot.alpha == torch.tensor(0.7).item()
    assert torch.equal(slot.state_dict()["alpha"], torch.tensor(0.7))
    other.load_state_dict(slot.state_dict())
    assert other.alpha == slot.alpha
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "alpha"'):
        other.load_state_dict({})
    with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "beta"'):
        other.load_state_dict({**slot.state_dict(), "beta": torch.zeros(())})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_number_and_a_tensor_of_the_same_alpha_give_the_same_bits(dtype, rng):
    slot, x = Slot(SPEC), torch.randn(64, 8, generator=rng).to(dtype)
    seed = build_seed(SPEC, "mlp", Graft.ADD).to(dtype)
    for p in seed.parameters():
        p.data.uniform_(-1, 1, generator=rng)
    slot.plant(seed)
    slot.alpha = 0.7
    assert torch.equal(slot(x), slot(x, torch.tensor(0.7)))
    assert torch.equal(slot(x), x + torch.tensor(0.7).to(dtype) * seed(x))
