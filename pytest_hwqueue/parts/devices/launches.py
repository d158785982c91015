"""Single launches: latencies of tagged ones, who waited for whom, and the trace files of both."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_hwqueue.data.metrics.timeline import HostCall, Timeline, split_tag
from pytest_hwqueue.data.safe_files import write_text
from pytest_hwqueue.parts.devices.protocol import Event


@dataclass(frozen=True)
class TaggedLaunch:
    """Events around one tagged launch: ready (its stream reached it) and done."""

    tag: str
    stream: int
    ready: Event
    done: Event


class TagLog:
    """Events around the tagged launches of an iteration, reused from iteration to iteration.

    Events are made on the first iteration (a warm-up one), so that none is made while measuring.
    """

    def __init__(
        self, new_event: Callable[[], Event], request_name: str = "", start: Event | None = None
    ) -> None:
        """Take what makes events, and how latencies are formed of them.

        Args:
            new_event: makes an event.
            request_name: of requests' latencies; empty to leave them out.
            start: recorded at the start of an iteration. Where streams share hardware queues, an
                event before a launch passes when its queue gets to it, and dates the launch's
                readiness too late; an event behind a launch does not. With this event a launch is
                ready when the tagged one before it on its stream is done, or when the iteration
                starts, and only requests are timed where there are any, because a launch may have
                waited for another stream.

        """
        self._new_event = new_event
        self._request_name = request_name
        self.start = start
        self._launches: list[TaggedLaunch] = []
        self._next = 0
        self._fixed = False
        # Launches of an iteration, where several are logged before any is collected.
        self._repeated = 0

    def fix(self) -> None:
        """Keep the launches logged so far for good: a captured graph records their events."""
        self._fixed = True

    def rewind(self) -> None:
        """Begin an iteration: the events of the last one may be recorded again."""
        if not self._fixed:
            self._next = 0

    def next(self, tag: str, stream: int) -> TaggedLaunch:
        """Return the events for the next tagged launch."""
        if self._next < len(self._launches):
            launch = self._launches[self._next]
            if (launch.tag, launch.stream) == (tag, stream):
                self._next += 1
                return launch
            # An iteration that enqueues in another order than the last: keep the events made.
            del self._launches[self._next :]
        launch = TaggedLaunch(tag, stream, self._new_event(), self._new_event())
        self._launches.append(launch)
        self._next += 1
        return launch

    def repeat(self, times: int) -> None:
        """Make events for ``times`` iterations like the last, to be logged without rewinding."""
        once = self._launches[: self._next]
        self._launches = [
            TaggedLaunch(launch.tag, launch.stream, self._new_event(), self._new_event())
            for _ in range(times)
            for launch in once
        ]
        self._repeated = len(once)
        self._next = 0

    def collect(
        self, elapsed_ns: Callable[[Event, Event], int], into: dict[str, list[int]]
    ) -> None:
        """Append the latency of each launch and request of the iteration, in ns.

        All of them must have completed. A request runs from its first launch's ready to the last
        done of its launches.
        """
        requests: dict[tuple[int, str], list[tuple[Event, Event]]] = {}
        done: dict[int, Event] = {}
        for index, launch in enumerate(self._launches[: self._next]):
            name, request = split_tag(launch.tag)
            ready = launch.ready
            if self.start is not None:
                ready = done.get(launch.stream, self.start)
                done[launch.stream] = launch.done
            if name and not (self.start is not None and self._request_name):
                into.setdefault(name, []).append(elapsed_ns(ready, launch.done))
            if request and self._request_name:
                iteration = index // self._repeated if self._repeated else 0
                requests.setdefault((iteration, request), []).append((ready, launch.done))
        for spans in requests.values():
            began = spans[0][0]
            latency_ns = max(elapsed_ns(began, ended) for _, ended in spans)
            into.setdefault(self._request_name, []).append(latency_ns)


@dataclass(frozen=True)
class TracedLaunch:
    """One launch of a traced pass."""

    stream: int
    tag: str | None
    waits_for: tuple[int, ...]


@dataclass
class LaunchTrace:
    """The launches of one traced pass in enqueue order, and which waited for which.

    An event stands for the last launch before it on its stream, and for what that stream had been
    told to wait for since; a wait on the event is a wait for these launches.
    """

    launches: list[TracedLaunch] = field(default_factory=list)
    # One for each launch, where the device itself does not tell the host's calls.
    calls: list[HostCall] = field(default_factory=list)
    _last_on_stream: dict[int, int] = field(default_factory=dict)
    # In the order of waiting, each once: where several streams are one, it waits for itself.
    _pending_waits: dict[int, dict[int, None]] = field(default_factory=dict)
    _behind_event: dict[int, tuple[int, ...]] = field(default_factory=dict)
    # Holding the events keeps their ids unique for as long as the trace lives.
    _events: list[Event] = field(default_factory=list)

    def launched(self, stream: int, tag: str | None) -> int:
        """Note a launch; return its index."""
        index = len(self.launches)
        waits = tuple(self._pending_waits.pop(stream, ()))
        self.launches.append(TracedLaunch(stream, tag, waits))
        self._last_on_stream[stream] = index
        return index

    def last_on(self, stream: int) -> tuple[int, ...]:
        """Return the index of a stream's last launch, if there is one."""
        return (self._last_on_stream[stream],) if stream in self._last_on_stream else ()

    def has_seen(self, event: Event) -> bool:
        """Whether an event was recorded in this pass."""
        return id(event) in self._behind_event

    def called(self, thread: int | None, begin_ns: int, end_ns: int, name: str = "launch") -> None:
        """Note when the host made the last launch noted."""
        self.calls.append(HostCall(name, thread, begin_ns, end_ns, len(self.launches) - 1))

    def recorded(self, stream: int, event: Event) -> None:
        """Note that ``event`` was recorded on ``stream``."""
        waits = self._pending_waits.get(stream, ())
        self._behind_event[id(event)] = (*self.last_on(stream), *waits)
        self._events.append(event)

    def waited(self, stream: int, event: Event) -> None:
        """Note that ``stream`` waits for ``event``."""
        behind = self._behind_event.get(id(event), ())
        self._pending_waits.setdefault(stream, {}).update(dict.fromkeys(behind))


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Suspend the garbage collector during the ``with`` block."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


