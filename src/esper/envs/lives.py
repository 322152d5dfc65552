"""Let every host of a fleet have a random seed of its own, and live one whole life after the other."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esper.leyline.rng import Purpose, key, uniform
from esper.leyline.state import Signals
from esper.tolaria import EnvConfig, Fleet, FleetEnv
from esper.tolaria.env import EnvState, Good, choose
from esper.tolaria.measuring import Measured


class Lives(FleetEnv):
    """An env of hosts that share nothing but their fleet: what one of them does depends on its own random seed alone.

    Args:
        fleet: Hosts to train.
        config: Length of an episode.
        prices: Prices of growth, of which every life draws one.
    """

    def __init__(self, fleet: Fleet, config: EnvConfig, prices: Sequence[float]) -> None:
        super().__init__(fleet, config)
        self.rng_seeds = torch.zeros_like(self.groups)
        self.prices = torch.tensor(prices, dtype=torch.float32, device=fleet.device)

    def keys(
        self, together: Bool[Tensor, " N"], births: Int[Tensor, " N"], generation: Int[Tensor, " N"]
    ) -> Int[Tensor, " N"]:
        """Return what determines the weights and batches of the lives that begin."""
        return key(self.rng_seeds, "life", generation)

    def succeed(
        self, state: EnvState, ended: Bool[Tensor, " N"], over: Bool[Tensor, " N"]
    ) -> tuple[EnvState, Measured]:
        """Replace the hosts whose life has ended. Every life is a whole one, also after a failed one."""
        return self.renew(state._replace(age=torch.where(ended, 0, state.age)), ended, torch.ones_like(ended))

    def seed(self, rows: Bool[Tensor, " N"], rng_seeds: Int[Tensor, " N"]) -> None:
        """Give hosts other random seeds. Their next life is the first one of those."""
        self.rng_seeds = torch.where(rows, rng_seeds, self.rng_seeds)
        self.state = self.state._replace(generation=torch.where(rows, 0, self.state.generation))

    def restart(self, rows: Bool[Tensor, " N"]) -> Signals:
        """Replace hosts in the middle of their lives. Return the first signals of the new ones, in their rows."""
        self.state, measured = self.succeed(self.state, rows, rows)
        measured = choose(rows, measured, self.state.good.measured)
        self.state = self.state._replace(good=Good(self.fleet.state, self.fleet.vitals, measured))
        return self.first_signals(measured)

    def drawn_prices(self) -> Float[Tensor, " N"]:
        """Return the price of growth in the present life of every host."""
        if len(self.prices) == 1:
            return self.prices.expand(len(self.rng_seeds))
        chosen = uniform(key(self.rng_seeds, Purpose.PRICE, self.state.generation), 1)[:, 0]
        return self.prices[(chosen * len(self.prices)).long()]
