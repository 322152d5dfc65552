"""One of two workers: the exchanges themselves, then trainings that the test compares with those of one worker."""

import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path

import torch
import torch.distributed as dist

from esper.leyline.errors import EsperError
from esper.leyline.json_records import jsonable
from esper.simic.checkpoint import load_training_run, save_training_run
from esper.simic.messages import deal, from_first, to_first
from esper.simic.workers import Place, Workers
from workers_toys import CONFIG, PPO, begin, joined_group, write_trace


def exchanges(workers: Workers) -> list[bool]:
    """What two workers give each other, in every direction."""
    rank = workers.rank
    ragged = torch.arange(2 + rank, dtype=torch.float64).expand(3, -1) + 10 * rank
    low, high = workers.largest(torch.tensor([1.0, -2.0]) * (1 - 2 * rank), torch.tensor(float(rank)))
    weights = {"a": torch.full((2,), float(rank)), "b": torch.tensor(rank)}
    workers.adopt(weights)
    long = bytes(range(256)) * (rank + 1)
    return [
        workers.numbers(rank, 7) == [[0, 7], [1, 7]],
        workers.place(3 + rank) == (Place(0, 3, 7) if rank == 0 else Place(3, 4, 7)),
        workers.any(rank == 1) and not workers.any(False),
        [x.tolist() for x in workers.sum(torch.ones(2) + rank, torch.tensor(5.0))] == [[3.0, 3.0], 10.0],
        (low.tolist(), high.item()) == ([1.0, 2.0], 1.0),
        workers.joined(ragged, 1).tolist() == [[0.0, 1.0, 10.0, 11.0, 12.0]] * 3,
        workers.joined(torch.tensor([True] * (1 - rank), dtype=torch.bool)).tolist() == [True],
        workers.joined(torch.tensor([2**60 + rank])).tolist() == [2**60, 2**60 + 1],
        [x.tolist() for x in weights.values()] == [[0.0, 0.0], 0],
        from_first(workers, b"told" if rank == 0 else b"") == b"told",
        from_first(workers, b"") == b"",
        to_first(workers, long) == ([bytes(range(256)), bytes(range(256)) * 2] if rank == 0 else []),
        to_first(workers, b"" if rank else b"x") == ([b"x", b""] if rank == 0 else []),
        deal(workers, [b"one", b"other"] if rank == 0 else []) == (b"one", b"other")[rank],
    ]


def trainings(workers: Workers, folder: Path) -> None:
    """Train in several ways; the first worker writes the reports down."""
    first = workers.is_first
    reports = {"plain": write_trace(folder / f"plain-{workers.rank}", begin(workers), 5)}
    reports["alone"] = write_trace(folder / f"alone-{workers.rank}", begin(workers, recurrent=False), 2)
    limited = replace(CONFIG, ppo=replace(PPO, target_kl=1e-7, lr=3e-3))
    reports["stopped"] = write_trace(folder / f"stopped-{workers.rank}", begin(workers, limited), 2)
    broken = begin(workers)
    broken.fleets.states[0].rent[0] = torch.nan if workers.rank == 1 else broken.fleets.states[0].rent[0]
    reports["broken"] = [broken.step()]
    saved = begin(workers)
    for _ in range(2):
        saved.step()
    save_training_run(folder / "two", saved, {"of": "two"})
    reports["went on"] = [saved.step()]
    again = begin(workers)
    notes = load_training_run(folder / "two", again)
    reports["resumed"] = [again.step()]
    other = begin(workers)
    load_training_run(folder / "one", other)
    reports["from one"] = [other.step()]
    never = begin(workers).never()
    if first:
        plain = {name: [jsonable(asdict(report)) for report in found] for name, found in reports.items()}
        (folder / "reports.json").write_text(json.dumps({"reports": plain, "never": never, "notes": notes}))


def refuses_other_controllers(workers: Workers, folder: Path) -> bool:
    """Whether a checkpoint is refused once a worker's controller is another one."""
    training = begin(workers)
    if not workers.is_first:
        next(training.controller.parameters()).data[0] += 1e-3
    try:
        save_training_run(folder / "none", training)
    except EsperError as error:
        return "the workers hold different controllers" in str(error) and not (folder / "none").exists()
    return not workers.is_first


def main(rank: int, size: int, folder: Path) -> None:
    workers = joined_group(rank, size, str(folder / "rendezvous"))
    checks = exchanges(workers)
    assert all(checks), checks
    trainings(workers, folder)
    assert refuses_other_controllers(workers, folder)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
    os._exit(0)  # threads of gloo that outlive their group can abort the interpreter's own exit
