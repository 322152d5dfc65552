"""The same on CUDA devices, in Triton. Only channels and kernel sizes are compiled in; all else is an argument.

Sums run in single precision and in a fixed order, so that a result does not change from run to run.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false, reportCallIssue=false

import os
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from esper.leyline.actions import Graft

LARGEST = 1 << 15
"""Elements of an example that a norm can hold at once."""
PROGRAMS = 4096
"""How many programs to spread a sum over examples on."""
PRECISION = "ieee"
"""Single precision is single precision; half precision is not touched by this."""
RUNTIME = ["height", "width", "out_height", "out_width", "size"]


_waiting: dict[Hashable, Callable[[], Any]] | None = None


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    if _waiting is None:
        kernel[grid](*arguments, **options)
    elif (variant := _variant(kernel, arguments)) not in _waiting:
        _waiting[variant] = lambda: kernel.warmup(*arguments, grid=grid, **options)


@contextmanager
def compiling() -> Iterator[None]:
    """What is launched in here does not run. It is compiled, all at once, to be there when it is launched again."""
    global _waiting
    calls: dict[Hashable, Callable[[], Any]] = {}
    _waiting = calls
    try:
        yield
    finally:
        _waiting = None
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for compiled in [pool.submit(call) for call in calls.values()]:
            compiled.result()


def _variant(kernel: Any, arguments: tuple[Any, ...]) -> Hashable:
    """What Triton compiles apart."""

    def seen(parameter: Any, x: Any) -> Hashable:
        if isinstance(x, Tensor):
            return x.dtype, x.data_ptr() % 16 == 0
        if parameter.is_constexpr:
            return x
        return None if parameter.do_not_specialize else (x % 16 == 0, x == 1)

    return kernel, tuple(seen(parameter, x) for parameter, x in zip(kernel.params, arguments, strict=True))


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
    """One tile of positions and output channels of one row.

    Weight is (rows, taps, IN, OUT); BACKWARD, which runs from a convolution's output back to its input, reads what is
    (rows, taps, OUT, IN) to it.
    """
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
        else:
            sy, sz = y * STRIDE + ky - KH // 2, z * STRIDE + kz - KW // 2
            inside &= (sy >= 0) & (sz >= 0)
        inside &= (sy < height) & (sz < width)
        at = ((example[:, None] * height + sy) * width + sz) * IN + c[None, :]
        a = tl.load(x + row * x_row + at, mask=inside, other=0.0)
        known = (n < OUT)[None, :] & (tap < KH * KW)[:, None]
        if BACKWARD:  # noqa: SIM108  # Triton compiles one branch
            place = (tap[:, None] * OUT + n[None, :]) * IN + c[:, None]
        else:
            place = k[:, None] * OUT + n[None, :]
        b = tl.load(weight + row * weight_row + place, mask=known, other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    at = row * size * OUT + m[:, None] * OUT + n[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=(m < size)[:, None] & (n < OUT)[None, :])


@triton.jit(do_not_specialize=[*RUNTIME, "chunk", "rows"])
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
    """One chunk of one row's positions, for a tile of its weights: out is (chunks, rows, taps * IN, OUT)."""
    row = tl.program_id(2).to(tl.int64)
    tiles: tl.constexpr = (OUT + N - 1) // N
    n = (tl.program_id(0) % tiles) * N + tl.arange(0, N)
    k = (tl.program_id(0) // tiles) * K + tl.arange(0, K)
    c, tap = k % IN, k // IN
    ky, kz = (tap // KW)[:, None], (tap % KW)[:, None]
    area = out_height * out_width
    first = tl.program_id(1) * chunk
    total = tl.zeros((K, N), dtype=tl.float32)
    for start in range(first, tl.minimum(first + chunk, size), M):
        m = start + tl.arange(0, M)
        example, position = m // area, m % area
        sy = (position // out_width)[None, :] * STRIDE + ky - KH // 2
        sz = (position % out_width)[None, :] * STRIDE + kz - KW // 2
        inside = (m < size)[None, :] & (tap < KH * KW)[:, None]
        inside &= (sy >= 0) & (sz >= 0) & (sy < height) & (sz < width)
        at = ((example[None, :] * height + sy) * width + sz) * IN + c[:, None]
        a = tl.load(x + row * x_row + at, mask=inside, other=0.0)
        known = (n < OUT)[None, :] & (m < size)[:, None]
        g = tl.load(grad + row * size * OUT + m[:, None] * OUT + n[None, :], mask=known, other=0.0)
        total = tl.dot(a, g, total, input_precision=PRECISION)
    base = (tl.program_id(1) * rows + row) * (OUT * IN * KH * KW)
    at = base + k[:, None] * OUT + n[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=(n < OUT)[None, :] & (tap < KH * KW)[:, None])


def conv(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """(R, B, *space, IN), (R, *kernel, IN, OUT) to (R, B, *space / stride, OUT)."""
    return _run_conv(x, weight, stride, x.new_empty(*_after(x, stride), weight.shape[-1]), backward=False)


def conv_for_input(grad: Tensor, weight: Tensor, stride: int, shape: torch.Size) -> Tensor:
    return _run_conv(grad, weight, stride, grad.new_empty(shape), backward=True)


def _run_conv(x: Tensor, weight: Tensor, stride: int, out: Tensor, backward: bool) -> Tensor:
    sizes, kernel = _sizes(x, out), _taps(weight.shape[1:-2])
    inner, outer = x.shape[-1], out.shape[-1]
    n, k = min(_power(outer), 128), min(_power(inner * kernel[0] * kernel[1]), 32)
    grid = (triton.cdiv(sizes[-1], 128), triton.cdiv(outer, n), len(x))
    flags = (inner, outer, *kernel, stride, backward, PRECISION, 128, n, k)
    launch(_conv, grid, x, weight, out, x.stride(0), weight.stride(0), *sizes, *flags)
    return out


def conv_for_weight(grad: Tensor, x: Tensor, weight: Tensor, stride: int) -> Tensor:
    rows, *_, inner, outer = weight.shape
    kernel = _taps(weight.shape[1:-2])
    *space, size = _sizes(x, grad)
    n, k = min(_power(outer), 64), min(_power(inner * kernel[0] * kernel[1]), 64)
    tiles = triton.cdiv(outer, n) * triton.cdiv(inner * kernel[0] * kernel[1], k)
    chunk, chunks = _chunks(size, tiles * rows)
    parts = weight.new_empty(chunks, *weight.shape, dtype=weight.dtype if chunks == 1 else torch.float32)
    flags = (inner, outer, *kernel, stride, PRECISION, 64, n, k)
    launch(_conv_for_weight, (tiles, chunks, rows), grad, x, parts, x.stride(0), *space, size, chunk, rows, *flags)
    return parts[0] if chunks == 1 else parts.sum(0).to(weight.dtype)


@triton.jit(do_not_specialize=RUNTIME)
def _depthwise(
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
    C: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    STRIDE: tl.constexpr,
    BACKWARD: tl.constexpr,
    M: tl.constexpr,
    W: tl.constexpr,
):
    """M positions of one row, all channels."""
    row = tl.program_id(1).to(tl.int64)
    m, c = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, W)
    area = out_height * out_width
    example, position = m // area, m % area
    y, z = position // out_width, position % out_width
    total = tl.zeros((M, W), dtype=tl.float32)
    for tap in tl.static_range(KH * KW):
        inside = m < size
        if BACKWARD:
            sy, sz = y + KH // 2 - tap // KW, z + KW // 2 - tap % KW
            inside &= (sy >= 0) & (sz >= 0) & (sy % STRIDE == 0) & (sz % STRIDE == 0)
            sy, sz = sy // STRIDE, sz // STRIDE
        else:
            sy, sz = y * STRIDE + tap // KW - KH // 2, z * STRIDE + tap % KW - KW // 2
            inside &= (sy >= 0) & (sz >= 0)
        inside &= (sy < height) & (sz < width)
        at = ((example * height + sy) * width + sz)[:, None] * C + c[None, :]
        a = tl.load(x + row * x_row + at, mask=inside[:, None] & (c < C)[None, :], other=0.0).to(tl.float32)
        b = tl.load(weight + row * weight_row + tap * C + c, mask=c < C, other=0.0).to(tl.float32)
        total += a * b[None, :]
    at = row * size * C + m[:, None] * C + c[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=(m < size)[:, None] & (c < C)[None, :])


@triton.jit(do_not_specialize=[*RUNTIME, "chunk", "rows"])
def _depthwise_for_weight(
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
    C: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    STRIDE: tl.constexpr,
    M: tl.constexpr,
    W: tl.constexpr,
):
    """One tap over one chunk of one row's positions: out is (chunks, rows, taps, C)."""
    row, tap = tl.program_id(2).to(tl.int64), tl.program_id(0)
    c = tl.arange(0, W)
    area = out_height * out_width
    first = tl.program_id(1) * chunk
    total = tl.zeros((M, W), dtype=tl.float32)
    for start in range(first, tl.minimum(first + chunk, size), M):
        m = start + tl.arange(0, M)
        example, position = m // area, m % area
        sy = position // out_width * STRIDE + tap // KW - KH // 2
        sz = position % out_width * STRIDE + tap % KW - KW // 2
        inside = (m < size) & (sy >= 0) & (sz >= 0) & (sy < height) & (sz < width)
        at = ((example * height + sy) * width + sz)[:, None] * C + c[None, :]
        known = inside[:, None] & (c < C)[None, :]
        a = tl.load(x + row * x_row + at, mask=known, other=0.0).to(tl.float32)
        g = tl.load(grad + row * size * C + m[:, None] * C + c[None, :], mask=known, other=0.0).to(tl.float32)
        total += a * g
    at = ((tl.program_id(1) * rows + row) * (KH * KW) + tap) * C + c
    tl.store(out + at, tl.sum(total, 0).to(out.dtype.element_ty), mask=c < C)


def depthwise(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """(R, B, *space, C), (R, *kernel, C) to (R, B, *space / stride, C)."""
    return _run_depthwise(x, weight, stride, x.new_empty(*_after(x, stride), x.shape[-1]), backward=False)


def depthwise_for_input(grad: Tensor, weight: Tensor, stride: int, shape: torch.Size) -> Tensor:
    return _run_depthwise(grad, weight, stride, grad.new_empty(shape), backward=True)


def _run_depthwise(x: Tensor, weight: Tensor, stride: int, out: Tensor, backward: bool) -> Tensor:
    sizes, channels = _sizes(x, out), x.shape[-1]
    w = triton.next_power_of_2(channels)
    m = max(1, 1024 // w)
    flags = (channels, *_taps(weight.shape[1:-1]), stride, backward, m, w)
    grid = (triton.cdiv(sizes[-1], m), len(x))
    launch(_depthwise, grid, x, weight, out, x.stride(0), weight.stride(0), *sizes, *flags)
    return out


def depthwise_for_weight(grad: Tensor, x: Tensor, weight: Tensor, stride: int) -> Tensor:
    kernel, channels = _taps(weight.shape[1:-1]), x.shape[-1]
    *space, size = _sizes(x, grad)
    w = triton.next_power_of_2(channels)
    chunk, chunks = _chunks(size, kernel[0] * kernel[1] * len(x))
    parts = weight.new_empty(chunks, *weight.shape, dtype=weight.dtype if chunks == 1 else torch.float32)
    grid = (kernel[0] * kernel[1], chunks, len(x))
    flags = (channels, *kernel, stride, max(1, 1024 // w), w)
    launch(_depthwise_for_weight, grid, grad, x, parts, x.stride(0), *space, size, chunk, len(x), *flags)
    return parts[0] if chunks == 1 else parts.sum(0).to(weight.dtype)


def _sizes(x: Tensor, out: Tensor) -> tuple[int, ...]:
    """Heights and widths before and after, a signal being an image of height 1, and all positions of a row."""
    into, after = ((1, *t.shape[2:-1])[-2:] for t in (x, out))
    return *into, *after, out.shape[1] * after[0] * after[1]


def _after(x: Tensor, stride: int) -> tuple[int, ...]:
    return *x.shape[:2], *(-(-size // stride) for size in x.shape[2:-1])


def _taps(kernel: torch.Size) -> tuple[int, ...]:
    return (1, *kernel)[-2:]


def _chunks(size: int, others: int) -> tuple[int, int]:
    """How many positions to add up in one program, and how many programs that makes of them."""
    chunks = max(1, min(PROGRAMS // others, size // 512))
    chunk = triton.cdiv(triton.cdiv(size, chunks), 64) * 64
    return chunk, triton.cdiv(size, chunk)


def _power(size: int) -> int:
    return max(16, triton.next_power_of_2(size))


@triton.jit(do_not_specialize=["batch", "positions", "eps"])
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
    G: tl.constexpr,
    W: tl.constexpr,
):
    """G groups of one example. C channels in each group, in a tile of W."""
    example = tl.program_id(0).to(tl.int64)
    row = example // batch
    groups = tl.program_id(1) * G + tl.arange(0, G)
    p, g, w = tl.arange(0, P)[:, None, None], groups[None, :, None], tl.arange(0, W)[None, None, :]
    here = (w < C) & (g < GROUPS)
    known = (p < positions) & here
    channel = g * C + w
    at = p * (GROUPS * C) + channel
    values = tl.load(x + row * x_row + (example % batch) * positions * (GROUPS * C) + at, mask=known, other=0.0)
    values = values.to(tl.float32)
    count = positions * C
    center = tl.sum(tl.sum(values, 2), 0) / count
    apart = tl.where(known, values - center[None, :, None], 0.0)
    factor = tl.rsqrt(tl.sum(tl.sum(apart * apart, 2), 0) / count + eps)
    gain = tl.load(weight + row * weight_row + channel, mask=here, other=0.0).to(tl.float32)
    shift = tl.load(bias + row * bias_row + channel, mask=here, other=0.0).to(tl.float32)
    result = apart * factor[None, :, None] * gain + shift
    if RELU:
        result = tl.where(result < 0, 0.0, result)  # lets NaN through, as torch does
    tl.store(out + example * positions * (GROUPS * C) + at, result.to(out.dtype.element_ty), mask=known)
    tl.store(mean + example * GROUPS + groups, center)
    tl.store(scale + example * GROUPS + groups, factor)


@triton.jit(do_not_specialize=["batch", "positions", "examples"])
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
    G: tl.constexpr,
    W: tl.constexpr,
):
    """G groups of one example; parts are their sums for weight and bias, (2, examples, channels)."""
    example = tl.program_id(0).to(tl.int64)
    row = example // batch
    groups = tl.program_id(1) * G + tl.arange(0, G)
    p, g, w = tl.arange(0, P)[:, None, None], groups[None, :, None], tl.arange(0, W)[None, None, :]
    here = (w < C) & (g < GROUPS)
    known = (p < positions) & here
    channel = g * C + w
    at = p * (GROUPS * C) + channel
    values = tl.load(x + row * x_row + (example % batch) * positions * (GROUPS * C) + at, mask=known, other=0.0)
    into = tl.load(grad + example * positions * (GROUPS * C) + at, mask=known, other=0.0).to(tl.float32)
    center = tl.load(mean + example * GROUPS + groups)[None, :, None]
    factor = tl.load(scale + example * GROUPS + groups)[None, :, None]
    gain = tl.load(weight + row * weight_row + channel, mask=here, other=0.0).to(tl.float32)
    normal = tl.where(known, (values.to(tl.float32) - center) * factor, 0.0)
    if RELU:
        shift = tl.load(bias + row * bias_row + channel, mask=here, other=0.0).to(tl.float32)
        into = tl.where(normal * gain + shift > 0, into, 0.0)
    at_part = tl.reshape(channel, (G, W))
    here = tl.reshape(here, (G, W))
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


def norm(x: Tensor, weight: Tensor, bias: Tensor, groups: int, relu: bool, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    mean, scale = x.new_empty(2, *x.shape[:2], groups, dtype=torch.float32)
    flags, warps = _tile(x, groups, relu)
    sizes = (x.shape[1], x.shape[2:-1].numel(), x.stride(0), weight.stride(0), bias.stride(0))
    launch(
        _norm,
        (x.shape[0] * x.shape[1], groups // flags[-2]),
        x,
        weight,
        bias,
        out,
        mean,
        scale,
        *sizes,
        eps,
        *flags,
        num_warps=warps,
    )
    return out, mean, scale


def norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, scale: Tensor, groups: int, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    rows, batch, channels = *x.shape[:2], x.shape[-1]
    grad = grad.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    parts = x.new_empty(2, rows, batch, channels, dtype=torch.float32)
    flags, warps = _tile(x, groups, relu)
    sizes = (batch, x.shape[2:-1].numel(), x.stride(0), weight.stride(0), bias.stride(0), rows * batch)
    launch(
        _norm_backward,
        (rows * batch, groups // flags[-2]),
        grad,
        x,
        weight,
        bias,
        mean,
        scale,
        out,
        parts,
        *sizes,
        *flags,
        num_warps=warps,
    )
    into_weight, into_bias = parts.sum(2).to(weight.dtype)
    return out, into_weight, into_bias


def _tile(x: Tensor, groups: int, relu: bool) -> tuple[tuple[int, int, bool, int, int, int], int]:
    positions, channels = x.shape[2:-1].numel(), x.shape[-1] // groups
    p, w = triton.next_power_of_2(positions), triton.next_power_of_2(channels)
    together = groups if p * w * groups <= 4096 else 1
    return (groups, channels, relu, p, together, w), max(1, min(16, p * w * together // 512))


@triton.jit(do_not_specialize=["height", "width", "count"])
def _pool(
    x,
    out,
    height,
    width,
    count,
    C: tl.constexpr,
    SY: tl.constexpr,
    SZ: tl.constexpr,
    B: tl.constexpr,
    INDEX: tl.constexpr,
):
    """The largest of SY × SZ pixels, in steps of as many."""
    at = tl.program_id(0).to(INDEX) * B + tl.arange(0, B)
    pixel, c = at // C, at % C
    z, rest = pixel % (width // SZ), pixel // (width // SZ)
    y, example = rest % (height // SY), rest // (height // SY)
    corner = x + ((example * height + y * SY) * width + z * SZ) * C + c
    known = at < count
    best = tl.load(corner, mask=known)
    for tap in tl.static_range(1, SY * SZ):
        other = tl.load(corner + ((tap // SZ) * width + tap % SZ) * C, mask=known)
        best = tl.where((other > best) | (other != other), other, best)
    tl.store(out + at, best, mask=known)


@triton.jit(do_not_specialize=["height", "width", "count"])
def _pool_backward(
    grad,
    x,
    into,
    height,
    width,
    count,
    C: tl.constexpr,
    SY: tl.constexpr,
    SZ: tl.constexpr,
    B: tl.constexpr,
    INDEX: tl.constexpr,
):
    """The gradient goes to the first of the largest."""
    at = tl.program_id(0).to(INDEX) * B + tl.arange(0, B)
    pixel, c = at // C, at % C
    z, rest = pixel % (width // SZ), pixel // (width // SZ)
    y, example = rest % (height // SY), rest // (height // SY)
    corner = ((example * height + y * SY) * width + z * SZ) * C + c
    known = at < count
    best = tl.load(x + corner, mask=known)
    chosen = tl.zeros((B,), dtype=tl.int32)
    for tap in tl.static_range(1, SY * SZ):
        other = tl.load(x + corner + ((tap // SZ) * width + tap % SZ) * C, mask=known)
        better = (other > best) | (other != other)
        best, chosen = tl.where(better, other, best), tl.where(better, tap, chosen)
    g = tl.load(grad + at, mask=known)
    for tap in tl.static_range(0, SY * SZ):
        place = into + corner + ((tap // SZ) * width + tap % SZ) * C
        tl.store(place, tl.where(chosen == tap, g, 0.0), mask=known)


def _index(x: Tensor) -> Any:
    return tl.int32 if x.numel() < 1 << 31 else tl.int64


def pool(x: Tensor, sides: tuple[int, int]) -> Tensor:
    """(R, B, height, width, C), contiguous; odd last rows and columns are left out."""
    rows, batch, height, width, channels = x.shape
    out = x.new_empty(rows, batch, height // sides[0], width // sides[1], channels)
    launch(
        _pool, (triton.cdiv(out.numel(), 1024),), x, out, height, width, out.numel(), channels, *sides, 1024, _index(x)
    )
    return out


def pool_backward(grad: Tensor, x: Tensor, sides: tuple[int, int]) -> Tensor:
    height, width, channels = x.shape[2:]
    whole = height % sides[0] == 0 and width % sides[1] == 0
    into = torch.empty_like(x) if whole else torch.zeros_like(x)
    flags = (height, width, grad.numel(), channels, *sides, 1024, _index(x))
    launch(_pool_backward, (triton.cdiv(grad.numel(), 1024),), grad, x, into, *flags)
    return into


@triton.jit(do_not_specialize=["positions"])
def _delta(
    graft,
    host,
    f,
    g,
    out,
    positions,
    ADD: tl.constexpr,
    MULTIPLY: tl.constexpr,
    C: tl.constexpr,
    P: tl.constexpr,
    W: tl.constexpr,
):
    """P positions of one row."""
    row = tl.program_id(0).to(tl.int64)
    p, c = tl.program_id(1) * P + tl.arange(0, P), tl.arange(0, W)
    at = (row * positions + p)[:, None] * C + c[None, :]
    known = (p < positions)[:, None] & (c < C)[None, :]
    body = tl.load(f + at, mask=known, other=0.0).to(tl.float32)
    how = tl.load(graft + row)
    if how == MULTIPLY:
        body = tl.load(host + at, mask=known, other=0.0).to(tl.float32) * (2 * tl.sigmoid(2 * body) - 1)
    elif how != ADD:
        body *= tl.sigmoid(tl.load(g + row * positions + p, mask=p < positions, other=0.0).to(tl.float32))[:, None]
    tl.store(out + at, body.to(out.dtype.element_ty), mask=known)


@triton.jit(do_not_specialize=["positions"])
def _delta_backward(
    grad,
    graft,
    host,
    f,
    g,
    into_host,
    into_f,
    into_g,
    positions,
    ADD: tl.constexpr,
    MULTIPLY: tl.constexpr,
    C: tl.constexpr,
    P: tl.constexpr,
    W: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    p, c = tl.program_id(1) * P + tl.arange(0, P), tl.arange(0, W)
    at = (row * positions + p)[:, None] * C + c[None, :]
    known = (p < positions)[:, None] & (c < C)[None, :]
    back = tl.load(grad + at, mask=known, other=0.0).to(tl.float32)
    to_host = tl.zeros((P, W), dtype=tl.float32)
    to_gate = tl.zeros((P,), dtype=tl.float32)
    to_body = back
    how = tl.load(graft + row)
    if how == MULTIPLY:
        bent = 2 * tl.sigmoid(2 * tl.load(f + at, mask=known, other=0.0).to(tl.float32)) - 1
        to_host = back * bent
        to_body = back * tl.load(host + at, mask=known, other=0.0).to(tl.float32) * (1 - bent * bent)
    elif how != ADD:
        opened = tl.sigmoid(tl.load(g + row * positions + p, mask=p < positions, other=0.0).to(tl.float32))
        body = tl.load(f + at, mask=known, other=0.0).to(tl.float32)
        to_gate = tl.sum(back * body, 1) * opened * (1 - opened)
        to_body = back * opened[:, None]
    tl.store(into_host + at, to_host.to(into_host.dtype.element_ty), mask=known)
    tl.store(into_f + at, to_body.to(into_f.dtype.element_ty), mask=known)
    tl.store(into_g + row * positions + p, to_gate.to(into_g.dtype.element_ty), mask=p < positions)


def delta(graft: Tensor, host: Tensor, f: Tensor, g: Tensor) -> Tensor:
    out = torch.empty_like(f)
    grid, flags = _positions(f)
    launch(_delta, grid, graft, host, f, g, out, *flags)
    return out


def delta_backward(grad: Tensor, graft: Tensor, host: Tensor, f: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    into = torch.empty_like(host), torch.empty_like(f), torch.empty_like(g)
    grid, flags = _positions(f)
    launch(_delta_backward, grid, grad, graft, host, f, g, *into, *flags)
    return into


def _positions(x: Tensor) -> tuple[tuple[int, int], tuple[int, ...]]:
    """Tiles of about a thousand numbers."""
    positions, width = x.shape[1:-1].numel(), triton.next_power_of_2(x.shape[-1])
    tile = max(1, 1024 // width)
    return (len(x), triton.cdiv(positions, tile)), (positions, Graft.ADD, Graft.MULTIPLY, x.shape[-1], tile, width)
