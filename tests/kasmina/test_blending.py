"""Curves run from exactly 0 to exactly 1, ramps end exactly on target, and grafts are what DESIGN says."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.kasmina.blending import bend, blend, delta, ramp
from esper.leyline.actions import Curve, Graft


@pytest.mark.parametrize("curve", Curve)
def test_a_curve_is_monotone_and_onto(curve):
    progress = torch.linspace(0, 1, 101)
    bent = bend(progress, torch.full((101,), curve))
    assert bent[0] == 0
    assert bent[-1] == 1
    assert (bent.diff() > 0).all()
    torch.testing.assert_close(bent + bent.flip(0), torch.ones(101))


QUARTER = {
    Curve.LINEAR: 0.25,
    Curve.COSINE: 0.146447,  # (1 - cos(pi / 4)) / 2
    Curve.SIGMOID_GENTLE: 0.149146,  # s(x) = 1 / (1 + exp(-x)): (s(-1.5) - s(-3)) / (s(3) - s(-3))
    Curve.SIGMOID: 0.045177,  # (s(-3) - s(-6)) / (s(6) - s(-6))
    Curve.SIGMOID_SHARP: 0.002466,  # (s(-6) - s(-12)) / (s(12) - s(-12))
}


def test_curves_at_a_quarter():
    bent = bend(torch.full((len(Curve),), 0.25), torch.tensor(list(Curve)))
    assert dict(zip(Curve, bent.tolist(), strict=True)) == pytest.approx(QUARTER, abs=1e-6)


def test_the_styles_ramp_bends_first_and_the_curve_second():
    """Half a cosine at 1/3 is a quarter, which the sigmoid makes 0.045177; the other way round it would be 0.034."""
    start, target, third = torch.tensor([[0.2], [0.7], [1 / 3]])
    alpha = ramp(start, target, third, torch.tensor([Curve.COSINE]), torch.tensor([Curve.SIGMOID]))
    assert alpha.item() == pytest.approx(0.2 + 0.5 * 0.045177, abs=1e-6)


@given(st.floats(0, 1, width=32), st.floats(0, 1, width=32), st.sampled_from(Curve), st.sampled_from(Curve))
def test_a_ramp_starts_and_ends_exactly_and_never_overshoots(start, target, style_ramp, curve):
    progress = torch.linspace(0, 1, 9)
    full = torch.ones(9)
    alphas = ramp(start * full, target * full, progress, (style_ramp * full).long(), (curve * full).long())
    assert alphas[0] == start
    assert alphas[-1] == target
    low, high = sorted((start, target))
    assert ((alphas >= low - 1e-6) & (alphas <= high + 1e-6)).all()


def test_grafts(rng):
    host, f, g = (torch.randn(4, 3, generator=rng) for _ in range(3))
    assert torch.equal(delta(Graft.ADD, host, f), f)
    assert torch.equal(delta(Graft.MULTIPLY, host, f), host * f.tanh())
    assert torch.equal(delta(Graft.GATE, host, f, g), g.sigmoid() * f)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_stream_keeps_its_dtype(dtype):
    out = blend(torch.ones(2, 3, dtype=dtype), torch.ones(2, 3), torch.tensor(0.5))
    assert out.dtype == dtype
    assert (out == 1.5).all()
