"""Exams are paired and scored on test data, and record what happened."""

from itertools import islice

import pytest
import torch

from esper.exam.runs import EpisodeRecorder, Replay, run_arm
from esper.leyline.actions import Head, Op
from esper.leyline.state import NO_BLUEPRINT, Split
from esper.simic.evaluation import evaluate, on_test
from esper.simic.lives import Transition, episode, newborn
from esper.tamiyo.network import Choice
from esper.tamiyo.policies import FixedPlan, Heuristic, LearnedPolicy, Never, PlanStep, RandomLegal, SideBySide
from esper.tolaria import EnvConfig, Fleet, FleetEnv, TrainConfig
from esper.tolaria.static_env import StaticEnv
from small_fleets import controller_for
from toys import SPECS, toy_task

PLAN = FixedPlan([PlanStep(1, {"op": "GERMINATE", "slot": "s0", "blueprint": "mlp", "tempo": 3})])


def exam_env(test: Split | None = None, episode: int = 6, num_hosts: int = 4) -> FleetEnv:
    task = toy_task("mlp", 64, 32)
    fleet = Fleet(SPECS["mlp"], task, range(num_hosts), TrainConfig(batch_size=32))
    test = Split(*(x.flip(0)[:20] for x in task.train)) if test is None else test
    return FleetEnv(fleet, EnvConfig(episode=episode), test)


def test_nothing_but_the_score_depends_on_test_data():
    """A policy cannot see test data: with other test data it makes identical decisions."""
    task = toy_task("mlp", 64, 32)
    right = Split(task.train.x[:20], task.train.y[:20])
    wrong = Split(right.x * -3 + 1, (right.y + 1) % 3)
    for policy in (Heuristic(), RandomLegal()):
        one, other = (run_arm(exam_env(test), policy, 0.02, num_recorded=4) for test in (right, wrong))
        assert one.lives == other.lives
        assert all(torch.equal(a, b) for a, b in zip(one.actions, other.actions, strict=True))
        assert not torch.equal(one.outcome.score, other.outcome.score)
        assert torch.equal(one.outcome.growth, other.outcome.growth)


def test_the_score_is_that_of_the_grown_host_on_test_data():
    """The outcome equals an evaluation of the fleet on test data just before its episodes end."""
    env = exam_env(episode=3)
    outcome = evaluate(env, PLAN, 0.02)
    other = exam_env(episode=9)  # continues where the first one ends
    assert other.test is not None
    list(islice(episode(other, PLAN, 0.02), 3))
    measured = other.fleet.evaluate(other.test)
    assert torch.equal(outcome.metric, measured.metric.float())


def test_lives_are_told_as_they_were():
    one, other = (run_arm(exam_env(), policy, rent=0.02, num_recorded=2) for policy in (PLAN, Never()))
    assert [(life.arm, life.host) for life in (*one.lives, *other.lives)] == [
        ("plan", 0),
        ("plan", 1),
        ("never", 0),
        ("never", 1),
    ]
    grown, never = one.lives[0].epochs, other.lives[0].epochs
    assert [epoch.epoch for epoch in grown] == list(range(6))
    assert [epoch.op for epoch in grown[:3]] == ["WAIT", "GERMINATE", "WAIT"]
    assert grown[0] == never[0], "until it grows, a host equals its pair"
    assert grown[1].slots[0].blueprint == "mlp"
    assert grown[1].parameters > never[1].parameters == grown[0].parameters
    assert {epoch.slots[0].stage for epoch in never} == {"DORMANT"}
    assert all(epoch.slots[0].contribution is None for epoch in never)
    assert not other.outcome.growth.any()
    assert one.topology.alpha[0].tolist() == [slot.alpha for slot in grown[-1].slots], "as they were at the very end"
    assert one.topology.seed_age[0].tolist() == [5, 0]


class Watched(LearnedPolicy):
    """A learned policy of which every choice is kept, with its log-probabilities."""

    def begin(self, setting, num_hosts, device) -> None:
        super().begin(setting, num_hosts, device)
        self.choices: list[Choice] = []
        act = type(self.controller).act

        def kept(*arguments):
            choice, memory = act(self.controller, *arguments)
            self.choices.append(choice)
            return choice, memory

        self.controller.act = kept


@pytest.mark.parametrize("recurrent", [True, False])
def test_recorded_probabilities_are_those_that_the_policy_acted_by(recurrent):
    policy = Watched(controller_for(recurrent))
    run = run_arm(exam_env(), policy, rent=0.02, rng_seed=2, num_recorded=3)
    choices = exam_env().setting.space.choices
    heads = (Head.OP, Head.SLOT, Head.BLUEPRINT, Head.STYLE, Head.TEMPO)
    for host, life in enumerate(run.lives):
        for epoch, choice in zip(life.epochs, policy.choices, strict=True):
            assert list(epoch.probabilities) == [head.name.lower() for head in heads]
            for head in heads:
                told = epoch.probabilities[head.name.lower()]
                assert tuple(told) == choices[head]
                assert sum(told.values()) == pytest.approx(1, abs=1e-3)
                made = choices[head][choice.action[host, head]]
                assert told[made] == pytest.approx(choice.log_probs[host, head].exp().item(), abs=1e-4)
    ops = {name: p for epoch in run.lives[0].epochs for name, p in epoch.probabilities["op"].items() if p > 0}
    assert len(ops) > 2
    assert all(round(p, 4) == p for p in ops.values())


