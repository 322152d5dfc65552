"""The committed commands work at a small size: many random actions, training with sb3-contrib, throughput."""

import re
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmark"


@pytest.fixture
def commands(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARK))
    yield
    for name in ("env_soak", "env_throughput", "maskable_ppo"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("host", ["mlp", "gpt"])
def test_random_actions_lead_to_no_invalid_state(commands, capsys, host):
    from env_soak import Soak

    asked = {"task": "phrases", "widths": (8,), "slots": 2} if host == "gpt" else {}
    Soak(actions=480, hosts=16, budget=9.0, examples=120, host=host, **asked).run()
    told = capsys.readouterr().out
    refused, ended = map(int, re.findall(r"(\d+) refused (\d+) episodes", told.replace(",", ""))[0])
    assert "no invalid state" in told
    assert 100 < refused < 400
    assert ended > 16


def test_a_soak_notices_states_that_cannot_be(commands):
    from env_soak import Soak

    class Broken(Soak):
        def require_valid(self, envs, moment, actions, legal):
            envs.lives.fleet.state.alpha[0, 0] = 2.0
            super().require_valid(envs, moment, actions, legal)

    with pytest.raises(AssertionError, match="alpha is outside 0 to 1"):
        Broken(actions=100, hosts=10).run()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:We recommend using a `batch_size`")
def test_maskable_ppo_and_ours_are_compared(commands, capsys):
    from maskable_ppo import Race

    Race(
        learners=("maskable_ppo", "esper"), seeds=(0, 1), decisions=96, hosts=4, fresh=4, examples=200, budget=3.0
    ).run()
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [row[1].strip() for row in rows] == ["policy", "random", "never", "maskable_ppo", "esper"]
    for row in rows[3:]:
        assert re.fullmatch(r"[+-]\d\.\d{3} \([+-]\d\.\d{3} to [+-]\d\.\d{3}\)", row[3].strip())
        assert float(row[8].replace(",", "")) > 0


def test_throughput_is_a_share_of_the_fleets(commands, capsys):
    from env_throughput import Question

    Question(tasks=("spirals-6",), hosts=(4,), rounds=3, steps=1).run()
    share = re.findall(r"([\d.]+)% \|$", capsys.readouterr().out.strip())
    assert 20 < float(share[0]) < 300
