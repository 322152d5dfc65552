"""`esper bench precision`."""

import json as json_module
from dataclasses import dataclass

import torch

from esper.kasmina import weak_host
from esper.leyline.errors import EsperError
from esper.tasks import load_task
from esper.tolaria import Engine, Fleet, TrainConfig


@dataclass(frozen=True, kw_only=True)
class BenchPrecision:
    """Does bf16 train as well as fp32? The same hosts, data order and growth; only the precision differs."""

    task: str = "planted"
    host: str = "mlp"
    hosts: int = 30
    epochs: int = 20
    rent: float = 0.02
    """J = score - rent * ln(1 + growth)."""
    json: bool = False

    def run(self) -> None:
        if not torch.cuda.is_available():
            raise EsperError("bf16 needs a CUDA device, and there is none here")
        task = load_task(self.task)
        scores, growths = {}, {}
        for precision in ("fp32", "bf16"):
            engine = Engine(device="cuda", precision=precision)
            spec = weak_host(self.host, task.spec.inputs, task.spec.outputs)
            fleet = Fleet(spec, task, range(self.hosts), TrainConfig(), engine=engine)
            plant = fleet.space.action("GERMINATE", slot=fleet.space.slots[0])
            actions = torch.tensor([plant if n % 2 else fleet.space.action() for n in range(self.hosts)], device="cuda")
            for epoch in range(self.epochs):
                fleet.decide(actions if epoch == 0 else torch.zeros_like(actions))
            scores[precision] = fleet.evaluate().score.double()
            growths[precision] = fleet.growth(fleet.state).double()
        j = {name: scores[name] - self.rent * torch.log1p(growths[name]) for name in scores}
        paired = (j["bf16"] - j["fp32"]).cpu()
        error = 1.96 * paired.std() / self.hosts**0.5
        result = {
            "task": self.task,
            "hosts": self.hosts,
            "epochs": self.epochs,
            "j_fp32": round(j["fp32"].mean().item(), 4),
            "j_bf16": round(j["bf16"].mean().item(), 4),
            "difference": round(paired.mean().item(), 4),
            "low": round((paired.mean() - error).item(), 4),
            "high": round((paired.mean() + error).item(), 4),
        }
        print(json_module.dumps(result) if self.json else "\n".join(f"{k:12} {v}" for k, v in result.items()))