Events = list[dict[str, Any]]

LAUNCH = "hwq.launch "
"""Starts the name of the range around a launch; its index follows."""
NAMED_RANGES = "HWQ_NAMED_RANGES"
"""The environment variable that makes tagged launches ranges for a vendor's profiler."""
PICTURES = "HWQ_PICTURES"
"""The environment variable by which `hwq trace` asks for a file of each cell's traced pass."""
WITH_CSV = "csv"
"""Its value that asks for the events as CSV too."""
_DEVICE_RANGE = "gpu_user_annotation"


def rank_of_process() -> str | None:
    """Return the rank that a launcher such as torchrun gave this process, or None."""
    rank = os.environ.get("RANK", "")
    return rank if rank.isdecimal() else None


def trace_path(folder: Path, file_name: str) -> Path:
    """Return the path of a cell's trace; each rank has its own file.

    Args:
        folder: of the traces.
        file_name: of the cell, ending in ``.json``.

    """
    rank = rank_of_process()
    stem = file_name.removesuffix(".json")
    return folder / (file_name if rank is None else f"{stem}-rank{rank}.json")


def name_streams(events: Events, indices: Mapping[int, int]) -> None:
    """Name and order the tracks of streams by our indices.

    Args:
        events: changed in place.
        indices: of our streams, by the runtime's stream numbers (the tracks' ``tid``).

    """
    # Host threads may have the same numbers: a stream's track says in its name that it is one.
    tracks = {
        (event["pid"], event["tid"]): indices[event["tid"]]
        for event in events
        if event.get("name") == "thread_name"
        and event.get("tid") in indices
        and "stream" in event["args"].get("name", "")
    }
    for event in events:
        index = tracks.get((event.get("pid"), event.get("tid")))
        if index is None:
            continue
        if event.get("name") == "thread_name":
            event["args"]["name"] = f"stream {index}"
        elif event.get("name") == "thread_sort_index":
            event["args"]["sort_index"] = index


def name_launches(events: Events, owners: Mapping[int, int], tags: Sequence[str | None]) -> Events:
    """Return the events with each tagged launch as a range of that name, on host and stream.

    Args:
        events: of kernels, copies and our ranges; host ranges are changed in place.
        owners: index of the launch by the correlation number of its calls and kernels.
        tags: of the launches, by index.

    """
    kept = []
    spans: dict[tuple[int, int, int], tuple[float, float]] = {}
    for event in events:
        name, category = event.get("name", ""), event.get("cat")
        if name.startswith(LAUNCH) and name.removeprefix(LAUNCH).isdecimal():
            index = int(name.removeprefix(LAUNCH))
            tag = tags[index]
            if tag is not None:
                if category == _DEVICE_RANGE:
                    # CUDA's profiler repeats host ranges on streams, ROCm's does not: see below.
                    continue
                event["name"] = tag
                event["args"] = {**event.get("args", {}), "launch": index}
        elif category in ("kernel", "gpu_memcpy", "gpu_memset"):
            owner = owners.get(event["args"].get("correlation"))
            if owner is not None and tags[owner] is not None:
                key = (owner, event["pid"], event["tid"])
                end = event["ts"] + event["dur"]
                first, last = spans.get(key, (event["ts"], end))
                spans[key] = (min(first, event["ts"]), max(last, end))
        kept.append(event)
    ranges = [
        {"ph": "X", "cat": _DEVICE_RANGE, "name": tags[index], "pid": process, "tid": track,
         "ts": start, "dur": round(end - start, 3), "args": {"launch": index}}
        for (index, process, track), (start, end) in spans.items()
    ]  # fmt: skip
    # In front: of two events that start together, the first one encloses the second.
    return [*ranges, *kept]


def name_processes(events: Events, rank: str | None) -> None:
    """Prefix every process's name with the rank, if there is one."""
    if rank is None:
        return
    for event in events:
        if event.get("ph") == "M" and event.get("name") == "process_name":
            event["args"]["name"] = f"rank {rank}: {event['args'].get('name', '')}".rstrip(": ")


def write_trace(
    timeline: Timeline, path: str, *, process: str | None = None, label: str = ""
) -> None:
    """Write a timeline.

    Args:
        timeline: its kernels' times become microseconds of the trace.
        path: file to write.
        process: display name of the only process, after its rank if it has one; unnamed if None.
        label: follows each stream's name.

    """
    events: list[dict[str, Any]] = []
    rank = rank_of_process()
    if process is not None or rank is not None:
        events.append(
            {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": process or ""}}
        )
        name_processes(events, rank)
    events += [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": stream,
         "args": {"name": f"stream {stream} {label}".rstrip()}}
        for stream in range(timeline.streams)
    ]  # fmt: skip
    events += [
        {"ph": "X", "cat": "kernel", "name": kernel.tag or kernel.name, "pid": 1,
         "tid": kernel.stream, "ts": kernel.start_ns / 1000,
         "dur": (kernel.end_ns - kernel.start_ns) / 1000,
         "args": {"launch": kernel.launch, "enqueued_us": kernel.enqueued_ns / 1000}}
        for kernel in timeline.kernels
    ]  # fmt: skip
    write_text(Path(path), json.dumps({"traceEvents": events}))
