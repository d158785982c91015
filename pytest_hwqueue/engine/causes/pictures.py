"""Tracks, slices, flows and counters, written as Chrome trace events for Perfetto, and as CSV.

The first format: "Trace Event Format", Google, 2016. Slices of one track must nest, so a slice that
merely overlaps another goes to a further track of the same name below.

The CSV has `cuda_sched_trace`'s columns, then further ones. All times are ns on the clock named in
the column ``clock``, including ``timestamp_ns``, which that tool counts from its first row. A
switch has two rows, one with the time at which the thread left the CPU and one with the time at
which it came back, and 0 in the other's place. Events that are intervals in that tool too have a
row for their beginning and one for their end (``syncEnter``, ``hardirqExit``); events that it does
not see have one row with their duration (``request``, ``kernel``). Interrupts of the CPU's own
vectors (timer ticks, calls from other CPUs) are hardirq rows. Unknown values are empty.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_hwqueue.data.safe_files import write_text

COLUMNS = (
    "timestamp_ns", "event_type", "pid", "tid", "comm", "cpu",
    "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared_mem", "stream",
    "last_offcpu_ns", "last_oncpu_ns", "irq_num", "irq_name", "duration_ns",
    "clock", "name", "request", "launch", "call", "kernels", "started_by", "value",
)  # fmt: skip

_Row = tuple[int, dict[str, object]]
# Of a slice's arguments, those that a column has under the same name.
_SAME = ("tid", "cpu", "shared_mem", "stream", "request", "launch", "call", "kernels", "started_by")


@dataclass
class Slice:
    """One slice; ``lane`` is assigned when the file is written."""

    name: str
    start_ns: int
    end_ns: int
    category: str
    arguments: Mapping[str, object]
    lane: int = 0


@dataclass
class Track:
    """A row of slices; a process's rows are grouped."""

    process: str
    name: str
    slices: list[Slice] = field(default_factory=list)

    def add(
        self, name: str, start_ns: int, end_ns: int, category: str, **arguments: object
    ) -> Slice:
        """Add a slice; ValueError if it ends before it starts."""
        if end_ns < start_ns:
            raise ValueError(f"slice {name!r} ends at {end_ns} ns, before it starts, {start_ns} ns")
        made = Slice(name, start_ns, end_ns, category, arguments)
        self.slices.append(made)
        return made

    def lay_out(self) -> int:
        """Assign slices to lanes in which they nest; return the number of lanes."""
        lanes: list[list[int]] = []
        for one in sorted(self.slices, key=lambda each: (each.start_ns, -each.end_ns)):
            one.lane = _lane_for(one, lanes)
            lanes[one.lane].append(one.end_ns)
        return len(lanes)


class Picture:
    """A trace to be written; all times are ns on one clock, whose name is ``clock``.

    Attributes:
        counters: name, unit, time and value of each counter's point.

    """

    def __init__(self, clock: str) -> None:
        self.clock = clock
        self._tracks: dict[tuple[str, str], Track] = {}
        self._flows: list[tuple[tuple[Track, Slice], tuple[Track, Slice]]] = []
        self.counters: list[tuple[str, str, int, float]] = []

    def track(self, process: str, name: str) -> Track:
        """Return a track, created on first use; tracks keep their order of creation."""
        return self._tracks.setdefault((process, name), Track(process, name))

    def flow(self, origin: tuple[Track, Slice], target: tuple[Track, Slice]) -> None:
        """Draw an arrow from the start of one slice to that of a later one."""
        self._flows.append((origin, target))

    def counter(self, name: str, unit: str, when_ns: int, value: float) -> None:
        """Add a point to a counter."""
        self.counters.append((name, unit, when_ns, value))

    @property
    def slices(self) -> Iterator[Slice]:
        """All slices, track by track."""
        return (one for track in self._tracks.values() for one in track.slices)

    def write(self, path: Path, about: Mapping[str, object]) -> None:
        """Write the file; ``about`` states its origin."""
        names = dict.fromkeys(track.process for track in self._tracks.values())
        processes = {name: number for number, name in enumerate(names, start=1)}
        events: list[dict[str, Any]] = [
            {"ph": "C", "name": name, "pid": 0, "ts": when_ns / 1000, "args": {unit: value}}
            for name, unit, when_ns, value in self.counters
        ]
        numbers: dict[int, int] = {}
        for name, number in processes.items():
            events += _heading("process", number, 0, name, number)
        if self.counters:
            events += _heading("process", 0, 0, "telemetry")
        next_row = 1
        for track in self._tracks.values():
            numbers[id(track)] = next_row
            for lane in range(track.lay_out()):
                name = track.name if lane == 0 else f"{track.name} ({lane + 1})"
                process = processes[track.process]
                events += _heading("thread", process, next_row, name, next_row)
                next_row += 1
        for track in self._tracks.values():
            for one in sorted(track.slices, key=lambda each: (each.start_ns, -each.end_ns)):
                events.append(
                    {
                        "ph": "X", "name": one.name, "cat": one.category,
                        "pid": processes[track.process], "tid": numbers[id(track)] + one.lane,
                        "ts": one.start_ns / 1000, "dur": (one.end_ns - one.start_ns) / 1000,
                        "args": dict(one.arguments),
                    }
                )  # fmt: skip
        for number, ends in enumerate(self._flows):
            for phase, (track, one) in zip("sf", ends, strict=True):
                event = {
                    "ph": phase, "name": "launch", "cat": "launch", "id": number,
                    "pid": processes[track.process], "tid": numbers[id(track)] + one.lane,
                    "ts": one.start_ns / 1000,
                }  # fmt: skip
                if phase == "f":
                    event["bp"] = "e"
                events.append(event)
        text = json.dumps(
            {"traceEvents": events, "displayTimeUnit": "ns",
             "otherData": {**about, "clock": self.clock}}
        )  # fmt: skip
        write_text(path, text)


def _lane_for(one: Slice, lanes: list[list[int]]) -> int:
    """Return the first lane in which a slice nests; a lane holds the ends of its open slices."""
    for number, ends in enumerate(lanes):
        while ends and ends[-1] <= one.start_ns:
            ends.pop()
        if not ends or one.end_ns <= ends[-1]:
            return number
    lanes.append([])
    return len(lanes) - 1


def _heading(
    what: str, process: int, row: int, name: str, index: int | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the events that name a process or a thread, and give it its place."""
    for key, value in (("name", name), ("sort_index", index)):
        if value is not None:
            about = {"ph": "M", "name": f"{what}_{key}", "pid": process, "tid": row}
            yield {**about, "args": {key: value}}


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
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for when_ns, row in rows:
        tid = row.get("tid")
        name = comms.get(tid, "") if isinstance(tid, int) else ""
        writer.writerow(
            {"timestamp_ns": when_ns, "clock": picture.clock, "pid": pid, "comm": name, **row}
        )
    write_text(path, text.getvalue())
    return len(rows)


def _common(one: Slice) -> dict[str, object]:
    return {key: one.arguments[key] for key in _SAME if key in one.arguments}


def _whole(event: str) -> Callable[[Slice], Iterable[_Row]]:
    """Return how to write a slice as one row with its duration."""

    def rows(one: Slice) -> Iterable[_Row]:
        row = {**_common(one), "event_type": event, "name": one.name}
        return [(one.start_ns, {**row, "duration_ns": one.end_ns - one.start_ns, **_shape(one)})]

    return rows


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
    "call": lambda one: _whole(one.name)(one),
    "wait": _wait,
    "kernel": _whole("kernel"),
    "switch": _switches,
    "runnable": _whole("schedRunnable"),
    "interrupt": _interrupt,
}
