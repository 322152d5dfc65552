"""Law 8: an illegal action changes nothing; a legal one moves one slot of one host. The state stays possible."""

import itertools

import pytest
import torch

from esper.kasmina import LifecycleConfig
from esper.kasmina.blending import bend
from esper.kasmina.lifecycle import apply, empty_slots, legal, problems, tick, unmeasured
from esper.leyline.actions import STYLES, ActionSpace, Curve, Graft, Head, Op
from esper.leyline.errors import EsperError
from esper.leyline.lifecycle import LIVING, TRANSITIONS, Stage, Voice
from esper.leyline.state import SlotState, Vitals
from toys import random_legal

SPACE = ActionSpace(("s0", "s1", "s2"), ("norm", "mlp", "conv", "twin"))
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
    generator, hosts, limits = torch.Generator().manual_seed(5), 160, CONFIGS[config]
    state = empty_slots(hosts, 3)
    moves = {(row.source, row.target) for row in TRANSITIONS}
    seen: set[tuple[Stage, Stage]] = set()
    num_refused = num_moved = 0
    for _ in range(65):
        vitals = random_vitals(state, generator)
        allowed = legal(state, vitals, limits)
        action = random_actions(hosts, generator, allowed)
        after, refused = apply(state, action, vitals, limits, SPACE)
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
    assert hosts * 65 > 10_000
    assert num_refused > 1000
    assert num_moved > 1000
    silent = {move for move in moves if Stage.TRAINING in move} if limits.training == 0 else set()
    assert seen == {(a, b) for a, b in moves if a != b} - silent


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
    action = torch.tensor([SPACE.action(), SPACE.action(op, slot="s1", blueprint="conv"), SPACE.action()])
    after, refused = apply(state, action, good(state), config, SPACE)
    rows = [row for row in TRANSITIONS if row.op is op and row.source is stage]
    assert refused.tolist() == [False, not rows and op is not Op.WAIT, False]
    if rows:
        assert (after.stage[1, 1], after.age[1, 1]) == (rows[0].target, 0)
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
    config = LifecycleConfig(auto_advance=False)
    row = list(SPACE.action(op, slot="s1"))

    def outcome(action: list[int]) -> SlotState:
        actions = torch.tensor([SPACE.action(), tuple(action), SPACE.action()])
        return apply(state, actions, good(state), config, SPACE)[0]

    for head in set(Head) - {Head.OP}:
        results = [outcome([*row[:head], choice, *row[head + 1 :]]) for choice in range(SPACE.sizes[head])]
        differ = [changed(results[0], other).any().item() for other in results[1:]]
        if head is Head.STYLE and op is Op.SET_ALPHA_TARGET:
            # Only the ramp is heard here, and it has two shapes.
            assert differ == [style.ramp is not STYLES["add"].ramp for style in list(STYLES.values())[1:]]
        else:
            assert any(differ) == (head in op.heads), head.name


@pytest.mark.parametrize("head", Head)
@pytest.mark.parametrize(("stage", "op"), [(Stage.DORMANT, Op.WAIT), *((r.source, r.op) for r in TRANSITIONS if r.op)])
def test_a_choice_that_does_not_exist_is_refused_by_the_ops_that_listen_to_it(stage, op, head):
    state = place(stage)
    config = LifecycleConfig(auto_advance=False)
    proper = torch.tensor([SPACE.action(), SPACE.action(op, slot="s1"), SPACE.action()])
    expected, _ = apply(state, proper, good(state), config, SPACE)
    for choice in (-1, SPACE.sizes[head]):
        action = proper.clone()
        action[1, head] = choice
        after, refused = apply(state, action, good(state), config, SPACE)
        assert refused.tolist() == [False, head in op.heads, False]
        assert not changed(after, state if head in op.heads else expected).any()


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


