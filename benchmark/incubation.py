"""How a silent seed should learn: in a side row with feedback, or through a straight-through zero.

    python benchmark/incubation.py

Every blueprint and graft incubates for eight epochs in the first slot of a weak MNIST-1D host, both ways, from the same
weights and on the same batches. Then it is switched on at full alpha.
"""

from collections.abc import Callable
from unittest.mock import patch

import torch
from torch import Tensor

from esper.kasmina import LifecycleConfig, blueprint_names, weak_host
from esper.leyline.actions import STYLES, Graft
from esper.tasks import load_task
from esper.tolaria import HostTrainer, host_training

EPOCHS = 8
side_row = host_training.gradients
STYLE = {graft: next(name for name, style in STYLES.items() if style.graft is graft) for graft in Graft}


def straight_through(trainer: HostTrainer, x: Tensor, y: Tensor, teaches: bool = True) -> tuple[float, Tensor]:
    """Compute gradients with the seed left out forward, and passed through backward."""
    found = side_row(trainer, x, y, teaches)
    slot = trainer.host.slot(0)
    assert slot.seed is not None
    seed = slot.seed

    def pass_through(module: object, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
        delta = seed(out)
        return out + (delta - delta.detach())

    handle = slot.register_forward_hook(pass_through)
    parameters = list(slot.parameters())
    loss = host_training.mean_loss(trainer, x, y)
    for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        p.grad = gradient
    handle.remove()
    return found


@torch.no_grad()
def incubate(way: Callable[..., tuple[float, Tensor]], blueprint: str, graft: Graft) -> tuple[float, float, float]:
    """|delta| / |host| after incubation, and the validation accuracy with the seed off and on."""
    task = load_task("mnist1d")
    patient = LifecycleConfig(training=EPOCHS + 1)
    trainer = HostTrainer(weak_host("cnn1d", (40, 1), 10), task, lifecycle=patient, rng_seed=1)
    action = trainer.space.action("GERMINATE", slot="s0", blueprint=blueprint, style=STYLE[graft])
    with torch.enable_grad(), patch.object(host_training, "gradients", way):
        for epoch in range(EPOCHS):
            trainer.decide(action if epoch == 0 else trainer.space.action())
    stream = trainer.host.segments[0](task.validation.x)
    seed = trainer.host.slot(0).seed
    assert seed is not None
    ratio = (seed(stream).norm() / stream.norm()).item()
    return ratio, trainer.evaluate().metric, trainer.evaluate({0: torch.tensor(1.0)}).metric


if __name__ == "__main__":
    print("| seed | accuracy without it | side row: size | switched on | straight-through: size | switched on |")
    print("|---|--:|--:|--:|--:|--:|")
    for blueprint in blueprint_names("signal"):
        for graft in Graft:
            side, through = (incubate(way, blueprint, graft) for way in (side_row, straight_through))
            print(
                f"| {blueprint}, {graft.name.lower()} | {side[1]:.3f} | {side[0]:.2f} | {side[2]:.3f} |"
                f" {through[0]:.2f} | {through[2]:.3f} |",
                flush=True,
            )
