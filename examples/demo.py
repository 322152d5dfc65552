"""Race a GPT that grows while it trains against fixed depths, all at the same compute.

python examples/demo.py [--quick] [--out runs/demo]

Trains the byte-level GPT of examples/gpt.py on the source of Python's standard library five times: grown from one block
to four, and at fixed depths 1 to 4. Every arm spends the same floating-point operations at its own best learning rate.
About five minutes on 2 free CPU cores; writes a report with the curves.
"""

import argparse
import html
import io
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from gpt import BATCH, CONTEXT, GPT, batch, evaluate, loss_of, standard_library
from matplotlib import rc_context
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor, nn

import esper
from esper.growth import Deepen, Event, Growth


class Scale(NamedTuple):
    """How much is computed, and how often the validation loss is measured."""

    steps: int
    """Compute of every arm, in optimizer steps of the one-block model."""
    points: int
    """Measurements along each curve."""
    windows: int
    """Windows of validation text in each of them."""
    final_windows: int
    """Windows of validation text for the table."""


FULL, QUICK = Scale(7000, 20, 256, 2048), Scale(60, 4, 32, 64)
NOISE = 0.012
"""Largest difference between two seeds of one arm, rounded up: benchmark/results.md, "Demo"."""


def never(growth: Growth) -> None:
    """Grow nothing: a fixed depth, on the clock that all arms share."""


@dataclass(frozen=True)
class Arm:
    """One way to spend the compute."""

    name: str
    depth: int
    """Blocks at the beginning."""
    lr: float
    """Peak learning rate."""
    policy: str | Callable[[Growth], Deepen | None] = never
    max_growth: float = 4
    """Largest depth, as a multiple of the one at the beginning."""


# Each arm's best of at least three rates, the best of them never at an end: benchmark/results.md, "Demo", made by
# `python benchmark/demo_rates.py --rates 2e-3 4e-3 8e-3 --seeds 100` on 2 CPU cores, 2026-11-18.
GROWN = Arm("grown 1-2-4", 1, 4e-3, "doubling")
FIXED = (Arm("fixed 1", 1, 4e-3), Arm("fixed 2", 2, 8e-3), Arm("fixed 3", 3, 4e-3), Arm("fixed 4", 4, 4e-3))


@dataclass
class Run:
    """One arm's training, and what came of it."""

    arm: Arm
    rng_seed: int = 0
    curve: list[tuple[float, float]] = field(default_factory=list)
    """Operations spent, and the validation loss there."""
    births: list[Event] = field(default_factory=list)
    flops: int = 0
    step_cost: int = 0
    """Operations of the last step."""
    steps: int = 0
    parameters: int = 0
    seconds: float = 0.0
    loss: float = float("nan")
    """Validation loss at the end."""

    def train(self, data: Tensor, validation: Tensor, scale: Scale) -> Iterator[tuple[float, float]]:
        """Train the arm until its compute is spent. Yields the share spent and the training loss after each step."""
        started = time.perf_counter()
        torch.manual_seed(self.rng_seed)
        generator = torch.Generator().manual_seed(self.rng_seed)
        model = GPT(self.arm.depth)
        optimizer = torch.optim.AdamW(model.parameters(), lr=self.arm.lr, betas=(0.9, 0.95), weight_decay=0.1)
        growth = esper.grow(
            model, optimizer, flops=budget(scale), policy=self.arm.policy, max_growth=self.arm.max_growth
        )
        schedule = esper.WarmupStableDecay(optimizer, growth)
        while not growth.done:
            loss = loss_of(model, *batch(data, generator))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            growth.step(loss)
            schedule.step()
            if growth.progress >= len(self.curve) / scale.points:
                self.curve.append((growth.spent, evaluate(model, validation, scale.windows)))
            yield growth.progress, loss.item()
        growth.finish()
        self.births = [event for event in growth.log if event.kind == "deepen"]
        self.flops, self.step_cost, self.steps = growth.spent, growth.step_cost, growth.steps
        self.parameters = growth.num_parameters
        self.loss = evaluate(model, validation, scale.final_windows)
        self.curve.append((growth.spent, evaluate(model, validation, scale.windows)))
        self.seconds = time.perf_counter() - started


