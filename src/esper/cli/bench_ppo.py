"""Measure one PPO update: Esper's and those of sb3-contrib."""

import json as json_module
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, NamedTuple

import torch
from rich.table import Table
from torch import Tensor

from esper.cli.bench import BenchPPO
from esper.cli.bench import Learner as LearnerName
from esper.cli.console import literal_console
from esper.cli.workloads import elapsed
from esper.leyline.actions import FIXED_CHOICES, Head, Op
from esper.leyline.errors import EsperError
from esper.simic.ppo import Learner, PPOConfig
from esper.simic.rollout import Rollout, whole_episodes
from esper.tamiyo.features import HOST_FEATURES, SLOT_FEATURES, Features, width
from esper.tamiyo.network import DESCRIPTORS, Choice, Controller, ControllerConfig, HiddenState, Observation, num_draws
from esper.tolaria import Engine

SLOTS, BLUEPRINTS, HIDDEN, SEEN = 3, 13, 512, 128
HEADS = [len(FIXED_CHOICES.get(head, ())) or {Head.SLOT: SLOTS, Head.BLUEPRINT: BLUEPRINTS}[head] for head in Head]
PEERS = "pip install 'esper-nn[bench]'"


def measure_updates(asked: BenchPPO) -> None:
    """Measure every learner asked for and print the results."""
    where = Engine(device=asked.device).place()
    rows: list[dict[str, Any]] = []
    with one_thread():
        for minibatches in asked.steps:
            rows += measure(asked, minibatches, repeats=1 if asked.quick else 7)
    baseline = {row["minibatches"]: row["update_ms"] for row in rows if row["who"] == "sb3_recurrent"}
    for row in rows:
        update_ms = baseline.get(row["minibatches"])
        row["ratio"] = None if update_ms is None else round(update_ms / row["update_ms"], 2)
    device = torch.cuda.get_device_name() if where.type == "cuda" else "CPU, 1 thread"
    if asked.json:
        print(json_module.dumps({"device": device, "torch": torch.__version__, "rows": rows}))
    else:
        _show(device, asked, rows)


def measure(asked: BenchPPO, minibatches: int, repeats: int) -> list[dict[str, Any]]:
    """Return the median times of all learners, which update in turn so that other load on the machine affects all."""
    ready = {who: (_esper if who == "esper" else _peer)(asked, who, minibatches) for who in asked.learners}
    device, times = torch.device(asked.device), {who: [] for who in asked.learners}
    for _ in range(repeats):
        for who, one in ready.items():
            times[who].append(elapsed(one.update, device) * 1e3)
    rows = []
    for who, one in ready.items():
        row = {
            "who": who,
            "minibatches": minibatches,
            "decisions": asked.hosts * asked.decisions,
            "update_ms": round(median(times[who]), 3),
            "act_ms": round(one.act_ms, 3),
        }
        if who == "esper" and device.type == "cuda":
            row["peak_mb"] = torch.cuda.max_memory_allocated() >> 20
        print(json_module.dumps(row), file=sys.stderr, flush=True)
        rows.append(row)
    return rows


class Ready(NamedTuple):
    """A learner ready to be measured."""

    update: Callable[[], object]
    act_ms: float
    """Median milliseconds of one decision for all hosts."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread: what is compared is code, not how it shares cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _esper(asked: BenchPPO, who: LearnerName, minibatches: int) -> Ready:
    device = torch.device(asked.device)
    controller = Controller(ControllerConfig(hidden=HIDDEN)).to(device)
    learner = Learner(controller, PPOConfig(epochs=1, minibatches=minibatches))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    rollout, act_ms = acted(controller, random_observations(asked.decisions, asked.hosts, device))
    learner.update(rollout)
    return Ready(lambda: learner.update(rollout), act_ms)


def random_observations(length: int, hosts: int, device: torch.device) -> Observation:
    """Return random observations in which some choices are illegal."""
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(length, hosts, *shape, generator=generator, device=device)

    legal = normal(len(Op), SLOTS) > 0
    legal[..., Op.WAIT, :] = True
    features = Features(normal(width(HOST_FEATURES)), normal(SLOTS, width(SLOT_FEATURES)))
    return Observation(features, legal, normal(SLOTS, BLUEPRINTS) > -1, normal(SLOTS, BLUEPRINTS, len(DESCRIPTORS)))


def acted(controller: Controller, seen: Observation) -> tuple[Rollout, float]:
    """Decide for all observations in turn; return the rollout and the median milliseconds of a decision."""
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
    rollout = whole_episodes(seen, choice, reward, HiddenState(*(x.clone() for x in before)))
    return rollout, median(times) * 1e3


def _peer(asked: BenchPPO, who: LearnerName, minibatches: int) -> Ready:
    try:
        from esper.cli.peers import peer
    except ImportError:
        raise EsperError(f"{who} needs sb3-contrib: {PEERS}, or measure Esper alone with --learners esper") from None
    hosts, decisions = asked.hosts, asked.decisions
    return Ready(*peer(who, minibatches, hosts=hosts, decisions=decisions, heads=HEADS, seen=SEEN, hidden=HIDDEN))


def _show(device: str, asked: BenchPPO, rows: list[dict[str, Any]]) -> None:
    table = Table(
        title=f"One update from {asked.hosts} × {asked.decisions} decisions on {device}",
        caption="ratio: how many times as fast as RecurrentPPO with equal minibatches",
    )
    for name in ("who", "minibatches", "update, ms", f"acting for {asked.hosts}, ms", "ratio"):
        table.add_column(name, justify="left" if name == "who" else "right")
    for row in rows:
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        table.add_row(row["who"], str(row["minibatches"]), f"{row['update_ms']:.1f}", f"{row['act_ms']:.2f}", ratio)
    literal_console().print(table)
