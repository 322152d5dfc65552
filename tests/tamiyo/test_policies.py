"""Baseline policies act legally and as documented, and the heuristic fossilizes seeds."""

import pytest
import torch

from esper.leyline.actions import Head, Op
from esper.leyline.errors import EsperError
from esper.leyline.lifecycle import Stage
from esper.simic.evaluation import evaluate
from esper.tamiyo.network import Observation, describe, look
from esper.tamiyo.policies import (
    Doubling,
    FixedPlan,
    GapTrigger,
    GreedyGradient,
    Heuristic,
    LearnedPolicy,
    Never,
    Oversized,
    PlanStep,
    Plateau,
    RandomLegal,
    Schedule,
    SideBySide,
    draws,
)
from small_fleets import controller_for, make_env
from small_views import CPU, NAN, SETTING, make_view

POLICIES = {
    "never": Never,
    "random": RandomLegal,
    "heuristic": Heuristic,
    "schedule": Schedule,
    "oversized": Oversized,
    "plateau": Plateau,
    "gap": GapTrigger,
    "gradient": GreedyGradient,
    "least gradient": lambda: GreedyGradient(against=True),
    "learned": lambda: LearnedPolicy(controller_for()),
    "greedy": lambda: LearnedPolicy(controller_for(), greedy=True),
    "plan": lambda: FixedPlan([PlanStep(1, {"op": "GERMINATE", "slot": "s0"})]),
}


class Watched:
    """A policy that records its decisions."""

    def __init__(self, policy):
        self.policy, self.name, self.actions, self.stages, self.legal = policy, "watched", [], [], []

    def begin(self, *arguments):
        self.policy.begin(*arguments)

    def decide(self, view, fresh, uniform):
        action = self.policy.decide(view, fresh, uniform)
        hosts = torch.arange(len(action))
        self.legal.append(view.signals.legal[hosts, action[:, Head.OP], action[:, Head.SLOT]])
        self.actions.append(action)
        self.stages.append(view.signals.slots.stage)
        return action


@pytest.mark.parametrize("kind", ["mlp", "cnn1d"])
def test_every_policy_decides_legally_for_a_whole_life(kind):
    """Side by side, two hosts each."""
    watched = Watched(SideBySide([policy() for policy in POLICIES.values()]))
    outcome = evaluate(make_env(kind, 2 * len(POLICIES), episode=9), watched, rent=0.02)
    assert len(watched.actions) == 9
    assert outcome.objective.isfinite().all()
    assert (outcome.flops > 0).all()
    legal = dict(zip(POLICIES, torch.stack(watched.legal).unflatten(1, (2, -1)).unbind(2), strict=True))
    assert [name for name in POLICIES if not legal[name].all()] == []
    ops = torch.stack(watched.actions)[..., Head.OP].unflatten(1, (2, -1))
    planted = dict(zip(POLICIES, (ops == Op.GERMINATE).any(0).any(0).tolist(), strict=True))
    assert all(planted[name] for name in ("heuristic", "schedule", "oversized", "plan"))
    assert not outcome.growth[:: len(POLICIES)].any(), "the first never grows"


def test_the_heuristic_passes_the_gates_and_fossilizes():
    policy = Watched(Heuristic(tempo=3))
    outcome = evaluate(make_env("mlp", 8, episode=24), policy, rent=0.0)
    assert (torch.stack(policy.actions)[..., Head.OP] == Op.FOSSILIZE).any()
    assert (policy.stages[-1] == Stage.FOSSILIZED).any()
    assert outcome.growth.max() > 0


def decide(policy, view, fresh=None, uniform=None):
    """Return a policy's decisions; by default, those of fresh hosts."""
    hosts = len(view.signals.age)
    if fresh is None:
        policy.begin(SETTING, hosts, CPU)
        fresh = torch.ones(hosts, dtype=torch.bool)
    return policy.decide(view, fresh, torch.full((hosts, draws(SETTING)), 0.5) if uniform is None else uniform)


def written(op="WAIT", **choices):
    return list(SETTING.space.action(op, **choices))


D, T, B, H, F, P, E = (
    Stage.DORMANT,
    Stage.TRAINING,
    Stage.BLENDING,
    Stage.HOLDING,
    Stage.FOSSILIZED,
    Stage.PRUNED,
    Stage.EMBARGOED,
)


def test_a_plan_is_followed_in_time_and_once_a_life():
    """Steps are taken in order of decision; s0 is not legal when due; the second host is replaced after three."""
    policy = FixedPlan(
        [
            PlanStep(4, {"op": "GERMINATE", "slot": "s0"}),
            PlanStep(2, {"op": "GERMINATE", "slot": "s1", "blueprint": "mlp"}),
            PlanStep(2, {"op": "PRUNE", "slot": "s2"}),
        ]
    )
    wait, first = written(), written("GERMINATE", slot="s1", blueprint="mlp")
    second, third = written("PRUNE", slot="s2"), written("GERMINATE", slot="s0")
    for _ in range(2):
        policy.begin(SETTING, 2, CPU)
        found = []
        for decision in range(7):
            newborn = torch.tensor([decision == 0, decision in (0, 4)])
            view = make_view([[E if decision == 4 else D, D, H]] * 2, age=[decision, decision % 4])
            found.append(decide(policy, view, newborn).tolist())
        assert [host for host, _ in found] == [wait, wait, first, second, wait, third, wait]
        assert [host for _, host in found] == [wait, wait, first, second, wait, wait, first]


