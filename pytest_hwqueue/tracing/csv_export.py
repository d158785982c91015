"""Exports launches, context switches and interrupts as CSV in `cuda_sched_trace`'s columns.

As there, a row's time counts from the first row; a switch has two rows, one with the time at which
the thread left the CPU and one with the time at which it came back, and 0 in the other's place;
only an interrupt's exit has a duration. These two times are not relative: they are of
CLOCK_MONOTONIC. Interrupts of the CPU's own vectors (timer ticks, calls from other CPUs), which
that tool does not see, are hardirq rows. What is not known is empty.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_hwqueue.metrics.cpu_events import Interrupt, OffCpu

COLUMNS = (
    "timestamp_ns", "event_type", "pid", "tid", "comm", "cpu",
    "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared_mem", "stream",
    "last_offcpu_ns", "last_oncpu_ns", "irq_num", "irq_name", "duration_ns",
)  # fmt: skip

_Row = tuple[int, dict[str, object]]


@dataclass(frozen=True)
class LaunchCall:
    """One launch as made by the host.

    Attributes:
        when_ns: its beginning, of CLOCK_MONOTONIC.
        call: ``cudaLaunchKernel``, ``cuLaunchKernel``, or what another runtime calls it.
        tid: the thread.
        grid: blocks in x, y and z.
        block: threads in x, y and z.
        shared_memory_bytes: of a block.
        stream: the runtime's number of it.

    """

    when_ns: int
    call: str
    tid: int
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    shared_memory_bytes: int | None = None
    stream: int | None = None


@dataclass(frozen=True)
class SyncCall:
    """One wait of the host for the device; times are CLOCK_MONOTONIC."""

    start_ns: int
    end_ns: int
    tid: int


def write_csv(
    path: Path,
    pid: int,
    comms: Mapping[int, str],
    launches: Iterable[LaunchCall] = (),
    syncs: Iterable[SyncCall] = (),
    off_cpu: Iterable[OffCpu] = (),
    interrupts: Iterable[Interrupt] = (),
) -> int:
    """Write the rows in time order; return their number.

    Args:
        path: file to write.
        pid: the process.
        comms: names of its threads, by id; unknown ones stay empty.
        launches: in any order, as the others.
        syncs: waits for the device.
        off_cpu: times the threads were off the CPU.
        interrupts: in the threads' time.

    """
    rows: list[_Row] = []
    for launch in launches:
        rows.append((launch.when_ns, _launch(launch)))
    for sync in syncs:
        rows.append((sync.start_ns, {"event_type": "syncEnter", "tid": sync.tid}))
        rows.append((sync.end_ns, {"event_type": "syncExit", "tid": sync.tid}))
    for away in off_cpu:
        rows += _switches(away)
    for interrupt in interrupts:
        rows += _interrupt(interrupt)
    rows.sort(key=lambda row: row[0])
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        for when_ns, row in rows:
            tid = row["tid"]
            name = comms.get(tid, "") if isinstance(tid, int) else ""
            relative_ns = when_ns - rows[0][0]
            writer.writerow({"timestamp_ns": relative_ns, "pid": pid, "comm": name, **row})
    return len(rows)


def _launch(launch: LaunchCall) -> dict[str, object]:
    row: dict[str, object] = {"event_type": launch.call, "tid": launch.tid}
    for prefix, sizes in (("grid", launch.grid), ("block", launch.block)):
        if sizes is not None:
            row |= {f"{prefix}_{axis}": size for axis, size in zip("xyz", sizes, strict=True)}
    if launch.shared_memory_bytes is not None:
        row["shared_mem"] = launch.shared_memory_bytes
    if launch.stream is not None:
        row["stream"] = f"{launch.stream:#x}"
    return row


def _switches(away: OffCpu) -> list[_Row]:
    rows: list[_Row] = []
    common: dict[str, object] = {"event_type": "schedSwitch", "tid": away.tid}
    # Without a CPU it left before the trace began, or came back after its end.
    if away.cpu is not None:
        times = {"last_offcpu_ns": away.start_ns, "last_oncpu_ns": 0}
        rows.append((away.start_ns, {**common, **times, "cpu": away.cpu}))
    if away.end_cpu is not None:
        times = {"last_offcpu_ns": 0, "last_oncpu_ns": away.end_ns}
        rows.append((away.end_ns, {**common, **times, "cpu": away.end_cpu}))
    return rows


def _interrupt(interrupt: Interrupt) -> list[_Row]:
    stem = "softirq" if interrupt.kind == "softirq" else "hardirq"
    common: dict[str, object] = {
        "tid": interrupt.tid,
        "cpu": interrupt.cpu,
        "irq_num": interrupt.number,
        "irq_name": interrupt.name,
    }
    duration_ns = interrupt.end_ns - interrupt.start_ns
    return [
        (interrupt.start_ns, {**common, "event_type": f"{stem}Entry"}),
        (
            interrupt.end_ns,
            {**common, "event_type": f"{stem}Exit", "duration_ns": duration_ns},
        ),
    ]
