"""Launching kernels, and compiling many of them at once."""

# pyright: reportMissingImports=false

import os
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from triton.runtime import driver

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
        compiled = list(pool.map(_built, calls.values()))
    for kernel in compiled:
        _ = kernel.run  # loads its launcher


def _built(call: Callable[[], Any]) -> Any:
    """A compiled kernel whose launcher is on disk.

    What is loaded here is thrown away. To Python all launchers are modules of one name, which share a place if they are
    loaded again: side by side, a kernel could get the launcher of another.
    """
    kernel = call()
    driver.active.launcher_cls(kernel.src, kernel.metadata)
    return kernel


def _variant(kernel: Any, arguments: tuple[Any, ...]) -> Hashable:
    """What Triton compiles apart."""

    def seen(parameter: Any, x: Any) -> Hashable:
        if isinstance(x, Tensor):
            return x.dtype, x.data_ptr() % 16 == 0
        if parameter.is_constexpr:
            return x
        return None if parameter.do_not_specialize else (x % 16 == 0, x == 1)

    return kernel, tuple(seen(parameter, x) for parameter, x in zip(kernel.params, arguments, strict=True))
