"""Set how the threads of torch wait for each other, before torch is imported."""

import os
import sys

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Settings of OpenMP about waiting, any of which a user may have made."""


SETTINGS = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "500"}
"""What is set. GNU's OpenMP looks so many times before it sleeps, which are microseconds: most products of a fleet end
sooner, and waking a thread takes longer."""


def let_waiting_threads_sleep() -> None:
    """Make idle OpenMP threads sleep after a moment instead of spin, unless the user has said how they wait.

    Spinning threads keep the processor from the one they wait for as soon as another program needs it, and a run beside
    a busy process slows down tenfold. No number depends on it. OpenMP reads the setting once, when torch is imported.
    """
    if "torch" not in sys.modules and not any(name in os.environ for name in WAITING):
        os.environ.update(SETTINGS)
