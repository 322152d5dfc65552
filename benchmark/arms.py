"""Parts that comparisons of grown with fixed models share: arms, records of births, and processes side by side."""

import json
import os
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch

from esper.growth import Deepen, Doubling, Growth
from esper.leyline.errors import EsperError

Line = dict[str, Any]
"""What is known of one training, as JSON."""


def depths_of(arm: str) -> list[int]:
    """Return the depths of an arm: a fixed one such as "4", or depths that double such as "2-4-8"."""
    return [int(depth) for depth in arm.split("-")]


def checked_arm(arm: str) -> str:
    """Refuse an arm whose depths do not double."""
    if not all(b == 2 * a for a, b in pairwise(depths_of(arm))):
        raise ArgumentTypeError(f"the depths of an arm must double, as in 2-4-8, not {arm}")
    return arm


def add_options(parser: ArgumentParser, arms: list[str], lrs: list[float], flops: float) -> None:
    """Add the options that all comparisons have, with defaults."""
    parser.add_argument("--arms", nargs="+", type=checked_arm, default=arms, help="depths such as 4, or 2-4-8")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--lrs", nargs="+", type=float, default=lrs, help="learning rates")
    parser.add_argument("--flops", type=float, default=flops, help="operations of one training")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--out", type=Path, help="file to which the lines are appended")


class Watched:
    """Doubles chains when `Doubling` would, as often as an arm says, and evaluates the model right before.

    Args:
        times: How often the chains are doubled; with 0, the depth is fixed.
        evaluate: Returns the validation loss.
    """

    def __init__(self, times: int, evaluate: Callable[[], float]) -> None:
        self.policy = Doubling(Doubling().at[:times]) if times else None
        self.evaluate, self.before = evaluate, 0.0
        self.births: list[tuple[int, float, float]] = []
        """Step of every birth, with the validation loss right before and right after."""

    def __call__(self, growth: Growth) -> Deepen | None:
        action = self.policy(growth) if self.policy is not None else None
        if action is not None:
            self.before = self.evaluate()
        return action

    def step(self, growth: Growth, loss: torch.Tensor) -> None:
        """Make a step of the growth, and evaluate the model again if something was born."""
        count = len(growth.births)
        growth.step(loss)
        if len(growth.births) > count:
            self.births.append((growth.steps, round(self.before, 4), round(self.evaluate(), 4)))


class Case(NamedTuple):
    """One training of a comparison."""

    arm: str
    seed: int
    lr: float
    flops: float


def attempt(train: Callable[[Case], Line], case: Case) -> Line:
    """Train a case; a training that diverges has an error in place of results."""
    try:
        return train(case)
    except EsperError as error:
        return {"arm": case.arm, "seed": case.seed, "lr": case.lr, "error": str(error)}


def side_by_side(train: Callable[[Case], Line], cases: Sequence[Case], jobs: int) -> Iterator[Line]:
    """Train every case, `jobs` of them at a time in processes of their own, and yield results as they come."""
    if jobs == 1:
        yield from (attempt(train, case) for case in cases)
        return
    threads = max((os.cpu_count() or 1) // jobs, 1)
    with ProcessPoolExecutor(jobs, get_context("spawn"), torch.set_num_threads, (threads,)) as pool:
        for done in as_completed([pool.submit(attempt, train, case) for case in cases]):
            yield done.result()


def report(lines: Iterable[Line], out: Path | None) -> list[Line]:
    """Print each line as JSON when it comes, and append it to a file."""
    found = []
    for line in lines:
        found.append(line)
        print(json.dumps(line), flush=True)
        if out is not None:
            with open(out, "a") as file:
                file.write(json.dumps(line) + "\n")
    return found
