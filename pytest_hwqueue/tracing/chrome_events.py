"""Writes tracks, slices, flows and counters as Chrome trace events for Perfetto.

The format: "Trace Event Format", Google, 2016. Slices of one track must nest, so a slice that
merely overlaps another goes to a further track of the same name below.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


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
    """A trace to be written; all times are ns on one clock, whose name is ``clock``."""

    def __init__(self, clock: str) -> None:
        self.clock = clock
        self._tracks: dict[tuple[str, str], Track] = {}
        self._flows: list[tuple[tuple[Track, Slice], tuple[Track, Slice]]] = []
        self._counters: list[tuple[str, str, int, float]] = []

    def track(self, process: str, name: str) -> Track:
        """Return a track, created on first use; tracks keep their order of creation."""
        return self._tracks.setdefault((process, name), Track(process, name))

    def flow(self, origin: tuple[Track, Slice], target: tuple[Track, Slice]) -> None:
        """Draw an arrow from the start of one slice to that of a later one."""
        self._flows.append((origin, target))

    def counter(self, name: str, unit: str, when_ns: int, value: float) -> None:
        """Add a point to a counter."""
        self._counters.append((name, unit, when_ns, value))

    @property
    def slices(self) -> Iterator[Slice]:
        """All slices, track by track."""
        return (one for track in self._tracks.values() for one in track.slices)

    @property
    def counters(self) -> Iterator[tuple[str, str, int, float]]:
        """Name, unit, time and value of each counter's point."""
        return iter(self._counters)

    def write(self, path: Path, about: Mapping[str, object]) -> None:
        """Write the file; ``about`` states its origin."""
        names = dict.fromkeys(track.process for track in self._tracks.values())
        processes = {name: number for number, name in enumerate(names, start=1)}
        events: list[dict[str, Any]] = [
            {"ph": "C", "name": name, "pid": 0, "ts": when_ns / 1000, "args": {unit: value}}
            for name, unit, when_ns, value in self._counters
        ]
        numbers: dict[int, int] = {}
        for name, number in processes.items():
            events.append(_named("process_name", number, 0, name))
            events.append(_sorted("process_sort_index", number, 0, number))
        if self._counters:
            events.append(_named("process_name", 0, 0, "telemetry"))
        next_row = 1
        for track in self._tracks.values():
            numbers[id(track)] = next_row
            for lane in range(track.lay_out()):
                name = track.name if lane == 0 else f"{track.name} ({lane + 1})"
                process = processes[track.process]
                events.append(_named("thread_name", process, next_row, name))
                events.append(_sorted("thread_sort_index", process, next_row, next_row))
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
        path.write_text(text, encoding="utf-8")


def _lane_for(one: Slice, lanes: list[list[int]]) -> int:
    """Return the first lane in which a slice nests; a lane holds the ends of its open slices."""
    for number, ends in enumerate(lanes):
        while ends and ends[-1] <= one.start_ns:
            ends.pop()
        if not ends or one.end_ns <= ends[-1]:
            return number
    lanes.append([])
    return len(lanes) - 1


def _named(what: str, process: int, row: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": row, "args": {"name": name}}


def _sorted(what: str, process: int, row: int, index: int) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": row, "args": {"sort_index": index}}