@pytest.mark.parametrize("recurrent", [True, False])
def test_recording_changes_no_action_no_memory_and_no_outcome(recurrent):
    policies = [LearnedPolicy(controller_for(recurrent)) for _ in range(2)]
    runs, states = [], []
    for policy, recorded in zip(policies, (0, 4), strict=True):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            runs.append(run_arm(exam_env(), policy, rent=0.02, num_recorded=recorded))
            states.append(torch.get_rng_state())
    assert torch.equal(*states)
    assert all(torch.equal(a, b) for a, b in zip(*(run.actions for run in runs), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(*(run.outcome for run in runs), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(*(policy.memory for policy in policies), strict=True))
    assert [len(run.lives) for run in runs] == [0, 4]


def test_what_was_legal_is_recorded():
    """As it was before each decision, on any slot; rules say nothing of probabilities."""
    run = run_arm(exam_env(), RandomLegal(), rent=0.02, num_recorded=4)
    env = exam_env()
    signals = env.reset()
    for t, actions in enumerate(run.actions):
        for n, life in enumerate(run.lives):
            names = tuple(op.name for op in Op if signals.legal[n, op].any())
            assert life.epochs[t].legal == names
            assert life.epochs[t].op in names
            assert life.epochs[t].probabilities == {}
        signals = env.step(actions).signals
    assert {epoch.legal for life in run.lives for epoch in life.epochs} > {("WAIT", "GERMINATE")}


def test_a_sick_host_that_is_judged_by_its_loss_is_no_better_than_guessing():
    task = toy_task("transformer", 32, 16)
    fleet = Fleet(SPECS["transformer"], task, range(2), TrainConfig(batch_size=16))
    env = FleetEnv(fleet, EnvConfig(episode=4), task.validation)
    env.reset()
    env.fleet.trunk.flat[0] = torch.nan
    final = on_test(env.step(torch.zeros(2, 8, dtype=torch.long)), env)
    assert final.metric[0] == pytest.approx(env.setting.guess)
    assert final.metric.isfinite().all()


def test_what_comes_after_a_sick_host_is_not_its_doing():
    env = exam_env(episode=4, num_hosts=2)
    recorder, steps = EpisodeRecorder(env, [0, 1]), []
    before = newborn(env, 0.02)
    env.fleet.trunk.flat[0] = torch.nan
    action = torch.tensor([env.setting.space.action("GERMINATE", blueprint="mlp")] * 2)
    for _ in range(2):
        steps.append(env.step(action))
        recorder.add(Transition([before], [action], [steps[-1]], []))
    assert torch.equal(recorder.actions[0], action)
    assert not recorder.actions[1][0].any()
    assert torch.equal(recorder.actions[1][1], action[1])
    assert (steps[1].final.slots.blueprint[:, 0] != NO_BLUEPRINT).all(), "its replacement grows"
    assert recorder.final.blueprint[0].tolist() == [NO_BLUEPRINT, NO_BLUEPRINT]
    assert torch.equal(recorder.final.blueprint[1], steps[1].final.slots.blueprint[1])
    sick, healthy = recorder.episodes()
    assert [len(sick), len(healthy)] == [1, 2], "an episode is recorded until it ends"
    told, now = healthy[1], steps[1].final
    for name, field in {"train_loss": "train_loss", "validation_loss": "loss", "metric": "metric"}.items():
        assert getattr(told, name) == getattr(now, field)[1]
    assert (told.epoch, told.op, told.refused) == (1, "GERMINATE", True)
    assert (told.score, told.growth, told.flops) == (now.score[1], now.growth[1], now.flops[1])
    assert told.parameters == round(env.setting.parameters * (1 + now.growth[1].item()))
    assert (told.slots[0].stage, told.slots[0].blueprint) == ("TRAINING", "mlp")
    assert told.slots[0].contribution == now.vitals.contribution[1, 0]


def test_nobody_asks_what_the_seeds_of_a_grown_host_are_worth():
    env = exam_env()
    grown = StaticEnv(env.fleet, run_arm(exam_env(), PLAN, rent=0.02).topology, env.config, env.test)
    grown.reset()
    assert (grown.flops() < env.fleet.flops()).all()


def test_what_was_done_can_be_done_again():
    run = run_arm(exam_env(), RandomLegal(), rent=0.02)
    again = evaluate(exam_env(), Replay(run.actions), 0.02)
    assert all(torch.equal(a, b) for a, b in zip(again, run.outcome, strict=True))


def test_a_host_does_not_depend_on_what_is_done_to_others():
    """Arms that act alike on a host are paired to the bit, whatever they do on other hosts."""
    both = evaluate(exam_env(), SideBySide([PLAN, Never()]), 0.02)
    for i, policy in enumerate((PLAN, Never())):
        alone = run_arm(exam_env(), policy, 0.02).outcome
        assert torch.equal(both.objective[i::2], alone.objective[i::2])


def test_a_grown_host_can_be_trained_from_scratch():
    grown, never = (run_arm(exam_env(), policy, rent=0.02) for policy in (PLAN, Never()))
    topology = grown.topology
    assert (topology.blueprint[:, 0] != NO_BLUEPRINT).all()
    env = exam_env()
    static = StaticEnv(env.fleet, topology, env.config, env.test)
    signals = static.reset()
    assert (signals.growth > 0).all()
    assert torch.equal(signals.slots.blueprint, topology.blueprint)
    assert torch.equal(signals.slots.alpha, topology.alpha)
    outcome = evaluate(static, Never(), 0.02)
    assert torch.equal(outcome.growth, grown.outcome.growth)
    assert (outcome.flops > never.outcome.flops).all()
    bare = evaluate(StaticEnv(exam_env().fleet, never.topology, env.config, env.test), Never(), 0.02)
    assert torch.equal(bare.score, never.outcome.score), "without seeds it is the bare host, to the bit"
