"""Let policies that were made for fleets decide about the slots of one user's model."""

from typing import TYPE_CHECKING, Any

import torch

from esper.growth.policies import SlotAction
from esper.leyline.actions import Head, Op
from esper.leyline.errors import EsperError
from esper.leyline.rng import Purpose, key, uniform
from esper.leyline.state import Setting, Signals
from esper.tamiyo.features import ScoreHistory, View, empty_history, remember
from esper.tamiyo.network import HiddenState
from esper.tamiyo.policies import LearnedPolicy, Policy, draws

if TYPE_CHECKING:
    from esper.growth.growth import Growth

CPU = torch.device("cpu")


class SlotPolicy:
    """A policy of fleets, such as `esper.Heuristic` or a learned controller, for the slots of one model.

    The score it sees is 1 - loss / first loss, from the validation loss that `evaluate` returns.

    Args:
        policy: Any policy that `esper.evaluate` takes.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.guess = 0.0
        """The first validation loss."""
        self.first_cost = 0
        """Operations of an optimizer step at the first decision."""
        self.history: ScoreHistory | None = None
        self._setting: Setting | None = None
        self._memory: list[Any] | None = None

    def __call__(self, growth: "Growth") -> SlotAction | None:
        if not growth.decides_now:
            return None
        if growth.metric is None or growth.evaluate is None:
            raise EsperError(f"policy {self.policy.name!r} needs evaluate=, a function that returns a validation loss")
        fresh = torch.tensor([self.history is None])
        setting = self._setting = self._begin(growth) if self._setting is None else self._setting
        signals = self._signals(growth)
        self.history = remember(empty_history(1, CPU) if self.history is None else self.history, signals, fresh)
        limit = growth.config.max_parameters
        most = float("inf") if limit is None else limit / growth.num_initial - 1
        view = View(signals, self.history, setting, torch.tensor([growth.config.price]), torch.tensor([most]))
        draw = uniform(key(growth.config.rng_seed, Purpose.ACTION, growth.decision)[None], draws(setting)).float()
        action = self.policy.decide(view, fresh, draw)[0].tolist()
        return self._by_name(action, setting)

    def _begin(self, growth: "Growth") -> Setting:
        garden, metric = growth.slots, growth.metric
        assert garden.space is not None
        assert metric is not None
        if self.history is None:
            self.guess, self.first_cost = max(metric, 1e-12), growth.step_cost
        setting = Setting(
            space=garden.space,
            episode=growth.config.decisions,
            chance=0.0,
            guess=self.guess,
            parameters=growth.num_initial,
            families=garden.families,
            seed_parameters=garden.seed_parameters() / growth.num_initial,
        )
        self.policy.begin(setting, 1, CPU)
        if isinstance(self.policy, LearnedPolicy) and self._memory is not None:
            self.policy.memory = HiddenState(*(torch.tensor(part) for part in self._memory))
        return setting

    def _signals(self, growth: "Growth") -> Signals:
        garden, metric, average = growth.slots, growth.metric, growth.watch.average
        assert garden.vitals is not None
        assert metric is not None
        score = max(0.0, 1 - metric / self.guess)
        garden.measure(score, lambda planted: max(0.0, 1 - growth.metric_without(planted) / self.guess))
        return Signals(
            score=torch.tensor([score]),
            metric=torch.tensor([metric]),
            loss=torch.tensor([metric]),
            train_loss=torch.tensor([float("nan") if average is None else float(average)]),
            growth=torch.tensor([growth.num_parameters / growth.num_initial - 1]),
            flops=torch.tensor([float(growth.step_cost)]),
            age=torch.tensor([growth.decision - 1]),
            sibling=torch.ones(1, dtype=torch.bool),
            legal=garden.legal(),
            slots=garden.state,
            vitals=garden.vitals,
            spent=torch.tensor([growth.progress]),
            pace=torch.tensor([growth.step_cost / (self.first_cost or growth.step_cost)]),
        )

    @staticmethod
    def _by_name(action: list[int], setting: Setting) -> SlotAction | None:
        op = Op(action[Head.OP])
        if op is Op.WAIT:
            return None
        names = setting.space.choices
        return SlotAction(op.name, {h.name.lower(): names[h][action[h]] for h in op.heads if h is not Head.OP})

    def state_dict(self) -> dict[str, Any]:
        """Return what the next decision depends on, as JSON."""
        memory = self._memory
        if isinstance(self.policy, LearnedPolicy) and self._setting is not None:
            memory = [part.tolist() for part in self.policy.memory]
        history = None if self.history is None else [_plain(part) for part in self.history]
        known = {"name": self.policy.name, "guess": self.guess, "first_cost": self.first_cost}
        return known | {"history": history, "memory": memory}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the state of another policy of this kind."""
        self._memory, self.guess = state["memory"], state["guess"]
        self.first_cost = int(state.get("first_cost", 0))  # absent from older files
        if state["history"] is not None:
            like = empty_history(1, CPU)
            parts = zip(state["history"], like, strict=True)
            self.history = ScoreHistory(*(_tensor(saved, part) for saved, part in parts))


def _plain(part: torch.Tensor) -> list[Any]:
    return [None if x != x else x for x in part.flatten().tolist()]


def _tensor(saved: list[Any], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor([float("nan") if x is None else x for x in saved]).to(like.dtype).view(like.shape)