@pytest.mark.parametrize("training", range(5))
def test_a_life_by_the_clock(training):
    """Germinated, silent for `training` epochs, blended in over exactly `tempo`, then steady at the target."""
    config = LifecycleConfig(min_training=0, training=training)
    lives = list(itertools.product(("3", "5", "8"), ("0.5", "0.7", "1.0"), STYLES))
    state = empty_slots(len(lives), 3)
    vitals = good(state)
    choices = [{"tempo": tempo, "alpha_target": target, "style": style} for tempo, target, style in lives]
    actions = torch.tensor([SPACE.action("GERMINATE", slot="s1", blueprint="mlp", **chosen) for chosen in choices])
    state, refused = apply(state, actions, vitals, config, SPACE)
    assert not refused.any()
    path = []
    for _ in range(1 + training + 8 + 2):
        state = tick(state, vitals, config)
        path.append((state.stage[:, 1].tolist(), state.alpha[:, 1].tolist()))
    silent = training
    for n, (tempo, target, _) in enumerate(lives):
        stages, alphas = [stage[n] for stage, _ in path], [alpha[n] for _, alpha in path]
        heard = silent + int(tempo)
        steady = len(path) - heard
        assert stages == [Stage.TRAINING] * silent + [Stage.BLENDING] * int(tempo) + [Stage.HOLDING] * steady
        assert alphas[:silent] == [0.0] * silent
        rise = alphas[silent:heard]
        assert rise == sorted(set(rise))
        assert {rise[-1], *alphas[heard:]} == {torch.tensor(float(target)).item()}


@pytest.mark.parametrize("embargo", [0, 1, 5])
@pytest.mark.parametrize(("speed", "fade"), [("instant", 0), ("3", 2), ("8", 7)])
def test_a_pruned_seed_fades_and_the_embargo_is_served_once(embargo, speed, fade):
    config = LifecycleConfig(embargo=embargo)
    state = place(Stage.HOLDING)
    action = torch.tensor([SPACE.action()] * 3)
    action[1] = torch.tensor(SPACE.action("PRUNE", slot="s1", alpha_speed=speed))
    state, _ = apply(state, action, good(state), config, SPACE)
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
    state, _ = apply(state, action, good(state), config, SPACE)
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


def act(state: SlotState, config: LifecycleConfig, op: str, **choices: object) -> SlotState:
    """The middle host acts on its middle slot."""
    action = torch.tensor([SPACE.action(), SPACE.action(op, slot="s1", **choices), SPACE.action()])
    state, refused = apply(state, action, good(state), config, SPACE)
    assert not refused.any()
    return state


def epochs(state: SlotState, config: LifecycleConfig, count: int, *fields: str) -> list[tuple]:
    """What becomes of the middle slot, epoch by epoch: its stage, and these fields."""
    path = []
    for _ in range(count):
        state = tick(state, good(state), config)
        path.append((Stage(int(state.stage[1, 1])).name, *(getattr(state, name)[1, 1].item() for name in fields)))
    return path


def test_an_instant_change_of_alpha_takes_one_epoch():
    state = act(place(Stage.HOLDING), LifecycleConfig(), "SET_ALPHA_TARGET", alpha_target="0.5", alpha_speed="instant")
    assert epochs(state, LifecycleConfig(), 2, "alpha") == [("BLENDING", 0.5), ("HOLDING", 0.5)]


def test_a_pruned_seed_fades_along_the_chosen_curve_alone():
    """Half a cosine at 1/3 is 1/4; the ramp on which the seed rose is forgotten."""
    state = act(
        place(Stage.HOLDING, ramp=Curve.SIGMOID), LifecycleConfig(), "PRUNE", alpha_speed="3", alpha_curve="cosine"
    )
    path = epochs(state, LifecycleConfig(), 3, "alpha")
    assert [stage for stage, _ in path] == ["PRUNED", "PRUNED", "EMBARGOED"]
    assert [alpha for _, alpha in path] == pytest.approx([0.75 * 0.7, 0.25 * 0.7, 0.0], abs=1e-6)


@pytest.mark.parametrize("stage", ["GERMINATED", "TRAINING"])
def test_a_seed_that_was_never_heard_is_gone_at_once_whatever_the_speed(stage):
    state = act(place(Stage[stage]), LifecycleConfig(), "PRUNE", alpha_speed="8")
    assert epochs(state, LifecycleConfig(), 1, "alpha") == [("EMBARGOED", 0.0)]


GRAFTS_AND_RAMPS = {
    "add": (Graft.ADD, Curve.LINEAR),
    "add_sigmoid": (Graft.ADD, Curve.SIGMOID),
    "multiply": (Graft.MULTIPLY, Curve.LINEAR),
    "gate": (Graft.GATE, Curve.SIGMOID),
}


