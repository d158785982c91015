"""Streams that live as long as their process, lent to one pool after another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

Kind = TypeVar("Kind", bound=Hashable)


class IdleStreams(Generic[Kind]):
    """The streams of one device that no pool is using.

    None is ever destroyed. When page-locked memory is freed, torch's allocator records an event on
    every stream that copied from it, possibly long after the pool's end; on a destroyed stream that
    crashes the process (seen on an H200 with torch 2.11; pytorch/pytorch#66936 is the counterpart
    for device memory).

    Args:
        create: creates a stream of a kind (a priority, say) and returns its handle.

    """

    def __init__(self, create: Callable[[Kind], int]) -> None:
        self._create = create
        self._idle: dict[Kind, list[int]] = {}
        # Tenants that are threads of one process open their pools at once.
        self._lock = threading.Lock()

    def take(self, kinds: Sequence[Kind]) -> list[int]:
        """Return one stream of each kind, creating missing ones.

        Successive pools with the same request get the same streams in the same order.
        """
        taken: list[int] = []
        with self._lock:
            try:
                for kind in kinds:
                    idle = self._idle.get(kind)
                    taken.append(idle.pop(0) if idle else self._create(kind))
            except BaseException:
                self._put_back(kinds, taken)
                raise
        return taken

    def give_back(self, kinds: Sequence[Kind], handles: Sequence[int]) -> None:
        """Take streams back from a pool; they must be idle."""
        with self._lock:
            self._put_back(kinds, handles)

    def _put_back(self, kinds: Sequence[Kind], handles: Sequence[int]) -> None:
        for kind, handle in zip(reversed(kinds[: len(handles)]), reversed(handles), strict=True):
            self._idle.setdefault(kind, []).insert(0, handle)
