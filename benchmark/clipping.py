"""Should gradients be clipped all together, or every head by itself? In the garden of the learning tests."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from esper.simic import CollectConfig, LearnConfig, PPOConfig, RentSchedule, train_controller
from esper.tamiyo import Controller

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/learning"))
clip_together: Any = nn.utils.clip_grad_norm_


def clip_apart(controller: Controller, limit: float) -> Tensor:
    """Every head by itself, and the rest together. Returns the norm of all, as if they were clipped together."""
    heads = (controller.op, controller.slot_score, controller.blueprint_score, controller.tail, controller.value)
    own = {id(p) for head in heads for p in head.parameters()}
    norms = [clip_together(head.parameters(), limit) for head in heads]
    norms.append(clip_together([p for p in controller.parameters() if id(p) not in own], limit))
    return torch.stack(norms).norm()


def main() -> None:
    from test_garden import EPISODE, RENT, Garden  # pyright: ignore[reportMissingImports]

    for apart in (False, True):
        means = []
        for seed in range(1, 7):
            controller = Controller(rng_seed=seed)

            def clip(parameters: Iterable[Tensor], limit: float, own: Any = (apart, controller)) -> Tensor:
                return clip_apart(own[1], limit) if own[0] else clip_together(parameters, limit)

            nn.utils.clip_grad_norm_ = clip
            ppo = PPOConfig(lr=2e-3, entropy_coef=0.01, entropy_end=0.001, anneal=20, epochs=4)
            config = LearnConfig(
                updates=24,
                ppo=ppo,
                collect=CollectConfig(horizon=EPISODE),
                rent=RentSchedule(start=RENT, end=RENT),
                rng_seed=seed,
            )
            reports = list(train_controller([Garden(64)], controller, config))
            means.append(sum(r.objective or 0.0 for r in reports) / len(reports))
            if seed == 1:
                print({head.name: round(head.grad_norm, 3) for head in reports[3].heads})
        print("apart" if apart else "together", [round(x, 3) for x in means], round(sum(means) / len(means), 4))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