def budget(scale: Scale) -> int:
    """Return the floating-point operations that every arm may spend."""
    model = GPT(depth=1)
    text = torch.zeros(BATCH, CONTEXT, dtype=torch.long)
    growth = esper.grow(model, torch.optim.AdamW(model.parameters()), total=1, example=text)
    return scale.steps * growth.step_cost


def race(runs: list[Run], scale: Scale, console: Console) -> None:
    """Train all arms, one after the other, and show how far they are."""
    data, validation = standard_library()
    columns = (TextColumn("{task.description:<12}"), BarColumn(24), TaskProgressColumn())
    with Progress(*columns, TextColumn("loss {task.fields[loss]:.3f}"), TimeElapsedColumn(), console=console) as bars:
        for run in runs:
            bar, smooth = bars.add_task(run.arm.name, total=1.0, loss=float("nan")), None
            for share, loss in run.train(data, validation, scale):
                smooth = loss if smooth is None else 0.98 * smooth + 0.02 * loss
                bars.update(bar, completed=share, loss=smooth)
            bars.update(bar, completed=1.0, loss=run.loss)


def verdict(runs: list[Run]) -> str:
    """Say in a sentence whether growing won, lost, or differs by no more than seeds do."""
    grown, best = runs[0], min(runs[1:], key=lambda run: run.loss)
    gap = best.loss - grown.loss
    rival = f"the best fixed depth ({best.arm.depth}, known only in hindsight: {best.loss:.3f})"
    if abs(gap) <= NOISE:
        return f"Level: growing ended at {grown.loss:.3f}, within the noise between seeds ({NOISE}) of {rival}."
    won, side = ("won", "below") if gap > 0 else ("lost", "above")
    return f"Growing {won}: at equal compute it ended at {grown.loss:.3f}, {abs(gap):.3f} {side} {rival}."


def cells(runs: list[Run]) -> list[tuple[str, ...]]:
    """Return the table of results, its heading first."""
    rows = [(r.arm.name, f"{r.parameters:,}", f"{r.steps:,}", f"{r.seconds:.0f}", f"{r.loss:.3f}") for r in runs]
    return [("arm", "parameters", "steps", "seconds", "validation loss"), *rows]


def as_table(runs: list[Run]) -> Table:
    heading, *rows = cells(runs)
    table = Table()
    for i, title in enumerate(heading):
        table.add_column(title, justify="right" if i else "left")
    for row in rows:
        table.add_row(*row)
    return table


INK, GRID = "#22313f", "#e3e6e8"
COLORS = ("#2b7a4b", "#f1a340", "#7fb2d9", "#2166ac", "#0b2f5c")


def picture(runs: list[Run]) -> str:
    """Draw validation loss against compute as SVG, births marked."""
    style: dict[Any, Any] = {
        "font.size": 11,
        "font.family": "sans-serif",
        "svg.fonttype": "none",
        "svg.hashsalt": "demo",
    }
    colors = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    with rc_context(style | dict.fromkeys(colors, INK)):
        figure = Figure(figsize=(5, 4.4), layout="constrained")
        axes = figure.subplots()
        for run, color, width in zip(runs, COLORS, (2.6, 1.4, 1.4, 1.4, 1.4), strict=True):
            compute, losses = curve(run)
            axes.plot(compute, losses, color=color, lw=width, label=run.arm.name, zorder=1 + width)
            for birth in run.births:
                born = birth.flops / 1e12
                axes.axvline(born, color=color, lw=1, ls=":")
                name, place = f"{sum(birth.depth.values())} blocks", axes.get_xaxis_transform()
                axes.annotate(name, (born, 0.02), (4, 0), place, "offset points", color=color)
        early = max(loss for run in runs for spent, loss in run.curve if spent > 0.1 * run.flops)
        lowest = min(loss for run in runs for _, loss in run.curve)
        room = 0.08 * (early - lowest)
        axes.set(xlabel="compute, TFLOP", ylabel="validation loss", ylim=(lowest - room, early + room))
        axes.grid(color=GRID)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    text = file.getvalue()
    return text[text.index("<svg") :]


