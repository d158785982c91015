"""When Python's garbage collector ran, from its own callbacks."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from pytest_hwqueue.causes.trace_file import HostWork


@contextmanager
def noted_collections(clock_ns: Callable[[], int]) -> Iterator[Sequence[HostWork]]:
    """Note for the ``with`` block each collection, in ns of ``clock_ns``.

    It holds the interpreter's lock, so whoever collects, no thread runs Python meanwhile.
    """
    found: list[HostWork] = []
    began: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            began.append(clock_ns())
        elif began:
            name = f"generation {info['generation']}"
            found.append(HostWork(name=name, begin_ns=began.pop(), end_ns=clock_ns()))

    gc.callbacks.append(note)
    try:
        yield found
    finally:
        gc.callbacks.remove(note)
