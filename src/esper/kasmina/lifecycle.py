"""Move seeds through their lifecycle, for all slots of all hosts at once: `legal`, `apply`, `tick`.

A decision applies an action with `apply`, then begins the epoch with `tick`. Only `apply` carries out ops, and only
`tick` moves alpha.
"""

from functools import cache

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from esper.kasmina.blending import ramp
from esper.kasmina.gates import GATES, LifecycleConfig
from esper.leyline.actions import ALPHA_SPEEDS, ALPHA_TARGETS, STYLES, TEMPOS, ActionSpace, Curve, Graft, Head, Op
from esper.leyline.lifecycle import TRANSITIONS, Gate, Stage, Transition, Voice
from esper.leyline.state import NO_BLUEPRINT, SlotState, Vitals

EMPTY: dict[str, int | float] = {
    "stage": int(Stage.DORMANT),
    "age": 0,
    "seed_age": 0,
    "births": 0,
    "blueprint": NO_BLUEPRINT,
    "graft": 0,
    "alpha": 0.0,
    "alpha_start": 0.0,
    "alpha_target": 0.0,
    "ramp": int(Curve.LINEAR),
    "curve": int(Curve.LINEAR),
    "ramp_epochs": 0,
    "ramp_elapsed": 0,
}
"""The state of a slot that never held a seed."""
KEPT = ("stage", "age", "births")
"""The fields that a slot keeps when its seed is removed."""


@cache
def _table(values: tuple[int | float, ...], device: torch.device) -> Tensor:
    """Return a small table on a device. Cached, because a copy to a device synchronizes."""
    return torch.tensor(values, device=device)


def empty_slots(num_hosts: int, num_slots: int, device: torch.device | None = None) -> SlotState:
    """Return the state of slots that never held a seed."""
    return SlotState(**{name: torch.full((num_hosts, num_slots), v, device=device) for name, v in EMPTY.items()})


def unmeasured(state: SlotState) -> Vitals:
    """Return the vitals of hosts that were not measured yet: all healthy, with unknown contributions."""
    return Vitals(
        sane=torch.ones_like(state.stage[:, 0], dtype=torch.bool),
        healthy=torch.ones_like(state.stage, dtype=torch.bool),
        contribution=torch.full_like(state.alpha, torch.nan),
        share=torch.full_like(state.alpha, torch.nan),
        pull=torch.full_like(state.alpha, torch.nan),
    )


def has_voice(stage: Int[Tensor, "*N"], *voices: Voice) -> Bool[Tensor, "*N"]:
    """Return whether each stage has one of these voices."""
    return _table(tuple(s.voice in voices for s in Stage), stage.device)[stage]


def incubating(state: SlotState) -> Bool[Tensor, "N S"]:
    """Return which slots hold a seed that trains beside its host and is not heard."""
    return has_voice(state.stage, Voice.INCUBATING)


def speaking(state: SlotState) -> Bool[Tensor, "N S"]:
    """Return which slots hold a seed that is part of the forward pass; all others are left out of it."""
    return state.alpha > 0


def copied_slots(state: SlotState, slot: int, first: int, twin: int) -> Int[Tensor, " N"]:
    """Return which slot's twin a new twin in `slot` would copy; -1 where it would copy the segment's own block.

    Args:
        state: The state before the birth.
        slot: The slot of the new twin.
        first: The first slot behind the same segment.
        twin: The index of the blueprint of twins.
    """
    stage, blueprint = (x[:, first:slot] for x in (state.stage, state.blueprint))
    places = torch.arange(first, slot, device=stage.device)
    is_there = (blueprint == twin) & has_voice(stage, Voice.STEADY)
    return torch.cat([torch.where(is_there, places, -1), torch.full_like(state.stage[:, :1], -1)], 1).amax(1)


def _open(row: Transition, state: SlotState, vitals: Vitals, config: LifecycleConfig) -> Tensor:
    return (state.stage == row.source) & GATES[row.gate](state, vitals, config)


