"""Train one small host on MNIST-1D with a written growth plan, beside a twin that never grows, and draw its life.

python examples/one_life.py [picture.png]
"""

import sys
from pathlib import Path

import esper
from esper.dashboard import draw_life

EPOCHS = 30
PLAN = {
    0: ("GERMINATE", {"slot": "s0", "blueprint": "conv_heavy"}),
    4: ("GERMINATE", {"slot": "s2", "blueprint": "norm", "style": "multiply"}),
    12: ("FOSSILIZE", {"slot": "s0"}),
    15: ("PRUNE", {"slot": "s2", "alpha_speed": "3"}),
}


def live(task: esper.Task, plan: dict[int, tuple[str, dict[str, str]]]) -> list[esper.EpochReport]:
    """A host's whole life under a plan: decision -> op and choices."""
    trainer = esper.HostTrainer(esper.weak_host("cnn1d", task.spec.inputs, task.spec.outputs), task, rng_seed=1)
    reports = []
    for epoch in range(EPOCHS):
        op, choices = plan.get(epoch, ("WAIT", {}))
        report = trainer.decide(trainer.space.action(op, **choices))
        stages = " ".join(f"{slot.stage.lower():>10}" for slot in report.slots)
        print(f"epoch {epoch:2}  accuracy {report.metric:.3f}  {stages}  {'refused ' * report.refused}{op.lower()}")
        reports.append(report)
    return reports


def main(picture: Path) -> None:
    task = esper.load_task("mnist1d")
    print("The same host, never grown:")
    twin = live(task, {})
    print("StaticEnv by the plan:")
    grown = live(task, PLAN)
    picture.parent.mkdir(parents=True, exist_ok=True)
    draw_life(grown, picture, twin=twin, title="One host on MNIST-1D, with and without growth")
    print(
        f"\nnever grown {twin[-1].metric:.3f} with {twin[-1].parameters:,} parameters,"
        f" grown {grown[-1].metric:.3f} with {grown[-1].parameters:,}.\nIts life: {picture}"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/one_life.png"))
