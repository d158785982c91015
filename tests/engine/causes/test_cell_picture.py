"""A cell's picture, read back: what is in it, and that its parts belong together."""

from __future__ import annotations

import csv
import json
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pytest_hwqueue.engine.causes.traced_cell import find_causes
from pytest_hwqueue.engine.causes.traced_pass import TracePlan
from pytest_hwqueue.parts.devices.host import HostDevice
from pytest_hwqueue.parts.devices.protocol import Device
from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.parts.workloads.registry import workload_class
from pytest_hwqueue.parts.workloads.workload import parameters_for

from .traced import measured

REQUESTS, STREAMS = 90, 4


@dataclass(frozen=True)
class Span:
    """A slice of the file, in ns."""

    track: str
    name: str
    start: int
    end: int
    arguments: dict[str, Any]

    def within(self, others: list[Span]) -> bool:
        return any(one.start <= self.start <= self.end <= one.end for one in others)


class Read:
    """What is in the two files of a cell's trace."""

    def __init__(self, dispatch: str, device: Device, folder: Path) -> None:
        found = workload_class("hetero_kernels")
        workload = found(parameters_for(found, "tiny", {}))
        plan = TracePlan(REQUESTS, 5_000_000_000, folder=folder, csv=True)
        self.record, failure = measured(
            device, workload, partial(find_causes, plan), streams=STREAMS, dispatch=dispatch,
            only_traced=True,
        )  # fmt: skip
        assert failure is None, self.record.reason
        (path,) = folder.glob("*.json")
        data = json.loads(path.read_text(encoding="utf-8"))
        self.about: dict[str, Any] = data["otherData"]
        by_phase: dict[str, list[dict[str, Any]]] = {}
        for event in data["traceEvents"]:
            by_phase.setdefault(event["ph"], []).append(event)
        tracks = {
            each["tid"]: each["args"]["name"]
            for each in by_phase["M"] if each["name"] == "thread_name"
        }  # fmt: skip
        self.spans: dict[str, list[Span]] = {}
        for each in by_phase["X"]:
            start, length = round(each["ts"] * 1000), round(each["dur"] * 1000)
            span = Span(tracks[each["tid"]], each["name"], start, start + length, each["args"])
            self.spans.setdefault(each["cat"], []).append(span)
        self.counted_ns = [round(each["ts"] * 1000) for each in by_phase.get("C", ())]
        ends = [{each["id"]: each for each in by_phase[phase]} for phase in "sf"]
        self.arrows = [
            [(tracks[end["tid"]], round(end["ts"] * 1000)) for end in pair]
            for pair in zip(*(each.values() for each in ends), strict=True)
        ]
        with path.with_suffix(".csv").open(encoding="utf-8", newline="") as file:
            self.rows = list(csv.DictReader(file))

    def of(self, category: str) -> list[Span]:
        return self.spans.get(category, [])


@pytest.fixture(scope="module", params=["cpu", "graph"])
def read(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Read:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "cpu":
        return Read("eager", HostDevice(), folder)
    return Read("graph", SimulatedDevice("h200"), folder)


def test_all_there_is_is_on_a_track_of_its_own(read: Read) -> None:
    causes = read.record.causes
    assert causes is not None
    assert (read.about["cell"], read.about["level"]) == (read.record.cell_id, causes.level)
    requests = read.of("request")
    assert [one.name for one in requests] == [f"request {number}" for number in range(REQUESTS)]
    assert {one.track for one in requests} == {"requests"}
    assert {one.track for one in read.of("kernel")} >= {f"stream {n}" for n in range(STREAMS)}
    virtual = read.record.cell.device.startswith("sim")
    assert read.about["clock"] == ("virtual" if virtual else "CLOCK_MONOTONIC")
    # Of a simulated device its profile's clock.
    assert read.counted_ns
    reasons = {one.name for one in read.of("switch")}
    assert reasons <= {"preempted", "stopped", "waited", "off already"}
    assert ("waited" in reasons) == (causes.level == "perf")
    told = [one.arguments["above"] for one in requests if "cause" in one.arguments]
    assert told == ["p95"] * (causes.tails["p95"].requests if causes.tails else 0)


def test_all_clocks_have_one_base(read: Read) -> None:
    requests, lead_in = read.of("request"), read.of("lead-in")
    for one in (*read.of("call"), *read.of("kernel"), *read.of("wait")):
        number = one.arguments.get("request")
        assert one.within(lead_in if number is None else [requests[number]])
        assert one.arguments.get("lead_in", False) == (number is None)
    assert len(read.of("wait")) == REQUESTS
    # What leads in is drawn and is no request.
    assert {one.arguments.get("lead_in") for one in read.of("call")} == {True, None}
    assert not any(a.start < b.end and b.start < a.end for a in lead_in for b in requests)
    begin, end = requests[0].start, requests[-1].end
    for one in (*read.of("switch"), *read.of("interrupt")):
        assert one.start < end
        assert one.end > begin
    # Read before the first request, and after the last.
    assert min(read.counted_ns) <= begin < end <= max(read.counted_ns)
    assert max(read.counted_ns) - min(read.counted_ns) < 4 * (end - begin) + 60_000_000_000


def test_a_kernel_names_the_launch_and_the_call_that_started_it(read: Read) -> None:
    calls = {one.arguments["call"]: one for one in read.of("call")}
    # Here each launch of ours is one call.
    assert len({one.arguments["launch"] for one in calls.values()}) == len(read.of("call"))
    started, arrows = Counter[int](), []
    for kernel in read.of("kernel"):
        call = calls[kernel.arguments["call"]]
        assert kernel.start >= call.start
        assert all(
            kernel.arguments.get(key) == call.arguments.get(key) for key in ("request", "launch")
        )
        started[kernel.arguments["call"]] += 1
        number, many = started[kernel.arguments["call"]], call.arguments["kernels"]
        told = f"{number} of {many} of one {call.name}" if many > 1 else None
        assert kernel.arguments.get("started_by") == told
        arrows.append([(call.track, call.start), (kernel.track, kernel.start)])
    assert started == {number: one.arguments["kernels"] for number, one in calls.items()}
    graph = read.record.cell.dispatch == "graph"
    assert {one.name for one in calls.values()} == {"graph launch" if graph else "launch"}
    assert (max(started.values()) > 1) == graph
    assert sorted(read.arrows) == sorted(arrows)


def test_the_same_events_are_in_the_csv(read: Read) -> None:
    assert {row["clock"] for row in read.rows} == {read.about["clock"]}
    kinds = Counter(row["event_type"] for row in read.rows)
    for event, category in (
        ("request", "request"), ("leadIn", "lead-in"), ("kernel", "kernel"), ("syncExit", "wait"),
        ("schedRunnable", "runnable"),
    ):  # fmt: skip
        assert kinds[event] == len(read.of(category))
    assert kinds["launch"] + kinds["graph launch"] == len(read.of("call"))
    assert kinds["hardirqExit"] + kinds["softirqExit"] == len(read.of("interrupt"))
    assert kinds["counter"] == len(read.counted_ns)
