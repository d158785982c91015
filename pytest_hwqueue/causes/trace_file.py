"""What was seen of requests while they were traced, and the file that hands it over. No torch."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from pathlib import Path

from pydantic import Field

from pytest_hwqueue.metrics.cpu_events import Interrupt, OffCpu, Wait
from pytest_hwqueue.metrics.delay_evidence import DeviceWork, Evidence
from pytest_hwqueue.metrics.launch_pairs import LaunchPairs
from pytest_hwqueue.metrics.plain_data import PlainData
from pytest_hwqueue.records.cell import read_model
from pytest_hwqueue.records.files import write_text
from pytest_hwqueue.tracing.clocks import ClockPair
from pytest_hwqueue.tracing.levels import Level, Refusal

_OUTSIDE = -1
_UNKNOWN = -1


class WorkColumns(PlainData):
    """Kernels and copies, a column for each of their fields, shape (n,); times in ns.

    Attributes:
        names: each name once.
        name: index of the name.
        request: number of the request; -1 outside of requests.
        enqueued_ns: -1 where it is not known.

    """

    names: list[str]
    name: list[int]
    stream: list[int]
    ready_ns: list[int]
    start_ns: list[int]
    end_ns: list[int]
    request: list[int]
    enqueued_ns: list[int]


class HostWork(PlainData):
    """What the host did instead of launching.

    That is a call of the device's runtime for memory or code, or a collection of garbage.
    """

    name: str
    begin_ns: int
    end_ns: int


class Trace(PlainData):
    """What was seen of a cell or of one tenant; all times are ns of the clock of its requests.

    Attributes:
        owner: the tenant's name.
        device_kind: of the device that it ran on.
        threads: the operating system's ids of its threads.
        stream_threads: of those that are streams, the stream's index.
        named_as_by_others: whether other tenants' traces name its threads by these ids.
        work: what ran, where it is handed over.
        work_unseen: why what ran could not be seen; empty if it could.
        calls: for memory or code.
        collections: of garbage.
        clocks: of the device against the host, in order; empty where they are one clock.
        level: how much of the CPU could be seen.
        refused: the better levels.
        off_cpu: times at which its threads were off the CPU; None where that was not seen.
        interrupts: in its threads' time, likewise.
        lost: records of either that did not fit; None where neither was seen.
        waits: of its threads for something else than a CPU; None where they were not seen.
        waits_unseen: why what they waited for could not be seen; empty if it could.
        waits_per_s: how often that was looked at.
        delays: where threads waited for a core in a request, as far as only the sum is known; None
            where times are known, or nothing.
        full_ns: from when on nothing more of the CPU was kept; None if all was.
        launch_pairs: gaps between launches; None where switches were not seen.

    """

    owner: str
    device_kind: str
    threads: list[int]
    stream_threads: dict[int, int]
    named_as_by_others: bool = False
    work: WorkColumns | None = None
    work_unseen: str = ""
    calls: list[HostWork]
    collections: list[HostWork] = Field(default_factory=list)
    clocks: list[ClockPair] = Field(default_factory=list)
    level: Level
    refused: list[Refusal]
    off_cpu: list[OffCpu] | None = None
    interrupts: list[Interrupt] | None = None
    lost: int | None = None
    waits: list[Wait] | None = None
    waits_unseen: str = ""
    waits_per_s: float | None = None
    delays: list[Evidence] | None = None
    full_ns: int | None = None
    launch_pairs: LaunchPairs | None = None

    def device_work(self) -> list[DeviceWork]:
        """Return the kernels and copies, as the owner's; none where they were not seen."""
        columns = self.work
        if columns is None:
            return []
        fields = (
            repeat(self.owner), columns.stream, (columns.names[each] for each in columns.name),
            columns.ready_ns, columns.start_ns, columns.end_ns,
            (None if number == _OUTSIDE else number for number in columns.request),
            (None if when == _UNKNOWN else when for when in columns.enqueued_ns),
        )  # fmt: skip
        return [DeviceWork(*values) for values in zip(*fields, strict=False)]


def columns_of(work: Iterable[DeviceWork]) -> WorkColumns:
    """Return a tenant's work in columns, in its order."""
    numbers: dict[str, int] = {}
    listed = list(work)
    return WorkColumns(
        name=[numbers.setdefault(one.name, len(numbers)) for one in listed],
        names=list(numbers),
        stream=[one.stream for one in listed],
        ready_ns=[one.ready_ns for one in listed],
        start_ns=[one.start_ns for one in listed],
        end_ns=[one.end_ns for one in listed],
        request=[_OUTSIDE if one.request is None else one.request for one in listed],
        enqueued_ns=[_UNKNOWN if one.enqueued_ns is None else one.enqueued_ns for one in listed],
    )


def trace_path(folder: Path, tenant: str) -> Path:
    """Return where a tenant's trace is among what a run wrote."""
    return folder / f"trace-{tenant}.json"


def write_trace(folder: Path, trace: Trace) -> None:
    """Write a tenant's trace; RecordError if it cannot be written."""
    write_text(trace_path(folder, trace.owner), trace.model_dump_json())


def read_trace(folder: Path, tenant: str) -> Trace:
    """Read a tenant's trace; RecordError names the file if it is missing or damaged."""
    return read_model(trace_path(folder, tenant), Trace, "a tenant's trace")
