"""Gardens say what policies saw and did, for every host of every fleet, whatever their slots and lives."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from esper.leyline.actions import TWIN, Head, Op
from esper.leyline.errors import EsperError
from esper.leyline.lifecycle import Stage
from esper.leyline.specs import HostSpec
from esper.leyline.state import Signals
from esper.simic import CollectConfig, LearnConfig, PPOConfig, RentSchedule, RewardConfig, evaluate
from esper.simic.cloning import load_episodes, save_episodes
from esper.simic.garden import OP_LETTERS, STAGE_LETTERS, Decisions, cells, gardens
from esper.simic.rollout import Collector, record
from esper.simic.train import Training
from esper.tamiyo.policies import FixedPlan, Never, PlanStep, RandomLegal
from esper.tolaria import EnvConfig, Fleet, FleetEnv, TrainConfig
from small_fleets import begun, controller_for, make_env
from toys import toy_task

HORIZON = 9
PLAIN = LearnConfig(ppo=PPOConfig(gamma=1.0), reward=RewardConfig(gamma=1.0), collect=CollectConfig(horizon=3))
"""Lives on a budget are not discounted."""
TWINS = FixedPlan(
    [
        PlanStep(0, {"op": "GERMINATE", "slot": "s1", "blueprint": TWIN, "tempo": 3}),
        PlanStep(1, {"op": "GERMINATE", "slot": "s0", "blueprint": "mlp"}),
    ]
)


def fleets() -> list[FleetEnv]:
    """Hosts with two, three and two slots, whose lives are staggered, alike, and on a budget."""
    three = HostSpec("mlp", (6,), 3, (8, 8, 8))
    wide = Fleet(three, toy_task("mlp", 64, 32), range(3), TrainConfig(batch_size=32))
    return [
        make_env("cnn1d", 8, episode=5, group=2, staggered=True, rng_seed=1),
        FleetEnv(wide, EnvConfig(episode=4, rng_seed=2)),
        make_env("gpt", 2, budget=8.0, rng_seed=3),
    ]


def played() -> tuple[Collector, list]:
    """Two rollouts in a row. Random ops fill two fleets; on the third, twins and other seeds are planted."""
    controller, policies = controller_for(), [RandomLegal(), RandomLegal(), TWINS]
    found = begun(fleets(), controller, rng_seed=4, horizon=HORIZON)
    return found, [record(found, policies, 0.02, PLAIN.reward) for _ in range(2)]


def cells_of(signals: Signals, twin: int) -> str:
    slots, text = signals.slots, ""
    for n, row in enumerate(slots.stage.tolist()):
        for s, stage in enumerate(row):
            letter = Stage(stage).name[0]
            text += letter.lower() if slots.blueprint[n, s] == twin else letter
            text += str(round(9 * slots.alpha[n, s].item()))
    return text


def test_gardens_are_what_happened():
    """Both rollouts, decision by decision, against fleets in which the same actions are taken again."""
    collector, rollouts = played()
    told = [gardens(collector, rollout) for rollout in rollouts]
    first, planted = 0, Counter[str]()
    for n, env in enumerate(fleets()):
        space, hosts = env.setting.space, slice(first, first := first + env.fleet.num_hosts)
        signals, fresh = env.reset(), torch.ones_like(env.fleet.everyone)
        for rollout, (reports, _) in zip(rollouts, told, strict=True):
            report, actions = reports[n], rollout.choice.action[:, hosts]
            assert (report.fleet, report.slots, report.hosts) == (n, space.slots, env.fleet.num_hosts)
            for t in range(HORIZON):
                assert report.cells[t] == cells_of(signals, space.twin)
                assert report.ops[t] == "".join(Op(op).name[0] for op in actions[t, :, Head.OP].tolist())
                assert report.scores[t] == tuple(round(score, 3) for score in signals.score.tolist())
                assert report.born[t] == tuple(fresh.nonzero()[:, 0].tolist())
                step = env.step(actions[t])
                newborn = step.final.slots.births > signals.slots.births
                planted.update(space.blueprints[k] for k in step.final.slots.blueprint[newborn].tolist())
                signals, fresh = step.signals, step.terminated | step.truncated
    assert Counter(told[0][1]) + Counter(told[1][1]) == planted
    assert planted[TWIN] > 0
    assert sum(rollout.sick.sum() for rollout in rollouts) == 0, "the seeds of hosts that fail are not among the births"
    assert told[0][1].keys() == {name for env in fleets() for name in env.setting.space.blueprints}, "zeros are told"
    every = "".join(report.cells[t] for reports, _ in told for report in reports for t in range(HORIZON))
    assert set(every) > set("DTBb0"), "twins go without training"
    assert set(every) & set("123456789")
    assert len({report.born for reports, _ in told for report in reports}) > 4, "lives begin at different times"
    assert [report.label for report in told[0][0]] == ["toy cnn1d, cnn1d 4-6", "toy mlp, mlp 8-8-8", "toy gpt, gpt 8"]


def test_a_cell_is_a_letter_and_a_digit():
    stage = np.array([[[Stage.DORMANT, Stage.BLENDING], [Stage.FOSSILIZED, Stage.PRUNED]]])
    alpha = np.array([[[0.0, 0.5], [1.0, 0.97]]])
    twin = np.array([[[False, True], [False, True]]])
    nothing = np.zeros((1, 2))
    found = cells(Decisions(stage, alpha, twin, nothing, nothing, nothing, nothing))
    assert found in [("D0b4F9p9",), ("D0b5F9p9",)]


def test_stages_and_ops_are_told_apart_by_their_first_letters():
    assert bytes(STAGE_LETTERS) == b"DGTBHFPER"
    assert bytes(OP_LETTERS) == b"WGSPFA"


def test_the_report_of_an_update_holds_the_gardens_of_its_rollout():
    training = Training(fleets(), controller_for(), PLAIN)
    for _ in range(2):
        report = training.step()
        assert [len(garden.ops) for garden in report.garden] == [3, 3, 3]
        told = Counter("".join(text for garden in report.garden for text in garden.ops))
        assert {name[0]: count for name, count in report.ops.items() if count} == told
        assert sum(report.planted.values()) == report.ops["GERMINATE"] > 0
        assert (report.brief().garden, report.brief().lives, report.brief().planted) == ((), (), report.planted)


def test_episodes_saved_by_older_versions_have_no_twins(tmp_path):
    collector, (rollout, _) = played()
    save_episodes(tmp_path / "new", rollout, "some")
    again, _ = load_episodes(tmp_path / "new")
    assert gardens(collector, again) == gardens(collector, rollout)
    save_episodes(tmp_path / "old", rollout._replace(twin=None), "some")
    again, _ = load_episodes(tmp_path / "old")
    (*_, here), (*_, there) = gardens(collector, again)[0], gardens(collector, rollout)[0]
    assert again.twin is None
    assert here.cells == tuple(text.upper() for text in there.cells) != there.cells


def without_times(report):
    return replace(report, seconds={})


@pytest.mark.parametrize("prices", [(), (0.0, 0.05, 0.4)])
def test_measuring_hosts_that_never_grow_leaves_no_trace(prices):
    """Bit for bit: reports, weights of the controller, and of all hosts in the middle of their lives."""
    collect = CollectConfig(horizon=4, prices=prices)
    config = replace(PLAIN, collect=collect, rent=RentSchedule(start=0.1, end=0.3, updates=2), rng_seed=5)
    plain, measured = (Training(fleets(), controller_for(), config) for _ in range(2))
    measured.never()
    for _ in range(3):
        assert without_times(plain.step()) == without_times(measured.step())
    for ours, theirs in zip(plain.controller.parameters(), measured.controller.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    for ours, theirs in zip(plain.fleets.envs, measured.fleets.envs, strict=True):
        assert torch.equal(ours.fleet.trunk.flat, theirs.fleet.trunk.flat)
        assert torch.equal(ours.state.births, theirs.state.births)


def test_hosts_that_never_grow_are_those_of_the_training():
    """The mean of all fleets counts, not that of all hosts. Staggered lives are whole here."""
    heard: list[str] = []
    training = Training(fleets(), controller_for(), PLAIN)
    found = training.never(lambda env: heard.append(env.fleet.task.name))
    means = []
    for env in fleets():
        whole = FleetEnv(env.fleet, replace(env.config, staggered=False))
        means.append(evaluate(whole, Never(), rent=0.0).objective.mean().item())
    assert found == pytest.approx(np.mean(means), abs=1e-7)
    assert len({*means}) == 3
    assert heard == ["toy cnn1d"] * 5 + ["toy mlp"] * 4 + ["toy gpt"] * 8


def test_hosts_that_never_grow_are_measured_before_the_first_update():
    training = Training([make_env("mlp", 2, episode=3)], controller_for(), PLAIN)
    training.step()
    with pytest.raises(EsperError, match="never must be measured before the first update, not after 1 of them"):
        training.never()