def _due(row: Transition, here: Tensor, state: SlotState, config: LifecycleConfig) -> Tensor:
    """Return which slots, of those `here` whose gate is open, make this transition when the next epoch begins."""
    if not row.automatic or (row.op is Op.ADVANCE and not config.auto_advance):
        return torch.zeros_like(here)
    return here & (state.age >= config.training) if row.gate is Gate.TRAINED else here


def legal(state: SlotState, vitals: Vitals, config: LifecycleConfig) -> Bool[Tensor, "N O S"]:
    """Return which op may be used on which slot.

    WAIT is always legal. ADVANCE is illegal where the seed will advance by itself.
    """
    allowed = torch.zeros(
        state.stage.shape[0], len(Op), state.stage.shape[1], dtype=torch.bool, device=state.stage.device
    )
    allowed[:, Op.WAIT].fill_(True)
    for row in TRANSITIONS:
        if row.op is not None:
            here = _open(row, state, vitals, config)
            allowed[:, row.op] |= here & ~_due(row, here, state, config)
    return allowed


def refused(action: Int[Tensor, "N H"], allowed: Bool[Tensor, "N O S"], sizes: tuple[int, ...]) -> Bool[Tensor, " N"]:
    """Return which actions are refused: the op is illegal on the slot, or a choice it uses does not exist."""
    listens = _table(tuple(head in op.heads for op in Op for head in Head), action.device).view(len(Op), len(Head))
    exists = (action >= 0) & (action < _table(sizes, action.device))
    known_op = exists[:, Head.OP]
    op = action[:, Head.OP].where(known_op, Op.WAIT)
    slot = action[:, Head.SLOT].where(exists[:, Head.SLOT], 0)
    hosts = torch.arange(len(action), device=action.device)
    complete = (exists | ~listens[op]).all(1)
    return ~(known_op & complete & allowed[hosts, op, slot])


def _lookup(values: dict[str, float] | dict[str, int], action: Tensor, head: Head) -> Tensor:
    """Return the value of each host's choice, (N, 1)."""
    table = _table(tuple(values.values()), action.device)
    return table[action[:, head].clamp(0, len(table) - 1)][:, None]


def _fill(state: SlotState, where: Tensor, **values: Tensor | int | float) -> SlotState:
    """Return the state with some fields replaced in some slots."""
    fields = {
        name: torch.where(where, value, getattr(state, name)).to(getattr(state, name).dtype)
        for name, value in values.items()
    }
    return state._replace(**fields)


def apply(
    state: SlotState, action: Int[Tensor, "N H"], vitals: Vitals, config: LifecycleConfig, space: ActionSpace
) -> tuple[SlotState, Bool[Tensor, " N"]]:
    """Carry out one action per host, and return the new state and which actions were refused.

    A refused action and WAIT change nothing; any other action moves one slot.
    """
    ignored = refused(action, legal(state, vitals, config), space.sizes)
    slots = torch.arange(state.stage.shape[1], device=action.device)
    chosen = (action[:, Head.SLOT, None] == slots) & ~ignored[:, None]  # N S

    def acts(op: Op) -> Tensor:
        return chosen & (action[:, Head.OP, None] == op)

    moved = state
    for row in TRANSITIONS:
        if row.op is not None:
            here = acts(row.op) & _open(row, state, vitals, config)
            moved = _fill(moved, here, stage=int(row.target), age=0)
    moved = _retarget(moved, action, acts(Op.SET_ALPHA_TARGET), acts(Op.PRUNE))
    return _plant(moved, action, acts(Op.GERMINATE), space), ignored


def _style(action: Tensor, field: str) -> Tensor:
    return _lookup({name: getattr(style, field) for name, style in STYLES.items()}, action, Head.STYLE)


def _plant(state: SlotState, action: Tensor, here: Tensor, space: ActionSpace) -> SlotState:
    """Plant seeds at alpha 0, with the ramp of their first blend set up. A twin takes the place of the stream."""
    blueprint = action[:, Head.BLUEPRINT, None]
    return _fill(
        state,
        here,
        seed_age=0,
        births=state.births + 1,
        blueprint=blueprint,
        graft=_style(action, "graft").where(blueprint != space.twin, int(Graft.REPLACE)),
        alpha=0.0,
        alpha_start=0.0,
        alpha_target=_lookup(ALPHA_TARGETS, action, Head.ALPHA_TARGET),
        ramp=_style(action, "ramp"),
        curve=int(Curve.LINEAR),
        ramp_epochs=_lookup(TEMPOS, action, Head.TEMPO),
        ramp_elapsed=0,
    )


