"""Launch kernels, and compile many of them in parallel."""

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
    """Compile the kernels that are launched in this context, in parallel, instead of running them."""
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
    """Compile a kernel and write its launcher to disk.

    The launcher loaded here is discarded. All launchers are Python modules of one name, so loading them in parallel
    could give a kernel the launcher of another.
    """
    kernel = call()
    driver.active.launcher_cls(kernel.src, kernel.metadata)
    return kernel


def _variant(kernel: Any, arguments: tuple[Any, ...]) -> Hashable:
    """Return the key under which Triton compiles a separate variant."""

    def seen(parameter: Any, x: Any) -> Hashable:
        if isinstance(x, Tensor):
            return x.dtype, x.data_ptr() % 16 == 0
        if parameter.is_constexpr:
            return x
        return None if parameter.do_not_specialize else (x % 16 == 0, x == 1)

    return kernel, tuple(seen(parameter, x) for parameter, x in zip(kernel.params, arguments, strict=True))
