"""`esper bench ppo`."""

import json as json_module
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from esper.cli.workloads import elapsed
from esper.leyline.actions import FIXED_CHOICES, Head, Op
from esper.leyline.errors import EsperError
from esper.simic.ppo import Learner, PPOConfig
from esper.simic.rollout import Rollout
from esper.tamiyo.features import HOST_FEATURES, SLOT_FEATURES, Features, width
from esper.tamiyo.network import DESCRIPTORS, Choice, Controller, ControllerConfig, HiddenState, Observation, num_draws
from esper.tolaria import Engine

Who = Literal["esper", "sb3_recurrent", "sb3_maskable"]
SLOTS, BLUEPRINTS, HIDDEN, SEEN = 3, 13, 512, 128
HEADS = [len(FIXED_CHOICES.get(head, ())) or {Head.SLOT: SLOTS, Head.BLUEPRINT: BLUEPRINTS}[head] for head in Head]
PEERS = "pip install 'esper-nn[bench]'"


@dataclass(frozen=True, kw_only=True)
class BenchPPO:
    """How long one update of a policy takes: Esper's, and those of sb3-contrib, in one run and with equal minibatches.

    3 slots and 13 blueprints, an LSTM of 512, one epoch, one thread. Ratios are to RecurrentPPO with a shared LSTM.
    """

    device: str = "cpu"
    """Where Esper runs; the others run on the CPU alone."""
    who: tuple[Who, ...] = ("esper", "sb3_recurrent", "sb3_maskable")
    minibatches: tuple[int, ...] | None = None
    """Steps in one update: 1 4 8."""
    hosts: int = 8
    """Lives at a time."""
    decisions: int = 150
    """Of each life."""
    quick: bool = False
    """A coarse answer in less than a minute on two cores."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> None:
        for name in ("hosts", "decisions"):
            if getattr(self, name) < 1:
                raise EsperError(f"{name} must be at least 1, not {getattr(self, name)}")
        where = Engine(device=self.device).place()
        counts = self.minibatches or ((1, 4) if self.quick else (1, 4, 8))
        if max(counts) > self.hosts:
            raise EsperError(f"minibatches ({max(counts)}) hold whole lives, and there are only {self.hosts}")
        rows: list[dict[str, Any]] = []
        with one_thread():
            for count in counts:
                rows += self.measure(count, repeats=1 if self.quick else 7)
        slow = {row["minibatches"]: row["update_ms"] for row in rows if row["who"] == "sb3_recurrent"}
        for row in rows:
            known = slow.get(row["minibatches"])
            row["ratio"] = None if known is None else round(known / row["update_ms"], 2)
        device = torch.cuda.get_device_name() if where.type == "cuda" else "CPU, 1 thread"
        if self.json:
            print(json_module.dumps({"device": device, "torch": torch.__version__, "rows": rows}))
        else:
            _show(device, self, rows)

    def measure(self, minibatches: int, repeats: int) -> list[dict[str, Any]]:
        """Everybody's update in turn, so that a machine's moods meet all alike; the medians."""
        ready = {who: (_esper if who == "esper" else _peer)(self, who, minibatches) for who in self.who}
        device, times = torch.device(self.device), {who: [] for who in self.who}
        for _ in range(repeats):
            for who, one in ready.items():
                times[who].append(elapsed(one.update, device) * 1e3)
        rows = []
        for who, one in ready.items():
            row = {
                "who": who,
                "minibatches": minibatches,
                "decisions": self.hosts * self.decisions,
                "update_ms": round(median(times[who]), 3),
                "act_ms": round(one.act_ms, 3),
            }
            if who == "esper" and device.type == "cuda":
                row["peak_mb"] = torch.cuda.max_memory_allocated() >> 20
            print(json_module.dumps(row), file=sys.stderr, flush=True)
            rows.append(row)
        return rows


class Ready(NamedTuple):
    """One who can be measured."""

    update: Callable[[], object]
    act_ms: float
    """Of one decision for all hosts; the median."""


@contextmanager
def one_thread() -> Iterator[None]:
    """What is compared is code, not how it shares two cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _esper(asked: BenchPPO, who: Who, minibatches: int) -> Ready:
    device = torch.device(asked.device)
    controller = Controller(ControllerConfig(hidden=HIDDEN)).to(device)
    learner = Learner(controller, PPOConfig(epochs=1, minibatches=minibatches))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    rollout, act_ms = acted(controller, made_up(asked.decisions, asked.hosts, device))
    learner.update(rollout)
    return Ready(lambda: learner.update(rollout), act_ms)


