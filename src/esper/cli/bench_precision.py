"""Compare hosts trained in bf16 with the same hosts in fp32."""

import json as json_module

import torch

from esper.cli.bench import BenchPrecision
from esper.kasmina import weak_host
from esper.leyline.errors import EsperError
from esper.tasks import load_task
from esper.tolaria import Engine, Fleet, TrainConfig


def compare_precisions(asked: BenchPrecision) -> None:
    """Train the hosts in both precisions and print the difference in J with its 95 % interval."""
    if not torch.cuda.is_available():
        raise EsperError("bf16 needs a CUDA device, and this machine has none")
    Engine(device=asked.device, precision="bf16").place()
    task = load_task(asked.task)
    scores, growths = {}, {}
    for precision in ("fp32", "bf16"):
        engine = Engine(device=asked.device, precision=precision)
        spec = weak_host(asked.host, task.spec.inputs, task.spec.outputs)
        fleet = Fleet(spec, task, range(asked.hosts), TrainConfig(), engine=engine)
        plant = fleet.space.action("GERMINATE", slot=fleet.space.slots[0])
        actions = torch.tensor(
            [plant if n % 2 else fleet.space.action() for n in range(asked.hosts)], device=asked.device
        )
        for epoch in range(asked.epochs):
            fleet.decide(actions if epoch == 0 else torch.zeros_like(actions))
        scores[precision] = fleet.evaluate().score.double()
        growths[precision] = fleet.growth(fleet.state).double()
    j = {name: scores[name] - asked.rent * torch.log1p(growths[name]) for name in scores}
    paired = (j["bf16"] - j["fp32"]).cpu()
    error = 1.96 * paired.std() / asked.hosts**0.5
    result = {
        "task": asked.task,
        "hosts": asked.hosts,
        "epochs": asked.epochs,
        "j_fp32": round(j["fp32"].mean().item(), 4),
        "j_bf16": round(j["bf16"].mean().item(), 4),
        "difference": round(paired.mean().item(), 4),
        "low": round((paired.mean() - error).item(), 4),
        "high": round((paired.mean() + error).item(), 4),
    }
    print(json_module.dumps(result) if asked.json else "\n".join(f"{k:12} {v}" for k, v in result.items()))
