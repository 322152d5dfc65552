"""Launching kernels, and compiling many of them at once."""

import os
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from torch import Tensor

_waiting: dict[Hashable, Callable[[], Any]] | None = None


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    if _waiting is None:
        kernel[grid](*arguments, **options)
    elif (variant := _variant(kernel, arguments)) not in _waiting:
        _waiting[variant] = lambda: kernel.warmup(*arguments, grid=grid, **options).run  # its launcher is built, too


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
