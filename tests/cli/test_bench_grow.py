"""What growth costs: equal models are compared, and the ratio is right way up."""

import time

import pytest
import torch

from esper.cli.bench_grow import CNN, STATES, SUBJECTS, Loop, Subject, Transformer, compare, interval, loops, show

CPU = torch.device("cpu")
TINY = {"cnn": Subject(CNN, 4, 2, 2), "transformer": Subject(Transformer, 64, 2, 1, 4)}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", TINY)
def test_models_are_equal_but_for_the_state_of_their_growth(name, state):
    plain, other = loops(TINY[name], state, CPU)
    assert [x.shape for x in other.model.parameters()] == [x.shape for x in plain.model.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(plain.model.parameters(), other.model.parameters(), strict=True))
    assert plain.growth is None
    assert not hooks(plain)
    if state == "finished":
        assert other.growth is None
        assert not hooks(other)
        return
    growth = other.growth
    assert growth is not None
    assert growth.is_blending == (state == "blending")
    assert len(growth.births) == (0 if state == "attached" else len(growth.chains))
    assert (state == "grown") == (bool(growth.births) and growth.watch.before is None)
    before = growth.steps
    other.run(4)
    assert growth.steps == before + 4
    assert growth.is_blending == (state == "blending")


@pytest.mark.parametrize("name", TINY)
def test_models_that_are_measured_train(name):
    assert SUBJECTS["cpu"].keys() == TINY.keys()
    subject = SUBJECTS["cpu"][name]
    loop = Loop(subject.model(subject.depth, CPU), subject.data(CPU))
    before = [x.clone() for x in loop.model.parameters()]
    loop.run(1)
    assert not any(map(torch.equal, before, loop.model.parameters()))


def hooks(loop: Loop) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in loop.model.modules())


def test_a_step_that_takes_longer_with_growth_has_a_ratio_above_1():
    runs: list[tuple[str, int]] = []

    def plain(steps: int) -> None:
        runs.append(("plain", steps))
        time.sleep(0.002 * steps)

    def other(steps: int) -> None:
        runs.append(("other", steps))
        time.sleep(0.006 * steps)

    found = compare(plain, other, CPU, pairs=7, burst=2)
    assert 2 < found["ratio"] < 4
    assert found["low"] <= found["ratio"] <= found["high"]
    assert found["milliseconds"] == pytest.approx(6, abs=2)
    assert {steps for _, steps in runs} == {2}
    assert {tuple(name for name, _ in runs[i : i + 2]) for i in range(0, len(runs), 2)} == {
        ("plain", "other"),
        ("other", "plain"),
    }


def test_an_interval_of_the_median_by_hand():
    """Of 100 values, between ranks 40 and 61 lies the median with probability 0.96."""
    assert interval(range(1, 101)) == (40, 61)
    assert interval([3, 1, 2, 6, 5, 4]) == (1, 6)


def test_the_table_shows_every_row(capsys):
    row = {"model": "cnn", "state": "attached", "ratio": 1.0123, "low": 0.99, "high": 1.03, "milliseconds": 4.5}
    show([row], "a machine")
    shown = capsys.readouterr().out
    assert "1.012" in shown
    assert "0.990 to 1.030" in shown
