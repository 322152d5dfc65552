"""Train arms of the demo at several learning rates and seeds, one JSON line for each run.

python benchmark/demo_rates.py --rates 2e-3 4e-3 8e-3 --seeds 100    # choose each arm's rate
python benchmark/demo_rates.py --seeds 0 1 2                         # compare the arms at the rates of the demo
python benchmark/demo_rates.py --seeds 1 2 --arms "grown 1-2" "grown 1-2-3"

Two arms are not in the demo: "grown 1-2" doubles once, at 0.3 of the compute; "grown 1-2-3" stops at three blocks.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from demo import FIXED, FULL, GROWN, Arm, Run  # pyright: ignore[reportMissingImports]
from gpt import standard_library  # pyright: ignore[reportMissingImports]

from esper.growth import Doubling


def arms() -> dict[str, Arm]:
    """Return all arms by name, with fresh policies."""
    once = replace(GROWN, name="grown 1-2", policy=Doubling(at=(0.3,)))
    three = replace(GROWN, name="grown 1-2-3", max_growth=3)
    return {arm.name: arm for arm in (GROWN, *FIXED, once, three)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", choices=list(arms()), default=[arm.name for arm in (GROWN, *FIXED)])
    parser.add_argument("--rates", nargs="+", type=float, help="peak learning rates; by default each arm's own")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--out", type=Path, help="file to append the lines to")
    asked = parser.parse_args()
    data, validation = standard_library()
    for seed in asked.seeds:
        for name in asked.arms:
            for rate in asked.rates or [arms()[name].lr]:
                run = Run(replace(arms()[name], lr=rate), seed)
                for _ in run.train(data, validation, FULL):
                    pass
                line = {"arm": name, "lr": rate, "seed": seed, "loss": round(run.loss, 4), "steps": run.steps}
                line |= {"flops": run.flops, "seconds": round(run.seconds, 1)}
                print(json.dumps(line), flush=True)
                if asked.out:
                    with asked.out.open("a") as file:
                        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