def test_a_line_of_a_plan_needs_an_op():
    with pytest.raises(EsperError, match="needs an op"):
        FixedPlan([PlanStep(0, {"slot": "s0"})]).begin(SETTING, 2, CPU)


def test_the_same_policy_on_the_same_hosts_gives_the_same_outcome():
    outcomes = [evaluate(make_env("mlp", 4, episode=5), RandomLegal(), rent=0.02, rng_seed=3) for _ in range(2)]
    for a, b in zip(*outcomes, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", ["doubling", *POLICIES])
def test_policies_that_do_not_read_the_rent_do_the_same_at_every_price(name):
    def lived(rent):
        policy = Doubling(blueprint="mlp") if name == "doubling" else POLICIES[name]()
        return policy, evaluate(make_env("mlp", 4, episode=6), policy, rent, rng_seed=3)

    (policy, free), (_, dear) = lived(0.0), lived(1000.0)
    same = torch.equal(free.score, dear.score) and torch.equal(free.growth, dear.growth)
    assert same or getattr(policy, "reads_rent", True)


def test_a_random_policy_takes_every_legal_choice_equally_often(rng):
    view = make_view([[H, D, D]] * 12_000)
    view.signals.legal[:, [Op.PRUNE, Op.SET_ALPHA_TARGET, Op.ADVANCE]] = False
    op, slot, *rest = decide(RandomLegal(), view, uniform=torch.rand(12_000, draws(SETTING), generator=rng)).unbind(1)

    def shares(choices, size):
        return (choices.bincount(minlength=size) / len(choices)).tolist()

    ops = {Op.WAIT: [1 / 3, 1 / 3, 1 / 3], Op.GERMINATE: [0, 1 / 2, 1 / 2], Op.FOSSILIZE: [1, 0, 0]}
    assert shares(op, len(Op)) == pytest.approx([1 / 3 if choice in ops else 0 for choice in Op], abs=0.02)
    for choice, slots in ops.items():
        assert shares(slot[op == choice], 3) == pytest.approx(slots, abs=0.03)
    for choices, size in zip(rest, SETTING.space.sizes[Head.BLUEPRINT :], strict=True):
        assert shares(choices, size) == pytest.approx([1 / size] * size, abs=0.02)


PLANTS = {"blueprint": "wide", "tempo": "5"}
GARDEN = (
    ([D, D, D], 9, 0, [NAN, NAN, NAN], written("GERMINATE", slot="s0", **PLANTS)),
    ([D, D, D], 10, 0, [NAN, NAN, NAN], written()),  # half of life is over
    ([T, D, D], 9, 0, [NAN, NAN, NAN], written("GERMINATE", slot="s1", **PLANTS)),
    ([F, F, F], 9, 0, [0.3, 0.3, -0.3], written()),
    ([H, D, D], 9, 3, [0.0, NAN, NAN], written("PRUNE", slot="s0")),
    ([H, D, D], 9, 2, [0.0, NAN, NAN], written("GERMINATE", slot="s1", **PLANTS)),  # it may still turn out well
    ([B, D, D], 9, 5, [-0.1, NAN, NAN], written("GERMINATE", slot="s1", **PLANTS)),
    ([H, D, D], 9, 5, [NAN, NAN, NAN], written("GERMINATE", slot="s1", **PLANTS)),
    ([D, H, D], 9, 1, [NAN, 0.01, NAN], written("FOSSILIZE", slot="s1")),
    ([H, H, H], 9, 5, [-0.1, -0.2, 0.1], written("FOSSILIZE", slot="s2")),  # before anything is pruned
    ([D, D, H], 15, 3, [NAN, NAN, -0.1], written("PRUNE", slot="s2")),
    ([D, D, H], 15, 3, [NAN, NAN, 0.1], written("FOSSILIZE", slot="s2")),
)
"""Stages, a host's age, the age of its stages, contributions, and what is done."""


def test_gardeners_keep_prune_and_plant():
    stages, age, slot_age, contribution, expected = zip(*GARDEN, strict=True)
    slot_age = torch.tensor(slot_age)[:, None]
    view = make_view(stages, age=age, slot_age=slot_age, contribution=contribution)
    assert decide(Schedule(every=1, tempo=5), view).tolist() == list(expected)


def test_gardeners_plant_in_the_order_they_are_told():
    view = make_view([[D, D, D], [D, D, T], [T, D, T]])
    first, second = (written("GERMINATE", slot=slot, blueprint="lora") for slot in ("s2", "s0"))
    assert decide(Schedule(every=1, slots=("s2", "s0"), blueprint="lora"), view).tolist() == [first, second, written()]


def test_an_unknown_slot_is_named():
    with pytest.raises(EsperError, match="s9"):
        Schedule(slots=("s9",)).begin(SETTING, 2, CPU)


PULLED = make_view(
    [[D, D, D], [D, F, D], [F, D, D], [D, D, D], [D, D, D], [T, D, D]],
    pull=[[2.0, 5.0, 3.0]] * 4 + [[NAN] * 3, [2.0, 5.0, 3.0]],
    age=[4, 4, 4, 0, 4, 4],
)
WHEN = {
    "never": (Never(), make_view([[D, D, D], [H, D, D]]), [None, None]),
    "heuristic": (
        Heuristic(),
        make_view([[D, D, D], [F, E, D], [T, D, D], [D, B, D], [D, P, F]]),
        [0, 2, None, None, None],
    ),
    "schedule": (
        Schedule(every=4),
        make_view([[D, D, D]] * 9, age=range(9)),
        [0, None, None, None, 0, None, None, None, 0],
    ),
    "oversized": (Oversized(), make_view([[D, D, D], [T, D, D], [T, T, D], [D, D, D]], age=range(4)), [0, 1, 2, None]),
    "plateau": (
        Plateau(patience=2),
        make_view([[D, D, D]] * 3 + [[T, D, D]], since_best=[1, 2, 3, 5]),
        [None, 0, 0, None],
    ),
    "gap": (
        GapTrigger(gap=0.1),
        make_view(
            [[D, D, D]] * 5 + [[T, D, D]],
            loss=[1.15, 1.3, 0.7, 1.0, 1.0, 1.0],
            train_loss=[1.0, 1.0, 1.0, NAN, 1.0, 1.0],
            age=[4, 4, 4, 4, 0, 4],
        ),
        [0, None, 0, None, None, None],
    ),
    "gradient": (GreedyGradient(), PULLED, [1, 2, 1, None, None, None]),
    "least gradient": (GreedyGradient(against=True), PULLED, [0, 0, 2, None, None, None]),
}
"""A rule, hosts, and the slot in which it plants in each."""


@pytest.mark.parametrize("name", WHEN)
def test_rules_plant_when_they_say(name):
    rule, view, expected = WHEN[name]
    planted = [
        written() if slot is None else written("GERMINATE", slot=f"s{slot}", blueprint="wide") for slot in expected
    ]
    assert decide(rule, view).tolist() == planted
    assert rule.name == name


def learned(**options) -> LearnedPolicy:
    """Return a policy whose preferences depend on its observations and hidden state."""
    controller = controller_for()
    for layer in (controller.op[-1], controller.tail[-1]):
        layer.weight.data *= 1e3
    return LearnedPolicy(controller, **options)


HOSTS = make_view([[D, H, F]] * 16, age=range(16), score=torch.linspace(0.2, 0.9, 16), loss=torch.linspace(2, 0.1, 16))


def test_a_learned_policy_forgets_when_a_life_begins():
    policy, reborn = learned(greedy=True), torch.arange(16) % 2 == 0
    first = decide(policy, HOSTS)
    second = decide(policy, HOSTS, fresh=reborn)
    assert torch.equal(second[reborn], first[reborn])
    assert not torch.equal(second[~reborn], first[~reborn]), "others remember"
    assert torch.equal(decide(policy, HOSTS), first), "it begins with a blank memory, too"


def test_a_greedy_policy_takes_the_likeliest_choices(rng):
    policy = learned(greedy=True)
    luck = torch.rand(2, 16, draws(SETTING), generator=rng)
    first, second = (decide(policy, HOSTS, uniform=uniform) for uniform in luck)
    assert torch.equal(first, second)
    table = describe(SETTING)
    seen = Observation(*look(HOSTS), table.expand(16, *table.shape))
    controller, blank = policy.controller, policy.controller.blank(16, CPU)
    with torch.no_grad():
        x, _ = controller.remember_one(controller.read(seen.features, seen.exists)[0], blank)
        assert torch.equal(first[:, Head.OP], controller.op_log_probs(x, seen.legal)[0].argmax(1))
        sampled = controller.act(seen, blank, luck[0])[0].action
    assert torch.equal(decide(learned(), HOSTS, uniform=luck[0]), sampled)
    assert not torch.equal(sampled, first)


def test_side_by_side_gives_every_policy_its_hosts():
    """Hosts alternate between policies; a plan that is listed twice is followed twice."""
    plan = FixedPlan([PlanStep(0, {"op": "GERMINATE", "slot": "s1"})])
    policy, planted = SideBySide([Never(), plan, plan]), written("GERMINATE", slot="s1")
    policy.begin(SETTING, 6, CPU)
    found = decide(policy, make_view([[D, D, D]] * 6), fresh=torch.zeros(6, dtype=torch.bool))
    assert found.tolist() == [written(), planted, planted] * 2
