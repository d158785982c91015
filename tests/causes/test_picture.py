"""A cell's picture, read back by the rules of its format: Trace Event Format, Google, 2016."""

from __future__ import annotations

import csv
import json
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.causes.traced_cell import find_causes
from pytest_hwqueue.causes.traced_pass import TracePlan
from pytest_hwqueue.devices.host import HostDevice
from pytest_hwqueue.devices.protocol import Device
from pytest_hwqueue.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.harness.cell import CellRequest
from pytest_hwqueue.harness.closed_loop import LoopPlan
from pytest_hwqueue.harness.runner import CellRunner
from pytest_hwqueue.records.cell import Cell, RunRecord
from pytest_hwqueue.records.noise import Provenance
from pytest_hwqueue.schedulers.syntax import open_scheduler
from pytest_hwqueue.tracing.pictures import COLUMNS, Picture
from pytest_hwqueue.workloads.registry import workload_class
from pytest_hwqueue.workloads.workload import parameters_for

REQUESTS = 90
STREAMS = 4
JOINED = ("request", "launch", "call", "kernels")
Json = dict[str, Any]
Track = tuple[int, int]


@dataclass(frozen=True)
class Span:
    """A slice of the file, in ns."""

    track: Track
    name: str
    category: str
    start: int
    end: int
    arguments: Json


