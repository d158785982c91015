"""Notes when torch.compile compiles, from its own callbacks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from pytest_hwqueue.metrics.intervals import Span


@contextmanager
def noted_compilations(clock_ns: Callable[[], int]) -> Iterator[Sequence[Span]]:
    """Note when something is compiled during the ``with`` block, in ns of ``clock_ns``.

    If torch's compiler has not been imported, nothing can be compiled, and nothing is imported.
    """
    spans: list[Span] = []
    began: list[int] = []
    if "torch._dynamo" not in sys.modules:
        yield spans
        return
    from torch._dynamo.callback import callback_handler

    # Later versions pass what is compiled.
    def begin(*_: object) -> None:
        began.append(clock_ns())

    def end(*_: object) -> None:
        if began:
            spans.append((began.pop(), clock_ns()))

    callback_handler.register_start_callback(begin)
    callback_handler.register_end_callback(end)
    try:
        yield spans
    finally:
        callback_handler.remove_start_callback(begin)
        callback_handler.remove_end_callback(end)
