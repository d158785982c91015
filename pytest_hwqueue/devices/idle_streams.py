"""Streams that live as long as their process, lent to one pool after another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence


class IdleStreams:
    """The streams of one device that no pool is using.

    None is ever destroyed. When page-locked memory is freed, torch's allocator records an event on
    every stream that copied from it, possibly long after the pool's end; on a destroyed stream that
    crashes the process (seen on an H200 with torch 2.11; pytorch/pytorch#66936 is the counterpart
    for device memory).

    Args:
        create: creates a stream with a priority and returns its handle.

    """

    def __init__(self, create: Callable[[int], int]) -> None:
        self._create = create
        self._idle: dict[int, list[int]] = {}
        # Tenants that are threads of one process open their pools at once.
        self._lock = threading.Lock()

    def take(self, priorities: Sequence[int]) -> list[int]:
        """Return one stream for each priority, creating missing ones.

        Successive pools with the same request get the same streams in the same order.
        """
        taken: list[int] = []
        with self._lock:
            try:
                for priority in priorities:
                    idle = self._idle.get(priority)
                    taken.append(idle.pop(0) if idle else self._create(priority))
            except BaseException:
                self._put_back(priorities, taken)
                raise
        return taken

    def give_back(self, priorities: Sequence[int], handles: Sequence[int]) -> None:
        """Take streams back from a pool; they must be idle."""
        with self._lock:
            self._put_back(priorities, handles)

    def _put_back(self, priorities: Sequence[int], handles: Sequence[int]) -> None:
        for priority, handle in zip(
            reversed(priorities[: len(handles)]), reversed(handles), strict=True
        ):
            self._idle.setdefault(priority, []).insert(0, handle)