def curve(run: Run) -> tuple[list[float], list[float]]:
    return [spent / 1e12 for spent, _ in run.curve], [loss for _, loss in run.curve]


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Esper: grown or fixed?</title><style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #22313f; background: #fff; max-width: 42rem; margin: 0 auto;
  padding: 1rem; }}
h1 {{ font-size: 1.4rem; line-height: 1.25; }} svg {{ width: 100%; height: auto; }}
.verdict {{ font-size: 1.1rem; border-left: 4px solid #2b7a4b; padding-left: .8rem; }}
table {{ border-collapse: collapse; width: 100%; font-size: clamp(.6rem, 3vw, .95rem); }}
th, td {{ text-align: right; padding: .3rem .2rem; border-bottom: 1px solid #e3e6e8; white-space: nowrap;
  font-variant-numeric: tabular-nums; }} th:last-child {{ white-space: normal; }}
th:first-child, td:first-child {{ text-align: left; }} tr:nth-child(2) {{ font-weight: 600; }}
.notes {{ color: #5d6972; font-size: .9rem; }}
</style></head><body>
<h1>A GPT that grows while it trains, and fixed depths at the same compute</h1>
<p class="verdict">{verdict}</p>
<figure style="margin:0" role="img" aria-label="Validation loss against compute for every arm">{picture}</figure>
<table>{table}</table>
<p class="notes">A byte-level GPT on the source of Python's standard library. Every arm spends {flops:.2f} TFLOP,
counted on its own model, at its own best learning rate; a step of a deeper model costs more, so it makes fewer. Dotted
lines: a copy of every block is planted behind it and blended in. Curves are measured on {scale.windows:,} windows of
validation text, the table on {scale.final_windows:,}, so their levels differ a little. One seed; benchmark/results.md
says how seeds differ.</p>
</body></html>
"""


def page(runs: list[Run], sentence: str, scale: Scale) -> str:
    """Return the report: one HTML page that needs no other file."""
    rows = [("td" if i else "th", row) for i, row in enumerate(cells(runs))]
    table = "".join("<tr>" + "".join(f"<{tag}>{html.escape(x)}</{tag}>" for x in row) + "</tr>" for tag, row in rows)
    flops, verdict = budget(scale) / 1e12, html.escape(sentence)
    return PAGE.format(verdict=verdict, picture=picture(runs), table=table, flops=flops, scale=scale)


def as_json(run: Run) -> dict[str, Any]:
    """Return a run as plain data."""
    arm = {"name": run.arm.name, "depth": run.arm.depth, "lr": run.arm.lr}
    return {"arm": arm} | {key: value for key, value in asdict(run).items() if key != "arm"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a hundredth of the compute: shows that everything works")
    parser.add_argument("--seed", type=int, default=0, help="random seed of weights and batches")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder for the report")
    asked = parser.parse_args()
    console, scale = Console(), QUICK if asked.quick else FULL
    flops = budget(scale) / 1e12
    console.print(f"Five models, {flops:.2g} TFLOP each, trained on the source of Python's standard library")
    runs = [Run(arm, asked.seed) for arm in (GROWN, *FIXED)]
    race(runs, scale, console)
    sentence = "A quick run compares nothing: it only shows that everything works." if asked.quick else verdict(runs)
    console.print(as_table(runs))
    console.print(sentence)
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "report.html").write_text(page(runs, sentence, scale), encoding="utf-8")
    (asked.out / "runs.json").write_text(json.dumps([as_json(run) for run in runs], indent=1), encoding="utf-8")
    console.print(f"Report: {asked.out / 'report.html'}")


if __name__ == "__main__":
    main()
