"""Plant, blend in and prune the seeds of one user's model, by the lifecycle that fleets use.

A decision is a fixed share of the compute budget. Between two decisions alpha moves smoothly. A seed starts with its
last layer at zero and is blended in at once: there are no silent lessons, because the training loop is the user's.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from esper.growth import optimizers
from esper.growth.compute import Call
from esper.growth.records import GrowthConfig
from esper.growth.slots import (
    Place,
    Planted,
    find_places,
    named_modules,
    num_seed_parameters,
    plant,
    planted_at,
    seed_choices,
    uproot,
)
from esper.kasmina import lifecycle
from esper.kasmina.blueprints import blueprint
from esper.kasmina.gates import LifecycleConfig
from esper.kasmina.slots import build_seed
from esper.leyline.actions import ActionSpace, Graft, Head, Op
from esper.leyline.lifecycle import Stage
from esper.leyline.rng import Purpose, key
from esper.leyline.specs import SlotSpec, Stream
from esper.leyline.state import NO_BLUEPRINT, SlotState

if TYPE_CHECKING:
    from esper.growth.growth import Growth

LIFECYCLE = LifecycleConfig(min_training=0, training=0, embargo=2)
"""Gates of seeds in a user's model: no silent training, and a shorter embargo."""


@dataclass(frozen=True, eq=False)
class SeedChange:
    """A seed that was planted or removed, with what is needed to take it back."""

    slot: int
    before: SlotState
    removed: Planted | None = None
    optimizer: tuple[tuple[int, nn.Parameter, dict[str, Any]], ...] = ()
    """Group and state of each parameter of a removed seed."""
    is_fading: bool = False
    """Whether the seed is being pruned and still there."""


