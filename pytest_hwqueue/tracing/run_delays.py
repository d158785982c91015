"""Measures how long threads waited for a core, step by step, if no events can be traced."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping


class RunDelays:
    """Reads threads' run-queue time after each step of a loop, in about 2 µs per thread.

    Args:
        tids: threads of this process; one whose time cannot be read is left out.

    """

    def __init__(self, tids: Collection[int]) -> None:
        self._files: dict[int, int] = {}
        for tid in tids:
            try:
                self._files[tid] = os.open(f"/proc/self/task/{tid}/schedstat", os.O_RDONLY)
            except OSError:
                # A kernel without CONFIG_SCHED_INFO, a sandbox, or a thread that has ended.
                continue
        self._last = self._read()

    @property
    def threads(self) -> Collection[int]:
        """The threads whose time can be read."""
        return self._files.keys()

    def step(self) -> Mapping[int, int]:
        """Return the ns each thread has waited since the last call, by id; only if it waited."""
        now = self._read()
        waited = {tid: now[tid] - self._last[tid] for tid in now}
        self._last = now
        return {tid: delay for tid, delay in waited.items() if delay > 0}

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def _read(self) -> dict[int, int]:
        # Its second figure (Documentation/scheduler/sched-stats).
        return {tid: int(os.pread(file, 128, 0).split()[1]) for tid, file in self._files.items()}
