"""Keep memory that tensors on a CPU have freed in the process, so that the next tensors find its pages in place."""

import ctypes
import os
import sys
from functools import cache

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
"""Options of glibc's `mallopt`."""
OPTIONS = {MMAP_THRESHOLD: (2**30, 2**25), TRIM_THRESHOLD: (2**31 - 1,), TOP_PAD: (2**26,)}
"""Bytes from which a tensor gets pages of its own, that may stay freed, and that are asked for at once. Of several
sizes, the first that glibc takes: older versions take no more than 32 MiB."""
SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")
"""Variables of the environment by which users set the same, as they do with `GLIBC_TUNABLES`."""


@cache
def keep_freed_memory() -> None:
    """Have the C library keep up to 2 GiB of freed memory, where it is glibc and the user has not set it otherwise.

    By default it returns the memory of tensors above 32 MiB to the system as they are freed, and the system clears
    every page before it gives it out again: two fifths of the time of a fleet with such tensors, measured by
    `benchmark/freed_memory.py`. The setting holds for the whole process: docs/concepts/fleet.md tells users.
    """
    is_set = any(name in os.environ for name in SETTINGS) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if is_set or sys.platform != "linux" or not hasattr(library := ctypes.CDLL(None), "gnu_get_libc_version"):
        return
    for option, sizes in OPTIONS.items():
        any(library.mallopt(option, size) for size in sizes)
