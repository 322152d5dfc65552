"""Hold the exam of one setting in parts, each of which a process of its own can play.

A part is an arm on the hosts that count, or a choice that several arms depend on: the plans of a search, the learning
rates of all arms with a policy, which are tuned side by side on one fleet, and those of fixed sizes.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch

from esper.exam import plans, sizes
from esper.exam.arms import Arm, with_sizes
from esper.exam.derived import grown_on_tuning_hosts
from esper.exam.holding import require_equal_compute, rivals_of, verdicts
from esper.exam.records import Background, ExamReport, Life
from esper.exam.runs import ArmResult, ArmRun
from esper.exam.sitting import Played, Sitting
from esper.leyline.atomic import replace_file
from esper.leyline.json_records import from_json, jsonable
from esper.leyline.state import SlotState
from esper.leyline.tensor_files import Tensors, flatten, parsing, read, write
from esper.simic.evaluation import Outcome
from esper.tamiyo.policies import Policy

ARM_FORMAT = "esper.arm"
SEARCHES = (plans.best_random_plan, plans.grid_oracle)
"""What makes policies by a search, which takes longer than to play them."""


@dataclass(frozen=True)
class Part:
    """One part of the exam of a setting."""

    kind: Literal["plan", "rates", "sizes", "arm"]
    """What is done: choose a plan, choose learning rates, try fixed sizes, or play an arm."""
    arm: str
    """The arm that is played or planned for; empty if it is for several."""
    after: tuple[str, ...] = ()
    """Names of the parts that must have ended before."""

    @property
    def name(self) -> str:
        return f"{self.kind} {self.arm}".strip()

    def path(self, folder: Path) -> Path:
        """Return the file of its result in the folder of its setting."""
        return folder / (re.sub(r"\W+", "-", self.name) + (".safetensors" if self.kind == "arm" else ".done"))


def parts_of(sitting: Sitting, ours: str, arms: Sequence[Arm]) -> list[Part]:
    """Return the parts of an exam: those that others depend on come first."""
    planned = [Part("plan", arm.name) for arm in arms if arm.policy in SEARCHES]
    chosen = planned if len(sitting.tuner.grid) == 1 else [Part("rates", "", tuple(part.name for part in planned))]
    tried = [Part("sizes", "")] if with_sizes(sitting) else []
    us, derived = Part("arm", ours), []
    for arm in arms:
        if arm.play is not None:
            needs = tuple(Part("arm", need).name for need in arm.needs)
            derived.append(Part("arm", arm.name, (us.name, *needs, *(part.name for part in tried))))
    rivals = [Part("arm", arm.name, tuple(part.name for part in chosen)) for arm in arms if arm.policy is not None]
    return [*dict.fromkeys([*planned, *tried, *chosen]), us, *rivals, *derived]


class SettingParts:
    """The parts of the exam of one setting, and the folder of their results."""

    def __init__(self, sitting: Sitting, policies: Sequence[Policy], arms: Sequence[Arm], folder: Path) -> None:
        self.sitting, self.policies, self.arms, self.folder = sitting, policies, arms, folder
        self.ours = policies[0].name
        self.parts = parts_of(sitting, self.ours, arms)
        life = sitting.hosts.example.life()
        self.budget = None if life is None else float(life[0])

    def play(self, name: str) -> None:
        """Play one part whose predecessors have been played, and write its result."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (part,) = [part for part in self.parts if part.name == name]
        (arm,) = [arm for arm in self.arms if arm.name == part.arm] or [None]
        if part.kind == "arm":
            result = require_equal_compute(self.budget, self._played(part.arm, arm))
            write(part.path(self.folder), ARM_FORMAT, *stored(result))
            return
        if part.kind == "plan" and arm is not None and arm.policy is not None:
            arm.policy(self.sitting)
        elif part.kind == "rates":
            self._rates()
        else:
            sizes.tried(self.sitting)
        replace_file(part.path(self.folder), "")

    def _rates(self) -> dict[str, tuple[Policy, float]]:
        """Return the policy and the learning rate of every arm that has a policy."""
        rivals = rivals_of(self.sitting, self.arms)
        rates = self.sitting.tuner.tuned([[rival] for rival in rivals.values()])
        return {name: (rival, lr) for (name, rival), lr in zip(rivals.items(), rates, strict=True)}

    def _played(self, name: str, arm: Arm | None) -> ArmResult:
        sitting, policies = self.sitting, self.policies
        if name == self.ours:
            (lr,) = sitting.tuner.tuned([policies])
            return sitting.play(name, policies, lr)
        assert arm is not None
        if arm.play is None:
            rival, lr = self._rates()[name]
            return sitting.play(name, [rival], lr)
        ours = self.result(self.ours)
        others = {need: self.result(need) for need in arm.needs}
        return arm.play(sitting, Played(policies, ours, others, cache(lambda: self._grown(ours.lr))))

    def _grown(self, lr: float) -> list[SlotState]:
        return grown_on_tuning_hosts(self.sitting, self.policies, lr)

    def result(self, name: str) -> ArmResult:
        """Return the result of an arm that has been played."""
        return load_arm(Part("arm", name).path(self.folder), self.sitting.hosts.example.fleet.device)

    def report(self, background: Background) -> tuple[ExamReport, list[Life]]:
        """Return the verdicts and some episodes once all parts have been played."""
        others = {arm.name: self.result(arm.name) for arm in self.arms}
        return verdicts(self.sitting, self.arms, self.result(self.ours), others, background)