class Garden:
    """The slots of one user's model: their places, stages and seeds."""

    def __init__(self, model: nn.Module, config: GrowthConfig) -> None:
        self.config = config
        self.modules = named_modules(model, config.slots)
        self.places: tuple[Place, ...] = ()
        self.space: ActionSpace | None = None
        self.state = lifecycle.empty_slots(1, len(self.modules))
        self.vitals = lifecycle.unmeasured(self.state) if self.modules else None
        self.before = [0.0] * len(self.modules)
        """Alpha of each slot when the present stretch began."""
        self.since = 0.0
        """Progress when the present stretch began."""

    def __len__(self) -> int:
        return len(self.modules)

    @property
    def num_parameters(self) -> int:
        """Parameters of all seeds."""
        return sum(p.numel() for planted in self.planted for p in planted.parameters())

    @property
    def planted(self) -> list[Planted]:
        """All seeds, in the order of their slots."""
        return [found for place in self.places if (found := planted_at(place)) is not None]

    def see(self, model: nn.Module, call: Call) -> None:
        """Find the stream at every slot, and which seeds fit there."""
        if not self.modules:
            return
        self.places = find_places(model, self.modules, call, self.config.stream)
        choices = seed_choices(self.places[0].spec.stream, self.config.seeds)
        self.space = ActionSpace(tuple(self.modules), choices)

    @property
    def families(self) -> tuple[str, ...]:
        """The family of each blueprint that may be planted."""
        assert self.space is not None
        stream = self.places[0].spec.stream
        return tuple(blueprint(name, stream).spec.family for name in self.space.blueprints)

    def seed_parameters(self) -> Tensor:
        """Count the parameters of a seed of each blueprint in each slot, (S, K)."""
        assert self.space is not None
        sizes = [[self.num_parameters_of(s, name) for name in self.space.blueprints] for s in range(len(self))]
        return torch.tensor(sizes, dtype=torch.float32)

    def num_parameters_of(self, s: int, name: str) -> int:
        """Count the parameters that a seed of a blueprint would have in a slot."""
        return num_seed_parameters(self.places[s].spec, name)

    def size_of(self, action: Sequence[int]) -> int:
        """Count the parameters of the seed that an action plants."""
        assert self.space is not None
        return self.num_parameters_of(action[Head.SLOT], self.space.blueprints[action[Head.BLUEPRINT]])

    def legal(self) -> Tensor:
        """Return which op may be used on which slot, (1, O, S)."""
        assert self.vitals is not None
        return lifecycle.legal(self.state, self.vitals, LIFECYCLE)

    def act(self, growth: "Growth", action: Sequence[int]) -> bool:
        """Carry out an action on one slot; return whether it was legal."""
        assert self.space is not None
        assert self.vitals is not None
        before = self.state
        state, refused = lifecycle.apply(before, torch.tensor([list(action)]), self.vitals, LIFECYCLE, self.space)
        if bool(refused):
            return False
        if action[Head.OP] == Op.GERMINATE:
            # Its first ramp begins now: by the next decision alpha is where the first tick takes it.
            born = torch.arange(len(self)) == action[Head.SLOT]
            state = state._replace(stage=torch.where(born, int(Stage.BLENDING), state.stage))
            ramped = lifecycle.tick(state, lifecycle.unmeasured(state), LIFECYCLE)
            fields = zip(state, ramped, strict=True)
            state = SlotState(*(torch.where(born, new, old) for old, new in fields))
        self._tend(growth, before, state)
        if action[Head.OP] == Op.PRUNE:
            growth.changes.append(SeedChange(action[Head.SLOT], before, is_fading=True))
        return True

    def tick(self, growth: "Growth") -> None:
        """Move every seed on to its next decision."""
        assert self.vitals is not None
        self._tend(growth, self.state, lifecycle.tick(self.state, self.vitals, LIFECYCLE))

    def move(self, growth: "Growth") -> None:
        """Set alpha between the last decision and the next."""
        due = growth.decision / self.config.decisions
        share = min(1.0, (growth.progress - self.since) / max(due - self.since, 1e-9))
        for s, place in enumerate(self.places):
            planted, target = planted_at(place), float(self.state.alpha[0, s])
            if planted is not None:
                planted.set_alpha(target if share >= 1 else self.before[s] + share * (target - self.before[s]))

    def _tend(self, growth: "Growth", before: SlotState, state: SlotState) -> None:
        """Make the model agree with a new state: plant newborn seeds, remove pruned ones, begin a stretch of alpha."""
        now = [0.0 if (planted := planted_at(place)) is None else float(planted.alpha) for place in self.places]
        self.state, self.before, self.since = state, now, growth.progress
        for s, place in enumerate(self.places):
            wanted = int(state.blueprint[0, s]) != NO_BLUEPRINT
            planted = planted_at(place)
            if wanted and planted is None:
                self.put(growth, s)
                growth.changes.append(SeedChange(s, before))
            elif planted is not None and not wanted:
                last = growth.changes[-1] if growth.changes else None
                if isinstance(last, SeedChange) and last.is_fading and last.slot == s:
                    before = last.before
                    growth.changes.pop()
                growth.changes.append(self.remove(growth, s, before))
        self._note_stages(growth, before, state)

    def _note_stages(self, growth: "Growth", before: SlotState, state: SlotState) -> None:
        assert self.space is not None
        names = {Stage.BLENDING: "plant", Stage.FOSSILIZED: "fossilize", Stage.PRUNED: "prune"}
        for s, slot in enumerate(self.space.slots):
            old, new = Stage(int(before.stage[0, s])), Stage(int(state.stage[0, s]))
            if old is Stage.PRUNED or (new is Stage.BLENDING and old is not Stage.DORMANT):
                continue
            new = Stage.PRUNED if new is Stage.EMBARGOED and old is not new else new
            if new is not old and new in names:
                kind = self.space.blueprints[int((before if new is Stage.PRUNED else state).blueprint[0, s])]
                growth.note(names[new], f"{slot}: {kind}")

    def put(self, growth: "Growth", s: int, planted: Planted | None = None) -> None:
        """Plant the seed that the state asks for behind its module, and give its parameters to the optimizer."""
        assert self.space is not None
        place = self.places[s]
        if planted is None:
            planted = self._newborn(s, place)
        plant(place, planted)
        neighbours = [*place.module.parameters(recurse=False), *growth.model.parameters()]
        optimizers.join_beside(growth.optimizer, planted.parameters(), neighbours)
        growth.structure_changed(joined=planted.parameters())

    def _newborn(self, s: int, place: Place) -> Planted:
        assert self.space is not None
        name = self.space.blueprints[int(self.state.blueprint[0, s])]
        birth = key(self.config.rng_seed, Purpose.SEED_WEIGHTS, s, self.state.births[0, s])
        seed = build_seed(place.spec, name, Graft(int(self.state.graft[0, s])), birth)
        like = next(place.module.parameters(), None)
        like = next((p for m in self.modules.values() for p in m.parameters()), None) if like is None else like
        planted = Planted(seed, place.channels_first)
        return planted if like is None else planted.to(like.device, like.dtype)

    def remove(self, growth: "Growth", s: int, before: SlotState) -> SeedChange:
        """Remove a seed, and return what is needed to plant it again."""
        place, planted = self.places[s], planted_at(self.places[s])
        assert planted is not None
        groups = growth.optimizer.param_groups
        kept = tuple(
            (g, p, {k: optimizers.copied(v) for k, v in growth.optimizer.state.get(p, {}).items()})
            for p in planted.parameters()
            for g, group in enumerate(groups)
            if any(q is p for q in group["params"])
        )
        uproot(place)
        optimizers.leave(growth.optimizer, planted.parameters())
        growth.structure_changed(left=planted.parameters())
        return SeedChange(s, before, planted, kept)

    def undo(self, growth: "Growth", change: SeedChange) -> None:
        """Take a planting or a removal back."""
        s = change.slot
        if change.removed is None and not change.is_fading:
            self.remove(growth, s, self.state)
        fields = zip(self.state, change.before, strict=True)
        here = torch.arange(len(self)) == s
        self.state = SlotState(*(torch.where(here, old, now) for now, old in fields))
        if change.removed is not None:
            self.put(growth, s, change.removed)
            optimizers.leave(growth.optimizer, change.removed.parameters())
            for g, parameter, state in change.optimizer:
                growth.optimizer.param_groups[g]["params"].append(parameter)
                if state:
                    growth.optimizer.state[parameter] = state

    def clear(self, growth: "Growth") -> None:
        """Remove all seeds."""
        for s, place in enumerate(self.places):
            if planted_at(place) is not None:
                self.remove(growth, s, self.state)
        self.state = lifecycle.empty_slots(1, len(self.modules))

    def measure(self, score: float, score_without: Callable[[Planted], float]) -> None:
        """Measure what each seed contributes: the score with it minus the score without it."""
        self.vitals = lifecycle.unmeasured(self.state)
        for s, place in enumerate(self.places):
            planted = planted_at(place)
            if planted is not None:
                self.vitals.healthy[0, s] = all(bool(p.isfinite().all()) for p in planted.parameters())
                self.vitals.contribution[0, s] = score - score_without(planted)

    def describe(self) -> dict[str, Any]:
        """Return places, stages and alphas as JSON."""
        if not self.modules:
            return {}
        assert self.vitals is not None
        places = [
            {"name": p.spec.name, "stream": p.spec.stream, "shape": p.spec.shape, "channels_first": p.channels_first}
            for p in self.places
        ]
        return {
            "places": places,
            "blueprints": [] if self.space is None else self.space.blueprints,
            "alphas": [None if (p := planted_at(place)) is None else float(p.alpha) for place in self.places],
            "state": {name: x[0].tolist() for name, x in self.state._asdict().items()},
            "healthy": self.vitals.healthy[0].tolist(),
            "contribution": [None if math.isnan(x) else x for x in self.vitals.contribution[0].tolist()],
            "before": self.before,
            "since": self.since,
        }

    def load(self, growth: "Growth", saved: dict[str, Any]) -> None:
        """Take over stages and alphas, and plant the seeds; their weights are loaded later."""
        if not saved or not saved["places"]:
            return
        self.places = tuple(
            Place(
                self.modules[p["name"]],
                SlotSpec(p["name"], Stream.named(p["stream"]), tuple(p["shape"])),
                p["channels_first"],
            )
            for p in saved["places"]
        )
        self.space = ActionSpace(tuple(self.modules), tuple(saved["blueprints"]))
        empty = lifecycle.empty_slots(1, len(self.modules))
        self.state = SlotState(
            **{name: torch.tensor([saved["state"][name]], dtype=x.dtype) for name, x in empty._asdict().items()}
        )
        contribution = [math.nan if x is None else x for x in saved["contribution"]]
        self.vitals = lifecycle.unmeasured(self.state)._replace(
            healthy=torch.tensor([saved["healthy"]]), contribution=torch.tensor([contribution])
        )
        self.before, self.since = list(saved["before"]), saved["since"]
        for s, alpha in enumerate(saved["alphas"]):
            if alpha is not None:
                self.put(growth, s)
                growth.changes.append(SeedChange(s, empty._replace(births=self.state.births)))
                planted = planted_at(self.places[s])
                assert planted is not None
                planted.set_alpha(alpha)
