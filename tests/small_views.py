"""Views and observations made by hand: what a policy is told, without a fleet behind it."""

from collections.abc import Sequence

import torch

from esper.leyline.actions import ActionSpace, Op
from esper.leyline.lifecycle import TRANSITIONS, Stage, Voice
from esper.leyline.state import NO_BLUEPRINT, Setting, Signals, SlotState, Vitals
from esper.tamiyo import Controller, Features
from esper.tamiyo.features import HOST_FEATURES, SLOT_FEATURES, WINDOW, ScoreHistory, View, width
from esper.tamiyo.network import DESCRIPTORS, Choice, Observation, num_draws

CPU = torch.device("cpu")
NAN = float("nan")
SETTING = Setting(
    space=ActionSpace(("s0", "s1", "s2"), ("norm", "lora", "mlp", "wide")),
    episode=20,
    chance=0.2,
    guess=2.0,
    parameters=1000,
    families=("norm", "linear", "mlp", "mlp"),
    seed_parameters=torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 1.8], [0.9, 2.0, 1.1, 1.2]]),
)


def make_view(stages: Sequence[Sequence[Stage]], **known: object) -> View:
    """A view of hosts of `SETTING` with these slots; what is not `known` is plain. Gates are open: an op is legal in
    every stage from which it leads."""
    stage = torch.tensor(stages)
    hosts = len(stage)
    empty = torch.tensor([s.voice is Voice.EMPTY for s in Stage])[stage]
    legal = torch.stack(
        [torch.isin(stage, torch.tensor([t.source for t in TRANSITIONS if t.op is op])) for op in Op], 1
    )
    legal[:, Op.WAIT] = True

    def of_host(name: str, plain: object) -> torch.Tensor:
        return torch.as_tensor(known.pop(name, plain)).expand(hosts)

    def of_slot(name: str, plain: object) -> torch.Tensor:
        return torch.as_tensor(known.pop(name, plain)).expand(stage.shape)

    zeros = dict.fromkeys(("graft", "ramp", "curve", "ramp_epochs", "ramp_elapsed"), torch.zeros_like(stage))
    slots = SlotState(
        stage=stage,
        age=of_slot("slot_age", 0),
        seed_age=of_slot("seed_age", 0),
        births=of_slot("births", 0),
        blueprint=of_slot("blueprint", torch.where(empty, NO_BLUEPRINT, 0)),
        alpha=of_slot("alpha", 0.0),
        alpha_start=of_slot("alpha_start", 0.0),
        alpha_target=of_slot("alpha_target", 1.0),
        **zeros,
    )
    vitals = Vitals(
        sane=of_host("sane", True),
        healthy=of_slot("healthy", True),
        contribution=of_slot("contribution", NAN),
        share=of_slot("share", NAN),
        pull=of_slot("pull", 1.0),
    )
    signals = Signals(
        score=of_host("score", 0.5),
        metric=of_host("metric", 50.0),
        loss=of_host("loss", 1.0),
        train_loss=of_host("train_loss", 1.0),
        growth=of_host("growth", 0.0),
        flops=of_host("flops", 1e6),
        age=of_host("age", 4),
        sibling=of_host("sibling", True),
        legal=legal,
        slots=slots,
        vitals=vitals,
    )
    history = ScoreHistory(
        scores=torch.as_tensor(known.pop("scores", 0.5)).expand(hosts, WINDOW),
        best=of_host("best", 0.5),
        since_best=of_host("since_best", 0),
        first_loss=of_host("first_loss", 2.0),
    )
    view = View(signals, history, SETTING, of_host("rent", 0.02), of_host("budget", torch.inf))
    assert not known, f"nothing is called {', '.join(known)}"
    return view


def seen(hosts: int = 3, slots: int = 4, blueprints: int = 5, rng_seed: int = 0) -> Observation:
    """A random observation in which everything is affordable."""
    generator = torch.Generator().manual_seed(rng_seed)
    legal = torch.rand(hosts, len(Op), slots, generator=generator) < 0.5
    legal[:, Op.WAIT] = True
    return Observation(
        Features(
            torch.randn(hosts, width(HOST_FEATURES), generator=generator),
            torch.randn(hosts, slots, width(SLOT_FEATURES), generator=generator),
        ),
        legal,
        torch.ones(hosts, slots, blueprints, dtype=torch.bool),
        torch.randn(hosts, slots, blueprints, len(DESCRIPTORS), generator=generator),
    )


def act(controller: Controller, observation: Observation, uniform: torch.Tensor | None = None) -> Choice:
    """The first decision of a life; the likeliest choices, unless there are other uniform numbers."""
    hosts, _, slots = observation.legal.shape
    if uniform is None:
        uniform = torch.full((hosts, num_draws(slots, observation.affordable.shape[2])), 0.5)
    with torch.no_grad():
        return controller.act(observation, controller.blank(hosts, CPU), uniform)[0]
