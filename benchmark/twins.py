"""Compare doubling by twins with every fixed depth, and with doubling by zero-initialised blocks, at equal FLOPs.

Transformers of 2 blocks on a text file, 30 paired hosts, every arm at its own learning rate, scored on test data:
    python3 benchmark/twins.py tinyshakespeare.txt --width 32 --budget 200 --device cuda
Prints one line of JSON per arm.
"""

import argparse
import json
import sys
import time

from torch import Tensor, nn

from esper.exam.arms import Arm, admitted
from esper.exam.config import ExamConfig
from esper.exam.holding import hold
from esper.exam.sitting import Sitting
from esper.kasmina import LifecycleConfig, register_blueprint
from esper.kasmina.architectures import gpt_block
from esper.kasmina.layers import Linear
from esper.recipes.config import FleetConfig, Recipe
from esper.tamiyo.policies import Doubling
from esper.tolaria import Engine, EnvConfig, TrainConfig

OTHERS = ("random", "heuristic", "doubling", "probe", "sweep")
"""Arms of other exams that this comparison does not need."""


class ZeroBlock(nn.Module):
    """A block with random weights whose output layers are zero, as a delta on the stream."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.block = gpt_block(channels)
        for name in ("0.1.out", "1.3"):
            last = self.block.get_submodule(name)
            assert isinstance(last, Linear)
            last.bounds = {}
            for p in last.parameters():
                nn.init.zeros_(p)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x) - x


class ZeroDoubling(Doubling):
    """The same plan with zero-initialised blocks."""

    name = "doubling, zero"

    def __init__(self) -> None:
        super().__init__(blueprint="zero_block")


class Once(Doubling):
    """Twins, to twice the depth only."""

    name = "doubling once"

    def __init__(self) -> None:
        super().__init__(at=(0.3,))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--budget", type=float, default=200.0)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--hosts", type=int, default=30)
    parser.add_argument("--tuned-on", type=int, default=8)
    parser.add_argument("--depths", type=int, nargs="+", default=[2, 3, 4, 6, 8])
    parser.add_argument("--rates", type=float, nargs="+", default=[0.5, 1.0, 2.0, 4.0])
    parser.add_argument("--silent", type=int, default=0, help="epochs of silent training of zero-initialised blocks")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="fp32")
    asked = parser.parse_args()
    register_blueprint("zero_block", lambda slot: ZeroBlock(slot.channels), "tokens", family="own")
    fleet = FleetConfig(
        task="text",
        options={"path": asked.path, "validation": 256},
        host="gpt",
        widths=(asked.width,) * 2,
        slots=3,
        train=TrainConfig(lr=3e-3, batch_size=32, steps=asked.steps),
        lifecycle=LifecycleConfig(min_training=asked.silent and 1, training=asked.silent, measure_every=0),
        env=EnvConfig(budget=asked.budget),
        sizes=tuple((asked.width,) * depth for depth in asked.depths),
    )
    config = ExamConfig(
        hosts=asked.hosts, rates=tuple(asked.rates), tuned_on=asked.tuned_on, plans=0, thorough=False, price=0.0
    )
    recipe = Recipe(name="twins", fleets=(fleet,), engine=Engine(device=asked.device, precision=asked.precision))
    zero = Arm(name=ZeroDoubling.name, does="the same plan, zero-initialised", policy=lambda sitting: ZeroDoubling())
    once = Arm(name=Once.name, does="twins, to twice the depth", policy=lambda sitting: Once())
    ours = Doubling()
    ours.name = "doubling, twins"
    started = time.perf_counter()
    sitting = Sitting(recipe, fleet, config, tell=lambda said: print(said, file=sys.stderr, flush=True))
    arms = [arm for arm in admitted(sitting, ours.name, [zero, once]) if arm.name not in OTHERS]
    report, _ = hold(sitting, [ours], arms)
    for arm in report.arms:
        told = {"arm": arm.name, "loss": arm.mean, "iqm": arm.iqm, "params": arm.params, "flops": arm.flops}
        told |= {"lr": arm.lr, "sick": arm.sick, "verdict": arm.verdict, "plan": arm.plan, "seconds": arm.seconds}
        if arm.score_difference is not None:
            told["ours_minus_this"] = str(arm.score_difference)
        print(json.dumps(told), flush=True)
    print(json.dumps({"setting": report.setting, "budget": asked.budget, "seconds": time.perf_counter() - started}))


if __name__ == "__main__":
    main()
