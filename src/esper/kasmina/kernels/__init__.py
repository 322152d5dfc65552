"""Operations whose autograd would be several times slower than a backward written down.

Each works on rows: one row for a module alone, one for each module of a stack. Rows never mix.
"""

from esper.kasmina.kernels.births import draw
from esper.kasmina.kernels.conv import convolve, convolve_channels
from esper.kasmina.kernels.grafts import any_delta
from esper.kasmina.kernels.norm import group_norm
from esper.kasmina.kernels.pool import max_pool
from esper.kasmina.kernels.rows import along, compiling, usable

__all__ = [
    "along",
    "any_delta",
    "compiling",
    "convolve",
    "convolve_channels",
    "draw",
    "group_norm",
    "max_pool",
    "usable",
]