def made_up(length: int, hosts: int, device: torch.device) -> Observation:
    """Observations of lives that nobody lived, with some choices forbidden."""
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(length, hosts, *shape, generator=generator, device=device)

    legal = normal(len(Op), SLOTS) > 0
    legal[..., Op.WAIT, :] = True
    features = Features(normal(width(HOST_FEATURES)), normal(SLOTS, width(SLOT_FEATURES)))
    return Observation(features, legal, normal(SLOTS, BLUEPRINTS) > -1, normal(SLOTS, BLUEPRINTS, DESCRIPTORS))


def acted(controller: Controller, seen: Observation) -> tuple[Rollout, float]:
    """Decide for all of it, one decision after the other; the rollout, and the median time of a decision."""
    host = seen.features.host
    (length, hosts), device = host.shape[:2], host.device
    generator = torch.Generator(device).manual_seed(1)
    memory = before = controller.blank(hosts, device)
    choices, times = [], []
    for t in range(length):
        now = Observation(Features(*(x[t] for x in seen.features)), *(x[t] for x in seen[1:]))
        random = torch.rand(hosts, num_draws(SLOTS, BLUEPRINTS), generator=generator, device=device)
        start = time.perf_counter()
        with torch.inference_mode():
            choice, memory = controller.act(now, memory, random)
        choice.action.cpu()  # as an environment would
        times.append(time.perf_counter() - start)
        choices.append(choice)
    choice = Choice(*(torch.stack(x).clone() for x in zip(*choices, strict=True)))
    reward = torch.randn(length, hosts, generator=generator, device=device)
    start = torch.zeros(length, hosts, dtype=torch.bool, device=device)
    ended = start.clone()
    start[0], ended[-1] = True, True
    after = torch.cat([choice.value[1:], torch.zeros_like(reward[:1])])
    rollout = Rollout(
        seen=seen,
        choice=choice,
        reward=reward,
        after=after,
        ended=ended,
        sick=torch.zeros_like(ended),
        start=start,
        comparable=torch.ones_like(ended),
        objective=reward,
        score=reward,
        growth=reward,
        groups=torch.arange(hosts, device=device),
        memory=HiddenState(*(x.clone() for x in before)),
    )
    return rollout, median(times) * 1e3


def _peer(asked: BenchPPO, who: Who, minibatches: int) -> Ready:
    try:
        from esper.cli.peers import peer
    except ImportError:
        raise EsperError(f"{who} needs sb3-contrib: {PEERS}, or measure Esper alone with --who esper") from None
    hosts, decisions = asked.hosts, asked.decisions
    return Ready(*peer(who, minibatches, hosts=hosts, decisions=decisions, heads=HEADS, seen=SEEN, hidden=HIDDEN))


def _show(device: str, asked: BenchPPO, rows: list[dict[str, Any]]) -> None:
    table = Table(
        title=f"One update from {asked.hosts} × {asked.decisions} decisions on {device}",
        caption="ratio: how many times faster than RecurrentPPO with as many minibatches",
    )
    for name in ("who", "minibatches", "update, ms", f"acting for {asked.hosts}, ms", "ratio"):
        table.add_column(name, justify="left" if name == "who" else "right")
    for row in rows:
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        table.add_row(row["who"], str(row["minibatches"]), f"{row['update_ms']:.1f}", f"{row['act_ms']:.2f}", ratio)
    Console().print(table)