def _retarget(state: SlotState, action: Tensor, retargeted: Tensor, pruned: Tensor) -> SlotState:
    """Start a new ramp from the present alpha to the chosen target, or to 0."""
    state = _fill(
        state,
        retargeted | pruned,
        alpha_start=state.alpha,
        curve=action[:, Head.ALPHA_CURVE, None],
        ramp_epochs=_lookup(ALPHA_SPEEDS, action, Head.ALPHA_SPEED),
        ramp_elapsed=0,
    )
    target = _lookup(ALPHA_TARGETS, action, Head.ALPHA_TARGET)
    state = _fill(state, retargeted, alpha_target=target, ramp=_style(action, "ramp"))
    return _fill(state, pruned, alpha_target=0.0, ramp=int(Curve.LINEAR))


def tick(state: SlotState, vitals: Vitals, config: LifecycleConfig) -> SlotState:
    """Begin an epoch: make the automatic transitions that are due, at most one per slot; move alpha; add 1 to ages."""
    moved = state
    for row in filter(lambda row: row.automatic, TRANSITIONS):
        due = _due(row, _open(row, state, vitals, config), state, config)
        moved = _fill(moved, due, stage=int(row.target), age=0)
    gone = has_voice(moved.stage, Voice.EMPTY)
    moved = _fill(moved, gone, **{k: v for k, v in EMPTY.items() if k not in KEPT})
    return _age(_ramp(moved))


def _ramp(state: SlotState) -> SlotState:
    elapsed = torch.minimum(state.ramp_elapsed + 1, state.ramp_epochs)
    progress = (elapsed / state.ramp_epochs).where(state.ramp_epochs > 0, 1.0).to(state.alpha.dtype)
    alpha = ramp(state.alpha_start, state.alpha_target, progress, state.ramp, state.curve)
    return _fill(state, has_voice(state.stage, Voice.RAMPING), ramp_elapsed=elapsed, alpha=alpha)


def _age(state: SlotState) -> SlotState:
    seeds = state.blueprint != NO_BLUEPRINT
    return state._replace(age=state.age + 1, seed_age=state.seed_age + seeds)


def problems(state: SlotState, sizes: tuple[int, ...]) -> list[str]:
    """Return the invariants that a state violates, which is an empty list for every reachable state."""
    if bool(((state.stage < 0) | (state.stage >= len(Stage))).any()):
        return ["a stage does not exist"]
    empty = has_voice(state.stage, Voice.EMPTY)
    silent = has_voice(state.stage, Voice.EMPTY, Voice.MUTE, Voice.INCUBATING)
    steady = has_voice(state.stage, Voice.STEADY)
    traces = [(x != EMPTY[name]) & empty for name, x in state._asdict().items() if name not in KEPT]
    checks = {
        "an empty slot has a blueprint, or a seed has none": empty != (state.blueprint == NO_BLUEPRINT),
        "a blueprint does not exist": (state.blueprint < -1) | (state.blueprint >= sizes[Head.BLUEPRINT]),
        "an empty slot keeps fields of its last seed": torch.stack(traces).any(0),
        "alpha is outside 0 to 1": ~((state.alpha >= 0) & (state.alpha <= 1)),
        "a silent seed has an alpha above 0": silent & (state.alpha != 0),
        "a steady seed is not at its target": steady & (state.alpha != state.alpha_target),
        "a seed was never planted": ~empty & (state.births < 1),
        "an age is negative": (state.age < 0) | (state.seed_age < 0),
        "a ramp is longer than its epochs": (state.ramp_elapsed < 0) | (state.ramp_elapsed > state.ramp_epochs),
    }
    return [problem for problem, where in checks.items() if bool(where.any())]
