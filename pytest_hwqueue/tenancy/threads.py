"""Tenants as threads of one process, each with its own streams, all at one barrier."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence

# Python lets a thread keep the interpreter for 5 ms while others wait. That would be an urgent
# tenant's latency, and its generator's lateness, by no doing of the device or its scheduler.
SWITCH_INTERVAL_S = 1e-4


def run_together(lives: Sequence[Callable[[], bool]]) -> bool:
    """Run each tenant's life in its own thread; return whether all succeeded.

    A life reports its own errors. If one ends early, the parent ends the process.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    went_well = [False] * len(lives)

    def run(index: int) -> None:
        went_well[index] = lives[index]()

    threads = [
        threading.Thread(target=run, args=(index,), name=f"hwq-tenant-{index}")
        for index in range(len(lives))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return all(went_well)
