"""The user's own code as a workload: a function launched on each stream, or one that enqueues."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from pytest_hwqueue.devices.protocol import Stream
from pytest_hwqueue.workloads import MAXIMUM_STREAMS
from pytest_hwqueue.workloads.workload import Parameters, Setup, StreamRange, Workload


class FunctionWorkload(Workload):
    """The user's function, as given to `hwq.measure`."""

    name = "function"
    family = "your own tests"
    mark = ""
    description = "a test's own code"
    stream_range = StreamRange(1, 8, MAXIMUM_STREAMS)
    units = ()
    parameter_model = Parameters
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def __init__(
        self,
        enqueue: Callable[[Sequence[Stream]], object],
        work: Mapping[str, float],
        tags: Sequence[str],
    ) -> None:
        self._enqueue = enqueue
        self._work = dict(work)
        # A class attribute of other workloads; here each test has its own.
        self.tags = tuple(tags)  # type: ignore[misc]

    def setup(self, setup: Setup) -> None:
        """Do nothing: the test has set itself up."""

    def iterate(self, streams: Sequence[Stream]) -> None:
        """Enqueue the test's iteration."""
        self._enqueue(streams)

    def work_per_iteration(self) -> dict[str, float]:
        """Return the work per iteration that the test declared."""
        return self._work

    def check(self, run_once: Callable[[], None]) -> None:
        """Only run it: the test itself checks its results."""
        run_once()


def on_every_stream(function: Callable[[], object]) -> Callable[[Sequence[Stream]], None]:
    """Enqueue ``function`` once on each stream."""

    def enqueue(streams: Sequence[Stream]) -> None:
        for stream in streams:
            stream.launch(function)

    return enqueue
