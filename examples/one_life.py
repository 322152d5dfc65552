"""Train one small host on MNIST-1D with a growth plan, and a copy of it that never grows, and draw both.

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


def train(task: esper.Task, plan: dict[int, tuple[str, dict[str, str]]]) -> list[esper.EpochReport]:
    """Train a host for one episode under a plan, which maps decisions to an op and its choices."""
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
    print("Without growth:")
    bare = train(task, {})
    print("With the growth plan:")
    grown = train(task, PLAN)
    picture.parent.mkdir(parents=True, exist_ok=True)
    draw_life(grown, picture, twin=bare, title="One host on MNIST-1D, with and without growth")
    print(
        f"\nwithout growth {bare[-1].metric:.3f} with {bare[-1].parameters:,} parameters,"
        f" with growth {grown[-1].metric:.3f} with {grown[-1].parameters:,}.\nPicture: {picture}"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/one_life.png"))
