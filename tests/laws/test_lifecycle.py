"""Law 8: an illegal action changes nothing; a legal one moves one slot of one host. The state stays possible."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.kasmina import LifecycleConfig
from esper.kasmina.blending import bend
from esper.kasmina.lifecycle import apply, empty_slots, legal, problems, tick, unmeasured
from esper.leyline.actions import STYLES, ActionSpace, Curve, Graft, Head, Op
from esper.leyline.errors import EsperError
from esper.leyline.lifecycle import LIVING, TRANSITIONS, Stage, Voice
from esper.leyline.state import SlotState, Vitals
from toys import random_legal

SPACE = ActionSpace(("s0", "s1", "s2"), ("norm", "mlp", "conv"))
CONFIGS = {
    "automatic": LifecycleConfig(),
    "chosen": LifecycleConfig(auto_advance=False),
    "hasty": LifecycleConfig(min_training=0, training=0, min_holding=0, min_prune_age=0, embargo=0),
}


def random_vitals(state: SlotState, generator: torch.Generator) -> Vitals:
    rand = torch.rand(state.stage.shape, generator=generator)
    worth = torch.randn(rand.shape, generator=generator).where(rand > 0.1, torch.nan)
    return Vitals(rand[:, 0] < 0.95, rand < 0.9, worth, rand, rand)


def random_actions(hosts: int, generator: torch.Generator, allowed: torch.Tensor) -> torch.Tensor:
    """Anything at all, out of range too; half of the hosts draw from the legal ops and slots."""
    high = torch.tensor(SPACE.sizes) + 1
    action = (torch.rand(hosts, len(Head), generator=generator) * (high + 1)).long() - 1
    inside = random_legal(allowed, SPACE.sizes, generator)
    action = torch.where((torch.arange(hosts) % 2 == 0)[:, None], inside, action)
    return action


def changed(a: SlotState, b: SlotState) -> torch.Tensor:
    """Which slots differ in any field, (N, S)."""
    return torch.stack([x != y for x, y in zip(a, b, strict=True)]).any(0)


@pytest.mark.parametrize("config", CONFIGS)
def test_ten_thousand_actions_legal_and_illegal_leave_a_possible_state(config):
    generator, hosts, limits = torch.Generator().manual_seed(5), 20, CONFIGS[config]
    state = empty_slots(hosts, 3)
    moves = {(row.source, row.target) for row in TRANSITIONS}
    seen: set[tuple[Stage, Stage]] = set()
    num_refused = num_moved = 0
    for _ in range(520):
        vitals = random_vitals(state, generator)
        allowed = legal(state, vitals, limits)
        action = random_actions(hosts, generator, allowed)
        after, refused = apply(state, action, allowed, SPACE.sizes)
        assert not problems(after, SPACE.sizes)
        touched = changed(state, after)
        assert (touched.sum(1) <= (~refused & (action[:, 0] != Op.WAIT))).all()
        assert not touched[refused].any()
        assert (touched.sum(1) == 1)[~refused & (action[:, 0] != Op.WAIT)].all()
        ticked = tick(after, vitals, limits)
        assert not problems(ticked, SPACE.sizes)
        for x, y in ((state, after), (after, ticked)):
            pairs = torch.stack([x.stage, y.stage], -1)[x.stage != y.stage].unique(dim=0)
            seen |= {(Stage(a), Stage(b)) for a, b in pairs.tolist()}
        num_refused += int(refused.sum())
        num_moved += int(touched.sum())
        # Fossils fill the slots for good; fresh hosts keep the walk going.
        full = (ticked.stage == Stage.FOSSILIZED).all(1)
        state = SlotState(
            *(torch.where(full[:, None], x, y) for x, y in zip(empty_slots(hosts, 3), ticked, strict=True))
        )
    assert hosts * 520 > 10_000
    assert num_refused > 1000
    assert num_moved > 1000
    assert seen == {(a, b) for a, b in moves if a != b}


def place(stage: Stage, **fields: float) -> SlotState:
    """Three hosts; the middle slot of the middle host is in this stage, with a past that opens every gate."""
    state = empty_slots(3, 3)
    values = {"stage": int(stage), "age": 9, "births": 1}
    if stage.voice is not Voice.EMPTY:
        heard = 0.7 if stage.voice in (Voice.RAMPING, Voice.STEADY) else 0.0
        values |= {"seed_age": 9, "blueprint": 1, "alpha": heard, "alpha_target": 0.7, "ramp_epochs": 3}
        values |= {"ramp_elapsed": 3 if heard else 0}
    for name, value in (values | fields).items():
        getattr(state, name)[1, 1] = value
    return state


def good(state: SlotState) -> Vitals:
    return unmeasured(state)._replace(contribution=torch.full_like(state.alpha, 0.1))


@pytest.mark.parametrize(("stage", "op"), list(itertools.product(Stage, Op)))
def test_an_op_does_what_the_table_says_and_nothing_else(stage, op):
    state = place(stage)
    config = LifecycleConfig(auto_advance=False)
    allowed = legal(state, good(state), config)
    action = torch.tensor([SPACE.action(), SPACE.action(op, slot="s1", blueprint="conv"), SPACE.action()])
    after, refused = apply(state, action, allowed, SPACE.sizes)
    rows = [row for row in TRANSITIONS if row.op is op and row.source is stage]
    assert refused.tolist() == [False, not rows and op is not Op.WAIT, False]
    if rows:
        assert after.stage[1, 1] == rows[0].target
        assert changed(state, after).nonzero().tolist() == [[1, 1]]
    else:
        assert not changed(state, after).any()


@pytest.mark.parametrize("stage", Stage)
def test_only_automatic_transitions_happen_by_themselves(stage):
    state = place(stage)
    after = tick(state, good(state), LifecycleConfig())
    rows = [row for row in TRANSITIONS if row.automatic and row.source is stage]
    assert after.stage[1, 1] == (rows[0].target if rows else stage)
    chosen = tick(state, good(state), LifecycleConfig(auto_advance=False))
    left_alone = not rows or rows[0].op is Op.ADVANCE
    assert chosen.stage[1, 1] == (stage if left_alone else rows[0].target)


@pytest.mark.parametrize(("stage", "op"), [(row.source, row.op) for row in TRANSITIONS if row.op is not None])
def test_an_op_is_deaf_to_heads_it_does_not_list_and_hears_those_it_does(stage, op):
    """The relevance table and the behaviour agree, both ways."""
    state = place(stage, age=9)
    allowed = legal(state, good(state), LifecycleConfig(auto_advance=False))
    row = list(SPACE.action(op, slot="s1"))

    def outcome(action: list[int]) -> SlotState:
        actions = torch.tensor([SPACE.action(), tuple(action), SPACE.action()])
        return apply(state, actions, allowed, SPACE.sizes)[0]

    for head in set(Head) - {Head.OP}:
        results = [outcome([*row[:head], choice, *row[head + 1 :]]) for choice in range(SPACE.sizes[head])]
        differ = [changed(results[0], other).any().item() for other in results[1:]]
        if head is Head.STYLE and op is Op.SET_ALPHA_TARGET:
            # Only the ramp is heard here, and it has two shapes.
            assert differ == [style.ramp is not STYLES["add"].ramp for style in list(STYLES.values())[1:]]
        else:
            assert any(differ) == (head in op.heads), head.name


def closed(stage: Stage, op: Op, vitals_change: dict[str, float] | None = None, **fields: float) -> bool:
    state = place(stage, **fields)
    vitals = good(state)
    for name, value in (vitals_change or {}).items():
        getattr(vitals, name)[1] = value
    return not legal(state, vitals, LifecycleConfig(auto_advance=False))[1, op, 1]


def test_gates_close_for_their_own_reasons():
    assert closed(Stage.DORMANT, Op.GERMINATE, {"sane": False})
    assert closed(Stage.GERMINATED, Op.ADVANCE, {"healthy": False})
    assert closed(Stage.TRAINING, Op.ADVANCE, {"healthy": False})
    assert closed(Stage.TRAINING, Op.ADVANCE, age=0)
    assert closed(Stage.BLENDING, Op.ADVANCE, alpha=0.4, ramp_elapsed=2)
    assert closed(Stage.HOLDING, Op.FOSSILIZE, age=0)
    assert closed(Stage.HOLDING, Op.FOSSILIZE, {"contribution": 0.0})
    assert closed(Stage.HOLDING, Op.FOSSILIZE, {"contribution": -0.1})
    assert closed(Stage.HOLDING, Op.FOSSILIZE, {"contribution": torch.nan})
    for stage in LIVING:
        assert closed(stage, Op.PRUNE, seed_age=2)
        assert not closed(stage, Op.PRUNE, {"healthy": False}, seed_age=2)


def test_advance_is_legal_only_where_it_would_not_happen_anyway():
    state = place(Stage.TRAINING, age=2)
    config = LifecycleConfig(min_training=1, training=3)
    assert legal(state, good(state), config)[1, Op.ADVANCE, 1]
    state = place(Stage.TRAINING, age=3)
    assert not legal(state, good(state), config)[1, Op.ADVANCE, 1]
    assert tick(state, good(state), config).stage[1, 1] == Stage.BLENDING


@given(
    tempo=st.sampled_from(["3", "5", "8"]),
    target=st.sampled_from(["0.5", "0.7", "1.0"]),
    style=st.sampled_from(["add", "add_sigmoid", "multiply", "gate"]),
    training=st.integers(0, 4),
)
def test_a_life_by_the_clock(tempo, target, style, training):
    """Germinated, silent for `training` epochs, blended in over exactly `tempo`, then steady at the target."""
    config = LifecycleConfig(min_training=0, training=training)
    state = empty_slots(1, 3)
    vitals = good(state)
    action = SPACE.action("GERMINATE", slot="s1", blueprint="mlp", tempo=tempo, alpha_target=target, style=style)
    state, refused = apply(state, torch.tensor([action]), legal(state, vitals, config), SPACE.sizes)
    assert not refused
    stages, alphas = [], []
    for _ in range(1 + training + int(tempo) + 2):
        state = tick(state, vitals, config)
        stages.append(Stage(int(state.stage[0, 1])))
        alphas.append(state.alpha[0, 1].item())
    silent = max(training, 1)
    assert stages[:silent] == [Stage.TRAINING] * silent
    assert stages[silent : silent + int(tempo)] == [Stage.BLENDING] * int(tempo)
    assert set(stages[silent + int(tempo) :]) == {Stage.HOLDING}
    assert alphas[:silent] == [0.0] * silent
    rise = alphas[silent : silent + int(tempo)]
    assert rise == sorted(rise)
    assert len(set(rise)) == len(rise)
    assert rise[-1] == alphas[-1] == torch.tensor(float(target)).item()


@pytest.mark.parametrize("embargo", [0, 1, 5])
@pytest.mark.parametrize(("speed", "fade"), [("instant", 0), ("3", 2), ("8", 7)])
def test_a_pruned_seed_fades_and_the_embargo_is_served_once(embargo, speed, fade):
    config = LifecycleConfig(embargo=embargo)
    state = place(Stage.HOLDING)
    action = torch.tensor([SPACE.action()] * 3)
    action[1] = torch.tensor(SPACE.action("PRUNE", slot="s1", alpha_speed=speed))
    state, _ = apply(state, action, legal(state, good(state), config), SPACE.sizes)
    stages, alphas = [], []
    for _ in range(fade + embargo + 4):
        state = tick(state, good(state), config)
        stages.append(Stage(int(state.stage[1, 1])))
        alphas.append(state.alpha[1, 1].item())
    expected = [Stage.PRUNED] * fade + [Stage.EMBARGOED] * max(embargo, 1) + [Stage.RESETTING]
    assert stages[: len(expected) + 1] == [*expected, Stage.DORMANT]
    assert alphas[:fade] == sorted(alphas[:fade], reverse=True)
    assert all(0 < alpha < 0.7 for alpha in alphas[:fade])
    assert set(alphas[fade:]) == {0.0}
    assert state.births[1, 1] == 1


@pytest.mark.parametrize(("style", "curve"), list(itertools.product(STYLES, Curve)))
def test_a_new_target_moves_alpha_from_where_it_is(style, curve):
    """From 0.7 to 0.5 in three epochs, along curve(ramp(progress)); the graft stays what it was."""
    config = LifecycleConfig()
    state = place(Stage.HOLDING, graft=int(Graft.MULTIPLY))
    action = torch.tensor([SPACE.action()] * 3)
    choices = {"slot": "s1", "alpha_target": "0.5", "alpha_speed": "3", "style": style, "alpha_curve": curve}
    action[1] = torch.tensor(SPACE.action("SET_ALPHA_TARGET", **choices))
    state, _ = apply(state, action, legal(state, good(state), config), SPACE.sizes)
    assert state.alpha[1, 1] == torch.tensor(0.7)
    assert state.graft[1, 1] == Graft.MULTIPLY
    path = []
    for _ in range(4):
        state = tick(state, good(state), config)
        path.append((Stage(int(state.stage[1, 1])), state.alpha[1, 1].item()))
    assert [stage for stage, _ in path] == [Stage.BLENDING] * 3 + [Stage.HOLDING]
    progress = bend(
        bend(torch.tensor([1 / 3, 2 / 3, 1.0]), torch.tensor([STYLES[style].ramp] * 3)), torch.tensor([curve] * 3)
    )
    expected = (0.7 - 0.2 * progress).tolist()
    assert [alpha for _, alpha in path] == pytest.approx([*expected, 0.5], abs=1e-6)
    assert path[2][1] == path[3][1] == 0.5


@pytest.mark.parametrize("style", STYLES)
def test_a_style_is_its_graft_and_its_ramp(style):
    state = empty_slots(1, 3)
    action = torch.tensor([SPACE.action("GERMINATE", slot="s1", blueprint="mlp", style=style)])
    state, _ = apply(state, action, legal(state, good(state), LifecycleConfig()), SPACE.sizes)
    assert (state.graft[0, 1], state.ramp[0, 1]) == STYLES[style]
    assert state.blueprint[0, 1] == SPACE.blueprints.index("mlp")


THRESHOLDS = {
    "min_training": (Stage.TRAINING, Op.ADVANCE, "age"),
    "min_holding": (Stage.HOLDING, Op.FOSSILIZE, "age"),
    "min_prune_age": (Stage.HOLDING, Op.PRUNE, "seed_age"),
}


@pytest.mark.parametrize("threshold", [1, 4, 6])
@pytest.mark.parametrize("name", THRESHOLDS)
def test_ages_are_configuration(name, threshold):
    stage, op, field = THRESHOLDS[name]
    config = LifecycleConfig(auto_advance=False, training=9, **{name: threshold})
    for age, expected in ((threshold - 1, False), (threshold, True)):
        state = place(stage, **{field: age})
        assert legal(state, good(state), config)[1, op, 1] == expected


@pytest.mark.parametrize("threshold", [-0.1, 0.0, 0.2])
def test_the_contribution_that_is_worth_keeping_is_configuration(threshold):
    state = place(Stage.HOLDING)
    for contribution, expected in ((threshold - 0.01, False), (threshold, False), (threshold + 0.01, True)):
        vitals = good(state)._replace(contribution=torch.full((3, 3), contribution, dtype=torch.float64))
        config = LifecycleConfig(min_contribution=threshold)
        assert legal(state, vitals, config)[1, Op.FOSSILIZE, 1] == expected


@pytest.mark.parametrize("fields", [{"embargo": -1}, {"min_training": 4, "training": 3}, {"min_prune_age": -2}])
def test_impossible_thresholds_name_the_field(fields):
    with pytest.raises(EsperError, match=next(iter(fields))):
        LifecycleConfig(**fields)
