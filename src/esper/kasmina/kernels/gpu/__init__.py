"""Implement the operations on rows as Triton kernels. Only the shapes of an example and of a
kernel are compiled in.

Sums run in single precision and in a fixed order, so that results are reproducible.
"""

from esper.kasmina.kernels.gpu.attention import attends, attention, attention_backward
from esper.kasmina.kernels.gpu.births import draw
from esper.kasmina.kernels.gpu.conv import conv, conv_for_input, conv_for_weight
from esper.kasmina.kernels.gpu.depthwise import depthwise, depthwise_for_input, depthwise_for_weight
from esper.kasmina.kernels.gpu.grafts import delta, delta_backward
from esper.kasmina.kernels.gpu.launch import compiling, launch
from esper.kasmina.kernels.gpu.layer_norm import layer_norm, layer_norm_backward
from esper.kasmina.kernels.gpu.norm import fits, norm, norm_backward
from esper.kasmina.kernels.gpu.norm_pool import norm_pool, norm_pool_backward, pools
from esper.kasmina.kernels.gpu.pool import pool, pool_backward
from esper.kasmina.kernels.gpu.routes import add_rows, gather_rows

__all__ = [
    "add_rows",
    "attends",
    "attention",
    "attention_backward",
    "compiling",
    "conv",
    "conv_for_input",
    "conv_for_weight",
    "delta",
    "delta_backward",
    "depthwise",
    "depthwise_for_input",
    "depthwise_for_weight",
    "draw",
    "fits",
    "gather_rows",
    "launch",
    "layer_norm",
    "layer_norm_backward",
    "norm",
    "norm_backward",
    "norm_pool",
    "norm_pool_backward",
    "pool",
    "pool_backward",
    "pools",
]
