"""What telling of a run costs: the folder, the board and TensorBoard, as a share of each update."""

import json
import tempfile
import time
from io import StringIO
from pathlib import Path

import torch
import tyro
from rich.console import Console

from esper.recipes import recipe
from esper.telemetry import SINKS, Board, RunFolder
from esper.telemetry.folder import environment


def main(name: str = "mnist1d", updates: int = 3) -> None:
    """Time updates of a recipe, and everything that is done with their reports."""
    asked = recipe(name)
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder.create(Path(place) / "run", asked.plain(), environment("cpu", torch.get_num_threads()))
        training, board = asked.build(), Board("run", updates)
        console = Console(file=StringIO(), width=100)
        tensorboard = SINKS["tensorboard"](folder.path, asked.plain(), 0)
        learning = telling = 0.0
        for _ in range(updates):
            start = time.perf_counter()
            report = training.step()
            learned = time.perf_counter()
            folder.append(report)
            for sink in (board, tensorboard):
                sink.hear(report)
            console.print(board)
            learning, telling = learning + learned - start, telling + time.perf_counter() - learned
    share = telling / (learning + telling)
    print(json.dumps({"recipe": name, "updates": updates, "ms_an_update": 1e3 * telling / updates, "share": share}))


if __name__ == "__main__":
    tyro.cli(main)
