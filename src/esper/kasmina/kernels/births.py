"""Draw weights from keys."""

from jaxtyping import Float, Int
from torch import Tensor

from esper.kasmina.kernels.rows import GPU
from esper.leyline.rng import key, uniform_at


def draw(
    keys: Int[Tensor, " R"], names: Int[Tensor, " P"], index: Int[Tensor, " P"], bound: Float[Tensor, " P"]
) -> Float[Tensor, "R P"]:
    """Return weights for each key, uniform within ±bound in single precision, as determined by key, name and index."""
    if GPU and keys.is_cuda and len(keys) and len(names):
        from esper.kasmina.kernels import gpu

        return gpu.draw(keys, names, index, bound)
    return ((2 * uniform_at(key(keys[:, None], names), index) - 1) * bound).float()
