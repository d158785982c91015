"""Exports a picture's events as CSV: `cuda_sched_trace`'s columns, then further ones.

All times are ns on the clock named in the column ``clock``, including ``timestamp_ns``, which that
tool counts from its first row. A switch has two rows, one with the time at which the thread left
the CPU and one with the time at which it came back, and 0 in the other's place. Events that are
intervals in that tool too have a row for their beginning and one for their end (``syncEnter``,
``hardirqExit``); events that it does not see have one row with their duration (``request``,
``kernel``). Interrupts of the CPU's own vectors (timer ticks, calls from other CPUs) are hardirq
rows. Unknown values are empty.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pytest_hwqueue.tracing.chrome_events import Picture, Slice

COLUMNS = (
    "timestamp_ns", "event_type", "pid", "tid", "comm", "cpu",
    "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared_mem", "stream",
    "last_offcpu_ns", "last_oncpu_ns", "irq_num", "irq_name", "duration_ns",
    "clock", "name", "request", "launch", "call", "kernels", "started_by", "value",
)  # fmt: skip

_Row = tuple[int, dict[str, object]]
# Of a slice's arguments, those that a column has under the same name.
_SAME = ("tid", "cpu", "shared_mem", "stream", "request", "launch", "call", "kernels", "started_by")


def write_csv(path: Path, pid: int, comms: Mapping[int, str], picture: Picture) -> int:
    """Write a picture's events as rows in time order; return their number.

    Args:
        path: file to write.
        pid: the process.
        comms: names of its threads, by id; unknown ones stay empty.
        picture: slices with the arguments that `cell_picture` gives them, and counters.

    """
    rows = [row for one in picture.slices for row in _ROWS[one.category](one)]
    for name, unit, when_ns, value in picture.counters:
        rows.append((when_ns, {"event_type": "counter", "name": f"{name}, {unit}", "value": value}))
    rows.sort(key=lambda row: row[0])
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        for when_ns, row in rows:
            tid = row.get("tid")
            name = comms.get(tid, "") if isinstance(tid, int) else ""
            writer.writerow(
                {"timestamp_ns": when_ns, "clock": picture.clock, "pid": pid, "comm": name, **row}
            )
    return len(rows)


def _common(one: Slice) -> dict[str, object]:
    return {key: one.arguments[key] for key in _SAME if key in one.arguments}


def _whole(event: str) -> Callable[[Slice], Iterable[_Row]]:
    """Return how to write a slice as one row with its duration."""

    def rows(one: Slice) -> Iterable[_Row]:
        row = {**_common(one), "event_type": event, "name": one.name}
        return [(one.start_ns, {**row, "duration_ns": one.end_ns - one.start_ns, **_shape(one)})]

    return rows


def _call(one: Slice) -> Iterable[_Row]:
    return _whole(one.name)(one)


def _shape(one: Slice) -> dict[str, object]:
    row: dict[str, object] = {}
    for prefix in ("grid", "block"):
        sizes: Any = one.arguments.get(prefix)
        if sizes is not None:
            row |= {f"{prefix}_{axis}": size for axis, size in zip("xyz", sizes, strict=True)}
    return row


def _wait(one: Slice) -> Iterable[_Row]:
    common = _common(one)
    return [
        (one.start_ns, {**common, "event_type": "syncEnter"}),
        (one.end_ns, {**common, "event_type": "syncExit"}),
    ]


def _switches(one: Slice) -> Iterable[_Row]:
    common = {"event_type": "schedSwitch", "tid": one.arguments["tid"], "name": one.name}
    cpu, end_cpu = one.arguments["cpu"], one.arguments["back_on_cpu"]
    # Without a CPU it left before the trace began, or came back after its end.
    if cpu is not None:
        times = {"last_offcpu_ns": one.start_ns, "last_oncpu_ns": 0}
        yield one.start_ns, {**common, **times, "cpu": cpu}
    elif end_cpu is None:
        yield one.start_ns, {**common, "duration_ns": one.end_ns - one.start_ns}
    if end_cpu is not None:
        times = {"last_offcpu_ns": 0, "last_oncpu_ns": one.end_ns}
        yield one.end_ns, {**common, **times, "cpu": end_cpu}


def _interrupt(one: Slice) -> Iterable[_Row]:
    details = one.arguments
    stem = "softirq" if details["kind"] == "softirq" else "hardirq"
    common = {**_common(one), "irq_num": details["number"], "irq_name": details["interrupt"]}
    duration_ns = one.end_ns - one.start_ns
    return [
        (one.start_ns, {**common, "event_type": f"{stem}Entry"}),
        (one.end_ns, {**common, "event_type": f"{stem}Exit", "duration_ns": duration_ns}),
    ]


_ROWS: Mapping[str, Callable[[Slice], Iterable[_Row]]] = {
    "request": _whole("request"),
    "lead-in": _whole("leadIn"),
    "call": _call,
    "wait": _wait,
    "kernel": _whole("kernel"),
    "switch": _switches,
    "runnable": _whole("schedRunnable"),
    "interrupt": _interrupt,
}
