"""The scheduler modes by name."""

from __future__ import annotations

from pytest_hwqueue.schedulers.native import Native
from pytest_hwqueue.schedulers.protocol import Scheduler
from pytest_hwqueue.schedulers.stream_priority import StreamPriority

SCHEDULERS: dict[str, type[Scheduler]] = {
    Native.mode: Native,
    StreamPriority.mode: StreamPriority,
}


def open_scheduler(mode: str) -> Scheduler:
    """Return the mode called ``mode``; KeyError if there is none (options refuse it earlier)."""
    return SCHEDULERS[mode]()
