"""The same on CUDA devices, in Triton. Rows, examples and sizes are arguments; only channels and kernels are compiled in.

Sums run in single precision and in a fixed order, so that a result does not change from run to run.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false, reportCallIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

LARGEST = 1 << 15
"""Elements of an example that a norm can hold at once."""
PROGRAMS = 1024
"""How many programs to spread a sum over examples on: a few for each multiprocessor."""
RUNTIME = ["height", "width", "out_height", "out_width", "size", "x_row", "weight_row"]


@triton.jit(do_not_specialize=RUNTIME)
def _conv(
    x,
    weight,
    out,
    x_row,
    weight_row,
    height,
    width,
    out_height,
    out_width,
    size,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    STRIDE: tl.constexpr,
    BACKWARD: tl.constexpr,
    PRECISION: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    """One tile of positions and output channels of one row. BACKWARD runs against the stride, from out to in."""
    row = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * M + tl.arange(0, M)
    n = tl.program_id(1) * N + tl.arange(0, N)
    area = out_height * out_width
    example, position = m // area, m % area
    y, z = (position // out_width)[:, None], (position % out_width)[:, None]
    total = tl.zeros((M, N), dtype=tl.float32)
    for start in range(0, KH * KW * IN, K):
        k = start + tl.arange(0, K)
        c, tap = k % IN, k // IN
        ky, kz = (tap // KW)[None, :], (tap % KW)[None, :]
        inside = (m < size)[:, None] & (tap < KH * KW)[None, :]
        if BACKWARD:
            sy, sz = y + KH // 2 - ky, z + KW // 2 - kz
            inside &= (sy >= 0) & (sz >= 0) & (sy % STRIDE == 0) & (sz % STRIDE == 0)
            sy, sz = sy // STRIDE, sz // STRIDE
            at_weight = n[None, :] * (KH * KW) + c[:, None] * (OUT * KH * KW) + tap[:, None]
        else:
            sy, sz = y * STRIDE + ky - KH // 2, z * STRIDE + kz - KW // 2
            inside &= (sy >= 0) & (sz >= 0)
            at_weight = n[None, :] * (IN * KH * KW) + c[:, None] * (KH * KW) + tap[:, None]
        inside &= (sy < height) & (sz < width)
        at = ((example[:, None] * height + sy) * width + sz) * IN + c[None, :]
        a = tl.load(x + row * x_row + at, mask=inside, other=0.0)
        known = (n < OUT)[None, :] & (tap < KH * KW)[:, None]
        b = tl.load(weight + row * weight_row + at_weight, mask=known, other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    at = row * size * OUT + m[:, None] * OUT + n[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=(m < size)[:, None] & (n < OUT)[None, :])


@triton.jit(do_not_specialize=[*RUNTIME[:-1], "chunk", "rows"])
def _conv_for_weight(
    grad,
    x,
    out,
    x_row,
    height,
    width,
    out_height,
    out_width,
    size,
    chunk,
    rows,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    STRIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    """One chunk of one row's positions, for a tile of its weights: out is (chunks, rows, OUT, IN, taps)."""
    row = tl.program_id(2).to(tl.int64)
    tiles: tl.constexpr = (OUT + N - 1) // N
    n = (tl.program_id(0) % tiles) * N + tl.arange(0, N)
    k = (tl.program_id(0) // tiles) * K + tl.arange(0, K)
    c, tap = k % IN, k // IN
    ky, kz = (tap // KW)[None, :], (tap % KW)[None, :]
    area = out_height * out_width
    first = tl.program_id(1) * chunk
    total = tl.zeros((N, K), dtype=tl.float32)
    for start in range(first, tl.minimum(first + chunk, size), M):
        m = start + tl.arange(0, M)
        example, position = m // area, m % area
        sy = (position // out_width)[:, None] * STRIDE + ky - KH // 2
        sz = (position % out_width)[:, None] * STRIDE + kz - KW // 2
        inside = (m < size)[:, None] & (tap < KH * KW)[None, :]
        inside &= (sy >= 0) & (sz >= 0) & (sy < height) & (sz < width)
        at = ((example[:, None] * height + sy) * width + sz) * IN + c[None, :]
        a = tl.load(x + row * x_row + at, mask=inside, other=0.0)
        known = (n < OUT)[:, None] & (m < size)[None, :]
        g = tl.load(grad + row * size * OUT + m[None, :] * OUT + n[:, None], mask=known, other=0.0)
        total = tl.dot(g, a, total, input_precision=PRECISION)
    base = (tl.program_id(1) * rows + row) * (OUT * IN * KH * KW)
    at = base + n[:, None] * (IN * KH * KW) + c[None, :] * (KH * KW) + tap[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=(n < OUT)[:, None] & (tap < KH * KW)[None, :])


def conv(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """(R, B, *space, IN), (R, OUT, IN, *kernel) to (R, B, *space / stride, OUT)."""
    space = [-(-size // stride) for size in x.shape[2:-1]]
    out = x.new_empty(*x.shape[:2], *space, weight.shape[1])
    return _run_conv(x, weight, stride, out, backward=False)


def conv_for_input(grad: Tensor, weight: Tensor, stride: int, shape: torch.Size) -> Tensor:
    return _run_conv(grad, weight, stride, grad.new_empty(shape), backward=True)


def _run_conv(x: Tensor, weight: Tensor, stride: int, out: Tensor, backward: bool) -> Tensor:
    sizes = _sizes(x, out)
    inner, outer = x.shape[-1], out.shape[-1]
    n = min(_power(outer), 128)
    grid = (triton.cdiv(sizes[-1], 128), triton.cdiv(outer, n), len(x))
    flags = (inner, outer, *_kernel(weight), stride, backward, _precision(x))
    _conv[grid](x, weight, out, _row(x), _row(weight), *sizes, *flags, 128, n, min(_power(inner * 3), 64))
    return out


def conv_for_weight(grad: Tensor, x: Tensor, weight: Tensor, stride: int) -> Tensor:
    rows, outer, inner = weight.shape[:3]
    kernel = _kernel(weight)
    *space, size = _sizes(x, grad)
    n, k = min(_power(outer), 64), min(_power(inner * kernel[0] * kernel[1]), 128)
    tiles = triton.cdiv(outer, n) * triton.cdiv(inner * kernel[0] * kernel[1], k)
    chunks = max(1, min(PROGRAMS // (tiles * rows), size // 256))
    chunk = triton.cdiv(triton.cdiv(size, chunks), 64) * 64
    chunks = triton.cdiv(size, chunk)
    parts = weight.new_empty(chunks, *weight.shape, dtype=weight.dtype if chunks == 1 else torch.float32)
    flags = (inner, outer, *kernel, stride, _precision(x), 64, n, k)
    _conv_for_weight[(tiles, chunks, rows)](grad, x, parts, _row(x), *space, size, chunk, rows, *flags)
    return parts[0] if chunks == 1 else parts.sum(0).to(weight.dtype)


def _sizes(x: Tensor, out: Tensor) -> tuple[int, ...]:
    """Heights and widths before and after, a signal being an image of height 1, and all positions of a row."""
    into, after = ((1, *t.shape[2:-1])[-2:] for t in (x, out))
    return *into, *after, out.shape[1] * after[0] * after[1]


def _kernel(weight: Tensor) -> tuple[int, ...]:
    return (1, *weight.shape[3:])[-2:]


def _row(x: Tensor) -> int:
    return x.stride(0)


def _power(size: int) -> int:
    return max(16, triton.next_power_of_2(size))


def _precision(x: Tensor) -> str:
    return "ieee"


@triton.jit(do_not_specialize=["batch", "positions", "x_row", "weight_row", "bias_row", "eps"])
def _norm(
    x,
    weight,
    bias,
    out,
    mean,
    scale,
    batch,
    positions,
    x_row,
    weight_row,
    bias_row,
    eps,
    GROUPS: tl.constexpr,
    C: tl.constexpr,
    RELU: tl.constexpr,
    P: tl.constexpr,
    W: tl.constexpr,
):
    """One example. C channels in each group, in a tile of W."""
    example = tl.program_id(0).to(tl.int64)
    row = example // batch
    p, g, w = tl.arange(0, P)[:, None, None], tl.arange(0, GROUPS)[None, :, None], tl.arange(0, W)[None, None, :]
    known = (p < positions) & (w < C) & (g < GROUPS)
    channel = g * C + w
    at = p * (GROUPS * C) + channel
    values = tl.load(x + row * x_row + (example % batch) * positions * (GROUPS * C) + at, mask=known, other=0.0)
    values = values.to(tl.float32)
    count = positions * C
    center = tl.sum(tl.sum(values, 2), 0) / count
    apart = tl.where(known, values - center[None, :, None], 0.0)
    factor = tl.rsqrt(tl.sum(tl.sum(apart * apart, 2), 0) / count + eps)
    here = (w < C) & (g < GROUPS)
    gain = tl.load(weight + row * weight_row + channel, mask=here, other=0.0).to(tl.float32)
    shift = tl.load(bias + row * bias_row + channel, mask=here, other=0.0).to(tl.float32)
    result = apart * factor[None, :, None] * gain + shift
    if RELU:
        result = tl.where(result < 0, 0.0, result)  # lets NaN through, as torch does
    tl.store(out + example * positions * (GROUPS * C) + at, result.to(out.dtype.element_ty), mask=known)
    groups = tl.arange(0, GROUPS)
    tl.store(mean + example * GROUPS + groups, center)
    tl.store(scale + example * GROUPS + groups, factor)


@triton.jit(do_not_specialize=["batch", "positions", "x_row", "weight_row", "bias_row", "examples"])
def _norm_backward(
    grad,
    x,
    weight,
    bias,
    mean,
    scale,
    out,
    parts,
    batch,
    positions,
    x_row,
    weight_row,
    bias_row,
    examples,
    GROUPS: tl.constexpr,
    C: tl.constexpr,
    RELU: tl.constexpr,
    P: tl.constexpr,
    W: tl.constexpr,
):
    """One example; parts are its sums for weight and bias, (2, examples, channels)."""
    example = tl.program_id(0).to(tl.int64)
    row = example // batch
    p, g, w = tl.arange(0, P)[:, None, None], tl.arange(0, GROUPS)[None, :, None], tl.arange(0, W)[None, None, :]
    known = (p < positions) & (w < C) & (g < GROUPS)
    channel = g * C + w
    at = p * (GROUPS * C) + channel
    values = tl.load(x + row * x_row + (example % batch) * positions * (GROUPS * C) + at, mask=known, other=0.0)
    into = tl.load(grad + example * positions * (GROUPS * C) + at, mask=known, other=0.0).to(tl.float32)
    groups = tl.arange(0, GROUPS)
    center = tl.load(mean + example * GROUPS + groups)[None, :, None]
    factor = tl.load(scale + example * GROUPS + groups)[None, :, None]
    here = (w < C) & (g < GROUPS)
    gain = tl.load(weight + row * weight_row + channel, mask=here, other=0.0).to(tl.float32)
    normal = tl.where(known, (values.to(tl.float32) - center) * factor, 0.0)
    if RELU:
        shift = tl.load(bias + row * bias_row + channel, mask=here, other=0.0).to(tl.float32)
        into = tl.where(normal * gain + shift > 0, into, 0.0)
    at_part = tl.reshape(channel, (GROUPS, W))
    here = tl.reshape(here, (GROUPS, W))
    tl.store(parts + example * (GROUPS * C) + at_part, tl.sum(into * normal, 0), mask=here)
    tl.store(parts + (examples + example) * (GROUPS * C) + at_part, tl.sum(into, 0), mask=here)
    into *= gain
    count = positions * C
    level = (tl.sum(tl.sum(into, 2), 0) / count)[None, :, None]
    slope = (tl.sum(tl.sum(into * normal, 2), 0) / count)[None, :, None]
    result = (into - level - normal * slope) * factor
    tl.store(out + example * positions * (GROUPS * C) + at, result.to(out.dtype.element_ty), mask=known)


def fits(x: Tensor) -> bool:
    return triton.next_power_of_2(x.shape[2:-1].numel()) * triton.next_power_of_2(x.shape[-1]) <= LARGEST


def norm(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, relu: bool, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    mean, scale = x.new_empty(2, *x.shape[:2], groups, dtype=torch.float32)
    flags, warps = _tile(x, groups, relu)
    sizes = (x.shape[1], x.shape[2:-1].numel(), _row(x), _row(weight), _row(bias))
    _norm[(x.shape[0] * x.shape[1],)](x, weight, bias, out, mean, scale, *sizes, eps, *flags, num_warps=warps)
    return out, mean, scale


def norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, scale: Tensor, groups: int, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    rows, batch, channels = *x.shape[:2], x.shape[-1]
    grad = grad.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    parts = x.new_empty(2, rows, batch, channels, dtype=torch.float32)
    flags, warps = _tile(x, groups, relu)
    sizes = (batch, x.shape[2:-1].numel(), _row(x), _row(weight), _row(bias), rows * batch)
    _norm_backward[(rows * batch,)](grad, x, weight, bias, mean, scale, out, parts, *sizes, *flags, num_warps=warps)
    into_weight, into_bias = parts.sum(2).to(weight.dtype)
    return out, into_weight, into_bias


def _tile(x: Tensor, groups: int, relu: bool) -> tuple[tuple[int, int, bool, int, int], int]:
    positions, channels = x.shape[2:-1].numel(), x.shape[-1] // groups
    p, w = triton.next_power_of_2(positions), triton.next_power_of_2(channels)
    warps = max(1, min(16, p * w * groups // 512))
    return (groups, channels, relu, p, w), warps