def stored(result: ArmResult) -> tuple[Tensors, dict[str, Any]]:
    """Return the result of an arm as tensors and a description."""
    tensors: Tensors = {}
    for n, run in enumerate(result.runs):
        tensors |= flatten(run.outcome, f"{n}/outcome") | flatten(run.topology, f"{n}/topology")
        tensors |= {f"{n}/actions": torch.stack(run.actions)} if run.actions else {}
    runs = [
        {"seconds": run.seconds, "step": run.step, "lives": [jsonable(asdict(life)) for life in run.lives]}
        for run in result.runs
    ]
    about = {name: getattr(result, name) for name in ("name", "episode", "lr", "searched", "paired", "plan")}
    return tensors, about | {"runs": runs}


def load_arm(path: Path, device: torch.device) -> ArmResult:
    """Load the result of an arm.

    Raises:
        FileError: The file is missing or damaged.
    """
    tensors, about = read(path, ARM_FORMAT)
    with parsing(path):
        runs = [_run(n, run, tensors, device) for n, run in enumerate(about.pop("runs"))]
        return ArmResult(runs=runs, **about)


def _run(n: int, about: Mapping[str, Any], tensors: Tensors, device: torch.device) -> ArmRun:
    def fields(kind: Any, name: str) -> Any:
        return kind(**{field: tensors[f"{n}/{name}/{field}"].to(device) for field in kind._fields})

    lives = [from_json(Life, life, f"life {i}", null=float("nan")) for i, life in enumerate(about["lives"])]
    actions = tensors.get(f"{n}/actions")
    steps = [] if actions is None else list(actions.to(device))
    topology = fields(SlotState, "topology")
    return ArmRun(fields(Outcome, "outcome"), lives, steps, topology, about["seconds"], about["step"])


class KeptChoices:
    """What the parts of one setting have chosen, each part in a file that it alone writes."""

    def __init__(self, folder: Path, part: str) -> None:
        self.folder, self.path = folder, folder / (re.sub(r"\W+", "-", part) + ".choices.json")
        self.own: dict[str, Sequence[float]] = dict(self._read(self.path))

    @staticmethod
    def _read(path: Path) -> Iterator[tuple[str, Sequence[float]]]:
        if path.exists():
            with parsing(path):
                yield from from_json(dict[str, tuple[float, ...]], json.loads(path.read_text()), "choices").items()

    def get(self, purpose: str, /) -> Sequence[float] | None:
        """Return a choice of any part; None if it has not been made."""
        for path in sorted(self.folder.glob("*.choices.json")):
            for known, choice in self._read(path):
                if known == purpose:
                    return choice
        return None

    def __setitem__(self, purpose: str, choice: Sequence[float], /) -> None:
        self.own[purpose] = choice
        replace_file(self.path, json.dumps(self.own))