class Trace:
    """What a strict reader finds in a file; it refuses whatever the format does not allow."""

    def __init__(self, path: Path) -> None:
        data = json.loads(path.read_text(encoding="utf-8"))
        assert set(data) == {"traceEvents", "displayTimeUnit", "otherData"}
        assert data["displayTimeUnit"] in ("ms", "ns")
        self.about = data["otherData"]
        self.spans: list[Span] = []
        self.flows: dict[int, dict[str, Json]] = {}
        self.counters: list[Json] = []
        self.processes: dict[int, str] = {}
        self.tracks: dict[Track, str] = {}
        for event in data["traceEvents"]:
            getattr(self, f"_read_{event['ph']}")(event)
        for span in self.spans:
            assert span.track in self.tracks
            assert span.track[0] in self.processes
        assert len(set(self.processes.values())) == len(self.processes)

    def of(self, category: str) -> list[Span]:
        return [span for span in self.spans if span.category == category]

    def _read_X(self, event: Json) -> None:
        assert set(event) == {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"}
        start = _ns(event["ts"])
        end = start + _ns(event["dur"])
        assert isinstance(event["name"], str)
        assert event["name"]
        track = (event["pid"], event["tid"])
        self.spans.append(Span(track, event["name"], event["cat"], start, end, event["args"]))

    def _read_M(self, event: Json) -> None:
        assert set(event) == {"ph", "name", "pid", "tid", "args"}
        if event["name"] == "process_name":
            assert event["pid"] not in self.processes
            self.processes[event["pid"]] = event["args"]["name"]
        elif event["name"] == "thread_name":
            track = (event["pid"], event["tid"])
            assert track not in self.tracks
            self.tracks[track] = event["args"]["name"]
        else:
            assert event["name"] in ("process_sort_index", "thread_sort_index")
            assert isinstance(event["args"]["sort_index"], int)

    def _read_C(self, event: Json) -> None:
        assert set(event) == {"ph", "name", "pid", "ts", "args"}
        _ns(event["ts"])
        assert event["args"]
        assert all(isinstance(value, (int, float)) for value in event["args"].values())
        self.counters.append(event)

    def _read_s(self, event: Json) -> None:
        assert set(event) == {"ph", "name", "cat", "id", "pid", "tid", "ts"}
        assert event["ph"] not in self.flows.setdefault(event["id"], {})
        self.flows[event["id"]][event["ph"]] = event

    def _read_f(self, event: Json) -> None:
        # Bound to the slice that encloses it, and not to the next one.
        assert event.pop("bp") == "e"
        self._read_s(event)


def _ns(microseconds: object) -> int:
    assert isinstance(microseconds, (int, float))
    assert not isinstance(microseconds, bool)
    assert microseconds >= 0
    return round(microseconds * 1000)


def nests(spans: list[Span]) -> bool:
    """Whether slices of one track are disjoint or one inside the other."""
    ends: list[int] = []
    for span in sorted(spans, key=lambda one: (one.start, -one.end)):
        while ends and ends[-1] <= span.start:
            ends.pop()
        if ends and span.end > ends[-1]:
            return False
        ends.append(span.end)
    return True


def record_of(device: Device, folder: Path, dispatch: str) -> RunRecord:
    """Measure a cell as `hwq trace` does."""
    found = workload_class("hetero_kernels")
    values = parameters_for(found, "tiny", {})
    cell = Cell(
        name=found.name, device=device.label, streams=STREAMS, scheduler="native",
        dispatch=dispatch, sync_mode="per_iteration", size="tiny", parameters={},
    )  # fmt: skip
    plan = TracePlan(REQUESTS, 5_000_000_000, folder=folder, csv=True)
    request = CellRequest(
        cell=cell, workload=found(values), make_workload=None,  # type: ignore[call-arg]
        urgency=[0] * STREAMS, nodeid="file.py::test", family=None, mark=None,
        plan=LoopPlan(1, 1, 2_000_000_000, "per_iteration"), seed=0, command="hwq",
        provenance=Provenance(), trace_folder=None,
        find_causes=partial(find_causes, plan), only_traced=True,
    )  # fmt: skip
    record, failure = CellRunner(device, open_scheduler("native"), lambda *_: None).run(request)
    assert failure is None, record.reason
    return record


@pytest.fixture(scope="module", params=["cpu", "sim", "graph"])
def drawn(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[RunRecord, Trace, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    device: Device = HostDevice() if request.param == "cpu" else SimulatedDevice("h200")
    dispatch = "graph" if request.param == "graph" else "eager"
    record = record_of(device, folder, dispatch)
    (path,) = folder.glob("*.json")
    return record, Trace(path), path.with_suffix(".csv")


def test_all_there_is_is_on_a_track_of_its_own(drawn: tuple[RunRecord, Trace, Path]) -> None:
    record, trace, _ = drawn
    assert trace.about["cell"] == record.cell_id
    assert record.causes is not None
    assert trace.about["level"] == record.causes.level
    requests = trace.of("request")
    assert [one.name for one in requests] == [f"request {number}" for number in range(REQUESTS)]
    assert {trace.tracks[one.track] for one in requests} == {"requests"}
    streams = {trace.tracks[one.track] for one in trace.of("kernel")}
    assert {f"stream {index}" for index in range(STREAMS)} <= streams
    assert {trace.processes[one.track[0]] for one in trace.of("call")} == {"launching threads"}
    if trace.about["clock"] == "virtual":
        assert not trace.of("switch")
    else:
        assert trace.counters
    if record.causes.interrupts is not None:
        reasons = {one.name for one in trace.of("switch")}
        assert reasons <= {"preempted", "stopped", "waited", "off already"}
        assert {one.name for one in trace.of("runnable")} <= {"could run, had no CPU"}
        assert "waited" in reasons


def test_slices_of_a_track_nest(drawn: tuple[RunRecord, Trace, Path]) -> None:
    _, trace, _ = drawn
    for track in trace.tracks:
        assert nests([span for span in trace.spans if span.track == track]), trace.tracks[track]


def test_flows_go_from_a_launch_to_its_kernel(drawn: tuple[RunRecord, Trace, Path]) -> None:
    _, trace, _ = drawn
    kernels = {(one.track, one.start): one for one in trace.of("kernel")}
    calls = {(one.track, one.start): one for one in trace.of("call")}
    assert len(trace.flows) == len(trace.of("kernel"))
    for ends in trace.flows.values():
        assert set(ends) == {"s", "f"}
        origin, target = ends["s"], ends["f"]
        assert (origin["name"], origin["cat"]) == (target["name"], target["cat"])
        call = calls[(origin["pid"], origin["tid"]), _ns(origin["ts"])]
        kernel = kernels[(target["pid"], target["tid"]), _ns(target["ts"])]
        assert kernel.start >= call.start
        assert kernel.arguments.get("request") == call.arguments.get("request")


def test_all_clocks_have_one_base(drawn: tuple[RunRecord, Trace, Path]) -> None:
    _, trace, _ = drawn
    requests = {one.arguments["request"]: one for one in trace.of("request")}
    begin, end = requests[0].start, requests[REQUESTS - 1].end
    inside = Counter[str]()
    for one in (*trace.of("call"), *trace.of("kernel"), *trace.of("wait")):
        if "request" in one.arguments:
            request = requests[one.arguments["request"]]
            assert request.start <= one.start <= one.end <= request.end
            inside[one.category] += 1
    assert inside["wait"] == REQUESTS
    assert inside["call"] >= REQUESTS
    assert inside["kernel"] >= STREAMS * REQUESTS
    for one in (*trace.of("switch"), *trace.of("interrupt")):
        assert one.start < end
        assert one.end > begin
    # Read before the first request, and after the last.
    times = [_ns(event["ts"]) for event in trace.counters]
    if times:
        assert min(times) <= begin
        assert max(times) >= end
        assert max(times) - min(times) < 4 * (end - begin) + 60_000_000_000


def test_requests_of_the_tail_say_their_cause(drawn: tuple[RunRecord, Trace, Path]) -> None:
    record, trace, _ = drawn
    assert record.causes is not None
    told = [one for one in trace.of("request") if "cause" in one.arguments]
    tails = record.causes.tails
    assert len(told) == (tails["p95"].requests if tails else 0)
    assert all(one.arguments["above"] == "p95" for one in told)


def test_the_same_events_are_in_the_csv(drawn: tuple[RunRecord, Trace, Path]) -> None:
    _, trace, path = drawn
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert {row["clock"] for row in rows} == {trace.about["clock"]}
    times = [int(row["timestamp_ns"]) for row in rows]
    assert times == sorted(times)

    def slices(*categories: str) -> Counter[tuple[object, ...]]:
        return Counter(
            (one.name, one.start, one.end - one.start, *map(one.arguments.get, JOINED))
            for category in categories
            for one in trace.of(category)
        )

    def written(*events: str) -> Counter[tuple[object, ...]]:
        return Counter(
            (
                row["name"], int(row["timestamp_ns"]), int(row["duration_ns"]),
                *(int(row[key]) if row[key] else None for key in JOINED),
            )
            for row in rows if row["event_type"] in events
        )  # fmt: skip

    assert written("request") == slices("request")
    assert written("leadIn") == slices("lead-in")
    assert written("kernel") == slices("kernel")
    assert written("launch", "graph launch") == slices("call")
    assert written("schedRunnable") == slices("runnable")
    times_of = {
        event: Counter(int(row["timestamp_ns"]) for row in rows if row["event_type"] == event)
        for event in ("syncEnter", "syncExit")
    }
    assert times_of["syncEnter"] == Counter(one.start for one in trace.of("wait"))
    assert times_of["syncExit"] == Counter(one.end for one in trace.of("wait"))
    ends = sum(row["event_type"] in ("hardirqExit", "softirqExit") for row in rows)
    assert ends == len(trace.of("interrupt"))
    assert sum(row["event_type"] == "counter" for row in rows) == len(trace.counters)
    for row in rows:
        if row["event_type"] == "schedSwitch":
            # Of the same clock as all others, not of another one's zero.
            assert row["timestamp_ns"] in (
                row["last_offcpu_ns"], row["last_oncpu_ns"],
            ) or not row["cpu"]  # fmt: skip


def test_a_kernel_names_the_launch_and_the_call_that_started_it(
    drawn: tuple[RunRecord, Trace, Path],
) -> None:
    record, trace, _ = drawn
    calls = {one.arguments["call"]: one for one in trace.of("call")}
    assert len(calls) == len(trace.of("call"))
    launches = [one.arguments["launch"] for one in calls.values()]
    # Here each launch of ours is one call.
    assert len(set(launches)) == len(launches)
    started = Counter[int]()
    for kernel in trace.of("kernel"):
        call = calls[kernel.arguments["call"]]
        assert kernel.arguments["launch"] == call.arguments["launch"]
        started[kernel.arguments["call"]] += 1
        many = call.arguments["kernels"] > 1
        assert ("started_by" in kernel.arguments) == many
        if many:
            number = started[kernel.arguments["call"]]
            expected = f"{number} of {call.arguments['kernels']} of one {call.name}"
            assert kernel.arguments["started_by"] == expected
    assert started == {number: one.arguments["kernels"] for number, one in calls.items()}
    graph = record.cell.dispatch == "graph"
    assert {one.name for one in calls.values()} == {"graph launch" if graph else "launch"}
    if graph:
        assert max(started.values()) > 1


def test_what_leads_in_is_drawn_and_is_no_request(drawn: tuple[RunRecord, Trace, Path]) -> None:
    _, trace, _ = drawn
    lead_in = trace.of("lead-in")
    assert lead_in
    outside = [
        one for one in (*trace.of("call"), *trace.of("kernel")) if "request" not in one.arguments
    ]
    assert outside
    for one in outside:
        assert one.arguments["lead_in"] is True
        assert any(each.start <= one.start <= one.end <= each.end for each in lead_in)
    requests = trace.of("request")
    assert all(a.end <= b.start or b.end <= a.start for a in lead_in for b in requests)


TIMES = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=30)


@given(TIMES)
def test_slices_that_only_overlap_go_to_tracks_below(times: list[tuple[int, int]]) -> None:
    picture = Picture("virtual")
    track = picture.track("process", "row")
    for start, length in times:
        track.add("slice", start, start + length, "any")
    lanes = track.lay_out()
    for lane in range(lanes):
        spans = [
            Span((0, lane), "slice", "any", one.start_ns, one.end_ns, {})
            for one in track.slices
            if one.lane == lane
        ]
        assert spans
        assert nests(spans)


def test_a_slice_does_not_end_before_it_starts() -> None:
    with pytest.raises(ValueError, match="before it starts"):
        Picture("virtual").track("process", "row").add("slice", 2, 1, "any")
