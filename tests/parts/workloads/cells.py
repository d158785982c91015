"""A workload as a measured cell, and streams that count or leave out what passes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from pytest_hwqueue.data.metrics.timeline import Kernel, Timeline, split_tag
from pytest_hwqueue.data.records.cell import Cell, RunRecord
from pytest_hwqueue.data.records.provenance import Provenance
from pytest_hwqueue.engine.cell.cell import CellOrigin, CellRequest
from pytest_hwqueue.engine.cell.closed_loop import Plan
from pytest_hwqueue.engine.cell.ranks import measure_alone
from pytest_hwqueue.engine.cell.runner import CellRunner
from pytest_hwqueue.engine.cell.stop_rule import StopRule
from pytest_hwqueue.parts.devices.host import HostDevice
from pytest_hwqueue.parts.devices.protocol import Device, Event, Stream
from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.parts.schedulers.syntax import open_scheduler
from pytest_hwqueue.parts.workloads.workload import Setup, Workload, parameters_for

from .perturbed import StreamBeside, group_for

ITERATIONS = 3


def make(found: type[Workload], given: Mapping[str, Any] | None = None) -> Workload:
    """A workload of size tiny, not set up."""
    return found(parameters_for(found, "tiny", given or {}))


def measured(
    found: type[Workload],
    streams: int,
    device: Device | None = None,
    given: Mapping[str, Any] | None = None,
    dispatch: str = "eager",
) -> RunRecord:
    """The record of a few iterations; its status says whether the check passed."""
    device = device or HostDevice()
    values = parameters_for(found, "tiny", given or {})

    def changed(parameters: Mapping[str, Any]) -> Workload:
        return found(values.model_copy(update=dict(parameters)))

    return record_of(
        device, changed({}), streams, Plan(StopRule(ITERATIONS, 4_000_000_000), 1, "per_iteration"),
        name=found.name, dispatch=dispatch, size="tiny", make=changed,
        parameters=values.model_dump(), urgency=found.urgency(streams), seed=7,
        group=(found.family, found.mark),
    )  # fmt: skip


def record_of(
    device: Device,
    workload: Workload,
    streams: int,
    plan: Plan,
    *,
    name: str = "planted",
    scheduler: str = "native",
    dispatch: str = "eager",
    size: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    make: Callable[[Mapping[str, Any]], Workload] | None = None,
    urgency: Sequence[int] | None = None,
    seed: int = 0,
    group: tuple[str | None, str | None] = (None, None),
) -> RunRecord:
    """Measure a cell as `hwq` does; return its record."""
    cell = Cell(
        name=name, device=device.label, streams=streams, scheduler=scheduler, dispatch=dispatch,
        sync_mode=plan.sync_mode, size=size, parameters=dict(parameters or {}),
    )  # fmt: skip
    request = CellRequest(
        cell=cell, workload=workload, make_workload=make, urgency=urgency or [0] * streams,
        plan=plan, seed=seed,
        origin=CellOrigin("file.py::test", *group, "pytest", Provenance()),
    )  # fmt: skip
    runner = CellRunner(device, open_scheduler(scheduler), lambda stage, done, planned: None)
    record, _ = measure_alone(runner, request)
    return record


def simulated_timeline(workload: Workload, streams: int, iterations: int = 1) -> Timeline:
    """The timeline of the last iteration on a simulated H200, all enqueued before it runs."""
    device = SimulatedDevice("h200")
    with (
        group_for(workload, device),
        device.open_streams(streams, gradients=workload.gradients) as pool,
    ):
        workload.setup(Setup(device, streams, 3))
        for _ in range(iterations):
            timeline = pool.held_timeline(lambda: workload.iterate(pool.streams))
    return timeline


def kernels_of(timeline: Timeline, tag: str) -> list[Kernel]:
    """The kernels of launches with a tag, whatever request they belong to; there are some."""
    found = [kernel for kernel in timeline.kernels if split_tag(kernel.tag or "")[0] == tag]
    assert found, f"nothing is tagged {tag}"
    return found


class Run:
    """A workload set up on the host device, with something around each of its streams.

    Used in a ``with`` statement; ``once`` runs one iteration and waits for its end.
    """

    def __init__(
        self,
        workload: Workload,
        streams: int,
        around: Callable[[Stream], Stream] = lambda stream: stream,
        seed: int = 3,
    ) -> None:
        self.workload = workload
        self._streams = streams
        self._around = around
        self._seed = seed

    def __enter__(self) -> Run:
        device = HostDevice()
        self._group = ExitStack()
        self._group.enter_context(group_for(self.workload, device))
        self.pool = device.open_streams(self._streams, gradients=self.workload.gradients)
        self.pool.__enter__()
        self.workload.setup(Setup(device, self._streams, self._seed))
        self.streams = [self._around(stream) for stream in self.pool.streams]
        return self

    def __exit__(self, *error: Any) -> None:
        self.pool.__exit__(*error)
        self._group.close()

    def once(self) -> None:
        self.workload.iterate(self.streams)
        self.pool.synchronize()


class _Asking(StreamBeside):
    """Asks before each launch, told its tag or name, and before each wait, told ``wait``."""

    def __init__(self, stream: Stream, passes: Callable[[int, str, str | None], bool]) -> None:
        super().__init__(stream)
        self._passes = passes

    def launch(
        self, function: Callable[..., object], *arguments: object, tag: str | None = None
    ) -> None:
        if self._passes(self.index, tag or str(getattr(function, "__name__", "")), tag):
            super().launch(function, *arguments, tag=tag)

    def wait(self, event: Event) -> None:
        if self._passes(self.index, WAIT, None):
            super().wait(event)


WAIT = "wait"


class Counts:
    """Counts launches by stream and tag; give ``around`` to what opens the streams.

    Launches of a request count by their tag's own name, and by the request in ``requests``.
    ``log`` has all in order, as a stream and the whole tag or the function's name, and waits.
    """

    def __init__(self) -> None:
        self.launches: Counter[tuple[int, str | None]] = Counter()
        self.requests: Counter[str] = Counter()
        self.log: list[tuple[int, str]] = []

    def around(self, stream: Stream) -> Stream:
        return _Asking(stream, self._count)

    def _count(self, stream: int, what: str, tag: str | None) -> bool:
        self.log.append((stream, what))
        if what != WAIT:
            name, request = split_tag(tag or "")
            self.launches[stream, name or None] += 1
            if request:
                self.requests[request] += 1
        return True

    @property
    def streams(self) -> set[int]:
        return {stream for stream, _ in self.launches}

    def streams_of(self, tag: str | None) -> set[int]:
        return {stream for stream, found in self.launches if found == tag}

    def of_tag(self, tag: str | None) -> int:
        return sum(count for (_, found), count in self.launches.items() if found == tag)

    def on(self, stream: int) -> list[str]:
        return [what for index, what in self.log if index == stream]


class Waits:
    """Counts the waits of all streams, and leaves one out of each ``period``."""

    def __init__(self, left_out: int = -1, period: int = 1) -> None:
        self.count = 0
        self._left_out = left_out
        self._period = period

    def around(self, stream: Stream) -> Stream:
        return _Asking(stream, self._passes)

    def _passes(self, stream: int, what: str, tag: str | None) -> bool:
        self.count += what == WAIT
        return what != WAIT or (self.count - 1) % self._period != self._left_out


class LeftOut:
    """Leaves out one launch, by its number among all, and each ``period``-th behind it."""

    def __init__(self, number: int, period: int | None = None) -> None:
        self._behind = -number
        self._period = period

    def around(self, stream: Stream) -> Stream:
        return _Asking(stream, self._passes)

    def _passes(self, stream: int, what: str, tag: str | None) -> bool:
        behind = self._behind
        self._behind += what != WAIT
        again = self._period is not None and behind > 0 and behind % self._period == 0
        return what == WAIT or not (behind == 0 or again)