@pytest.mark.parametrize("style", STYLES)
def test_germination_plants_what_was_chosen(style):
    """Every field, in a slot where two seeds were born before. The last two choices are a later op's."""
    choices = {"blueprint": "conv", "style": style, "tempo": "5", "alpha_target": "0.5"}
    deaf = {"alpha_speed": "8", "alpha_curve": "cosine"}
    state = act(place(Stage.DORMANT, births=2), LifecycleConfig(), "GERMINATE", **choices, **deaf)
    graft, ramp = GRAFTS_AND_RAMPS[style]
    assert {name: x[1, 1].item() for name, x in state._asdict().items()} == {
        "stage": Stage.GERMINATED,
        "age": 0,
        "seed_age": 0,
        "births": 3,
        "blueprint": 2,
        "graft": graft,
        "alpha": 0.0,
        "alpha_start": 0.0,
        "alpha_target": 0.5,
        "ramp": ramp,
        "curve": Curve.LINEAR,
        "ramp_epochs": 5,
        "ramp_elapsed": 0,
    }


def test_a_seed_ages_from_germination_on_and_a_stage_from_its_beginning():
    config = LifecycleConfig(training=2, embargo=1)
    state = act(place(Stage.DORMANT), config, "GERMINATE", tempo="3")
    path = epochs(state, config, 6, "age", "seed_age")
    assert path == [
        ("TRAINING", 1, 1),
        ("TRAINING", 2, 2),
        ("BLENDING", 1, 3),
        ("BLENDING", 2, 4),
        ("BLENDING", 3, 5),
        ("HOLDING", 1, 6),
    ]
    state = act(place(Stage.HOLDING), config, "PRUNE", alpha_speed="instant")
    path = epochs(state, config, 4, "age", "seed_age")
    assert path == [("EMBARGOED", 1, 0), ("RESETTING", 1, 0), ("DORMANT", 1, 0), ("DORMANT", 2, 0)]


IMPOSSIBLE = [
    (Stage.HOLDING, {"blueprint": -1}, "an empty slot has a blueprint, or a seed has none"),
    (Stage.HOLDING, {"blueprint": 4}, "a blueprint does not exist"),
    (Stage.DORMANT, {"seed_age": 1}, "an empty slot keeps fields of its last seed"),
    (Stage.EMBARGOED, {"graft": 1}, "an empty slot keeps fields of its last seed"),
    (Stage.BLENDING, {"alpha": 1.1}, "alpha is outside 0 to 1"),
    (Stage.BLENDING, {"alpha": -0.1}, "alpha is outside 0 to 1"),
    (Stage.BLENDING, {"alpha": torch.nan}, "alpha is outside 0 to 1"),
    (Stage.GERMINATED, {"alpha": 0.5}, "a silent seed has an alpha above 0"),
    (Stage.TRAINING, {"alpha": 0.5}, "a silent seed has an alpha above 0"),
    (Stage.HOLDING, {"alpha": 0.5}, "a steady seed is not at its target"),
    (Stage.FOSSILIZED, {"alpha_target": 0.5}, "a steady seed is not at its target"),
    (Stage.TRAINING, {"births": 0}, "a seed was never planted"),
    (Stage.DORMANT, {"age": -1}, "an age is negative"),
    (Stage.TRAINING, {"seed_age": -1}, "an age is negative"),
    (Stage.BLENDING, {"ramp_elapsed": 4}, "a ramp is longer than its epochs"),
    (Stage.BLENDING, {"ramp_elapsed": -1}, "a ramp is longer than its epochs"),
]


@pytest.mark.parametrize(("stage", "fields", "problem"), IMPOSSIBLE)
def test_each_impossible_state_is_named(stage, fields, problem):
    assert problems(place(stage), SPACE.sizes) == []
    assert problems(place(stage, **fields), SPACE.sizes) == [problem]


@pytest.mark.parametrize("stage", [-1, len(Stage)])
def test_a_stage_that_does_not_exist_is_named(stage):
    state = empty_slots(3, 3)
    state.stage[1, 1] = stage
    assert problems(state, SPACE.sizes) == ["a stage does not exist"]


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
