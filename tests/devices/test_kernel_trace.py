"""Kernel traces: one recorded on an H200, and synthetic ones whose truth is known.

data/kernel_trace_h200.json was written by torch.profiler on one H200; its "about" says how.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hwqueue.devices import kernel_trace
from pytest_hwqueue.devices.accelerator import AcceleratorPool
from pytest_hwqueue.devices.launches import LaunchTrace
from pytest_hwqueue.devices.protocol import Event
from pytest_hwqueue.errors import DeviceError
from pytest_hwqueue.metrics.timeline import Kernel, KernelShape
from pytest_hwqueue.tracing.perf_events import ClockOffset, ClockPair

RECORDED = Path(__file__).parent / "data" / "kernel_trace_h200.json"
Json = dict[str, Any]


class Mark:
    """An event that only stands for a point in a trace."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None


@pytest.fixture
def recorded() -> Json:
    trace: Json = json.loads(RECORDED.read_text(encoding="utf-8"))
    return trace


@pytest.fixture
def launches() -> LaunchTrace:
    """The launches of the recorded pass."""
    trace = LaunchTrace()
    event: Event = Mark()
    for number in range(6):
        trace.launched(number % 3, "add")
        if number == 3:
            trace.recorded(0, event)
    trace.waited(1, event)
    trace.launched(1, None)
    return trace


def spin_kernel(trace: Json) -> Json:
    (spin,) = [event for event in trace["traceEvents"] if "spin_kernel" in event["name"]]
    return cast(Json, spin)


def test_recorded_gate_opens_when_its_kernel_ends(recorded: Json, launches: LaunchTrace) -> None:
    timeline = kernel_trace.read(recorded, launches, 3)
    spin = spin_kernel(recorded)
    assert timeline.released_ns == round(spin["ts"] * 1000) + round(spin["dur"] * 1000)
    assert all("spin_kernel" not in kernel.name for kernel in timeline.kernels)


def test_recorded_kernels_are_those_launched(recorded: Json, launches: LaunchTrace) -> None:
    timeline = kernel_trace.read(recorded, launches, 3)
    kernels = sorted(timeline.kernels, key=lambda kernel: kernel.launch)
    assert timeline.streams == 3
    assert [(k.launch, k.stream, k.tag, k.waits_for) for k in kernels] == [
        *((number, number % 3, "add", ()) for number in range(6)),
        (6, 1, None, (3,)),
    ]
    assert [("_add<float>" in k.name, "MulFunctor" in k.name) for k in kernels] == [
        *[(True, False)] * 6,
        (False, True),
    ]


def test_recorded_times_are_those_of_held_work(recorded: Json, launches: LaunchTrace) -> None:
    timeline = kernel_trace.read(recorded, launches, 3)
    released_ns = timeline.released_ns
    assert released_ns is not None
    for kernel in timeline.kernels:
        assert kernel.enqueued_ns < released_ns < kernel.start_ns < kernel.end_ns
    starts = [kernel.start_ns for kernel in timeline.kernels]
    assert starts == sorted(starts)
    by_launch = {kernel.launch: kernel for kernel in timeline.kernels}
    enqueued = [by_launch[index].enqueued_ns for index in range(7)]
    assert enqueued == sorted(enqueued)
    for first, second in [(0, 3), (1, 4), (2, 5), (4, 6), (3, 6)]:  # stream order, and the wait
        assert by_launch[first].end_ns <= by_launch[second].start_ns


def test_recorded_kernels_of_a_librarys_own_stream_count_for_the_one_that_launched_them(
    recorded: Json, launches: LaunchTrace
) -> None:
    assert kernel_trace.read(recorded, launches, 3).elsewhere == 0
    before = [kernel.stream for kernel in kernel_trace.read(recorded, launches, 3).kernels]
    moved = [
        event
        for event in recorded["traceEvents"]
        if event.get("cat") == "kernel" and "MulFunctor" in event["name"]
    ]
    for event in moved:
        event["args"]["stream"] = 99
    timeline = kernel_trace.read(recorded, launches, 3)
    assert timeline.elsewhere == len(moved) == 1
    assert [kernel.stream for kernel in timeline.kernels] == before


def replay_first_of_ours(trace: Json, *, context: int) -> None:
    """Turn the launches of stream 13 after its marker into replays, as an H200 reported them.

    Each stream has a context; the replayed kernels are on a stream that nobody marked, in
    ``context``.
    """
    replayed = set()
    for event in trace["traceEvents"]:
        arguments = event.get("args", {})
        if event.get("cat") != "kernel" or arguments["stream"] not in (13, 14, 15):
            continue
        stream = arguments["stream"]
        arguments["context"] = stream
        if stream == 13 and arguments["correlation"] != 7:  # 7 is the marker
            arguments.update(context=context, stream=99)
            replayed.add(arguments["correlation"])
    for event in trace["traceEvents"]:
        if event.get("name") == "cudaLaunchKernel" and event["args"]["correlation"] in replayed:
            event["name"] = "cudaGraphLaunch"


def test_replayed_kernels_of_a_green_context_belong_to_the_stream_that_replays(
    recorded: Json, launches: LaunchTrace
) -> None:
    before = [kernel.stream for kernel in kernel_trace.read(recorded, launches, 3).kernels]
    replay_first_of_ours(recorded, context=13)
    timeline = kernel_trace.read(recorded, launches, 3, in_green_contexts={0})
    assert (timeline.elsewhere, [kernel.stream for kernel in timeline.kernels]) == (0, before)
    assert kernel_trace.read(recorded, launches, 3).elsewhere == 2


def test_replayed_kernels_in_another_context_are_not_ours(
    recorded: Json, launches: LaunchTrace
) -> None:
    replay_first_of_ours(recorded, context=14)
    assert kernel_trace.read(recorded, launches, 3, in_green_contexts={0}).elsewhere == 2


def test_streams_of_several_contexts_may_have_one_number(
    recorded: Json, launches: LaunchTrace
) -> None:
    before = kernel_trace.read(recorded, launches, 3)
    for event in recorded["traceEvents"]:
        if "stream" in event.get("args", {}):
            event["args"].update(context=event["args"]["stream"], stream=7)
    assert kernel_trace.read(recorded, launches, 3) == before


def test_stamps_of_the_real_clock_become_those_of_the_hosts(
    recorded: Json, launches: LaunchTrace
) -> None:
    plain = kernel_trace.read(recorded, launches, 3)
    assert plain.clocks is None
    recorded["baseTimeNanoseconds"] = 1_000_000
    offset_ns = 400_000
    first_ns = min(call.begin_ns for call in plain.calls) + 1_000_000 - offset_ns
    before = ClockOffset(first_ns - 1, offset_ns, 50)
    # Somebody slewed the clock: over this time it gained a microsecond.
    after = ClockOffset(first_ns + 10_000_000, offset_ns + 1000, 60)
    moved = kernel_trace.read(recorded, launches, 3, ClockPair(before, after))
    assert moved.clocks == ClockPair(before, after)
    for was, now in zip(plain.kernels, moved.kernels, strict=True):
        assert now.end_ns - now.start_ns == was.end_ns - was.start_ns
        for name in ("enqueued_ns", "start_ns"):
            shift_ns = getattr(now, name) - getattr(was, name)
            assert 600_000 - 1000 <= shift_ns <= 600_000
    shifts = [now.start_ns - was.start_ns
              for was, now in zip(plain.kernels, moved.kernels, strict=True)]  # fmt: skip
    assert sorted(shifts, reverse=True) == shifts


def test_recorded_calls_are_those_that_enqueued(recorded: Json, launches: LaunchTrace) -> None:
    recorded["traceEvents"].append(
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaMalloc", "pid": 1, "tid": 9, "ts": 1.5,
         "dur": 2.0, "args": {"correlation": 7777}}
    )  # fmt: skip
    timeline = kernel_trace.read(recorded, launches, 3)
    ours = [call for call in timeline.calls if call.launch is not None]
    assert [call.launch for call in sorted(ours, key=lambda call: call.begin_ns)] == [*range(7)]
    assert {(call.name, call.thread) for call in ours} == {("cudaLaunchKernel", 1)}
    names = {call.name for call in timeline.calls if call.launch is None}
    assert names == {"cudaLaunchKernel", "cudaMalloc"}
    (malloc,) = [call for call in timeline.calls if call.name == "cudaMalloc"]
    assert (malloc.thread, malloc.begin_ns, malloc.end_ns) == (9, 1500, 3500)
    assert {kernel.shape for kernel in timeline.kernels} == {KernelShape((1, 1, 1), (128, 1, 1))}


def test_recorded_trace_names_no_machine() -> None:
    text = RECORDED.read_text(encoding="utf-8")
    for word in ("traceName", "trace_id", "host", "/root", "/home", "/tmp", "python3"):
        assert word not in text


@pytest.fixture
def export(
    recorded: Json, launches: LaunchTrace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[], Json]:
    """Exports the recorded pass, and reads the file back."""
    path = tmp_path / "trace.json"

    def run(pool: object, enqueue: object, hold_ns: object, to: str) -> LaunchTrace:
        Path(to).write_text(json.dumps(recorded), encoding="utf-8")
        return launches

    def export() -> Json:
        kernel_trace.export(cast(AcceleratorPool, None), lambda: None, str(path))
        found: Json = json.loads(path.read_text(encoding="utf-8"))
        return found

    monkeypatch.setattr(kernel_trace, "_run", run)
    monkeypatch.delenv("RANK", raising=False)
    return export


def test_export_names_the_tracks_by_our_streams(recorded: Json, export: Callable[[], Json]) -> None:
    exported = export()
    names = {
        event["tid"]: event["args"]["name"]
        for event in exported["traceEvents"]
        if event["ph"] == "M"
    }
    ours = {
        event["tid"]
        for event in recorded["traceEvents"]
        if event.get("cat") == "kernel" and "spin_kernel" not in event["name"]
    }
    assert sorted(names[tid] for tid in ours) == ["stream 0", "stream 1", "stream 2"]
    assert names[spin_kernel(recorded)["tid"]].strip() == "stream 7"


def test_export_shows_tagged_launches_as_ranges(recorded: Json, export: Callable[[], Json]) -> None:
    # What CUDA's profiler adds by itself: a copy of a host range on the stream's track.
    copy = {"ph": "X", "cat": "gpu_user_annotation", "name": "hwq.launch 0", "pid": 0, "tid": 13,
            "ts": 0.0, "dur": 1.0, "args": {}}  # fmt: skip
    recorded["traceEvents"].append(copy)

    events = export()["traceEvents"]

    kernels = [event for event in events if event.get("cat") == "kernel"]
    assert kernels == [event for event in recorded["traceEvents"] if event.get("cat") == "kernel"]
    on_streams = [event for event in events if event.get("cat") == "gpu_user_annotation"]
    assert [(event["name"], event["args"]["launch"]) for event in on_streams] == [
        ("add", launch) for launch in range(6)
    ]
    for event in on_streams:
        inside = [
            kernel
            for kernel in kernels
            if kernel["tid"] == event["tid"]
            and kernel["ts"] == event["ts"]
            and kernel["dur"] == pytest.approx(event["dur"], abs=0.001)
        ]
        assert len(inside) == 1
        # Perfetto nests events that start together in the order of the file.
        assert events.index(event) < events.index(inside[0])
    hosts = [event for event in events if event.get("cat") == "user_annotation"]
    names = [event["name"] for event in hosts if not event["name"].startswith(("hwq.m", "hwq.g"))]
    assert names == ["add"] * 6 + ["hwq.launch 6"]


def test_export_of_a_rank_says_which(
    recorded: Json, export: Callable[[], Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded["traceEvents"] += [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
        {"ph": "M", "name": "process_labels", "pid": 0, "args": {"labels": "GPU 0"}},
    ]

    def names() -> list[str]:
        events = export()["traceEvents"]
        return [event["args"]["name"] for event in events if event["name"] == "process_name"]

    assert names() == ["python", "python"]
    monkeypatch.setenv("RANK", "3")
    assert names() == ["rank 3: python", "rank 3: python"]


@dataclass(frozen=True)
class Launch:
    """One launch of a synthetic trace: its stream, and start and length of each of its kernels."""

    stream: int
    kernels: tuple[tuple[int, int], ...]
    category: str
    waits: bool


KERNEL_TIMES = st.tuples(st.integers(0, 10**9), st.integers(0, 10**6))
LAUNCHES = st.lists(
    st.builds(
        Launch,
        stream=st.integers(0, 3),
        kernels=st.lists(KERNEL_TIMES, min_size=1, max_size=4).map(tuple),
        category=st.sampled_from(["kernel", "gpu_memcpy", "gpu_memset"]),
        waits=st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


def complete(category: str, name: str, start_ns: int, ns: int, **arguments: object) -> Json:
    return {
        "ph": "X", "cat": category, "name": name, "ts": start_ns / 1000, "dur": ns / 1000,
        "args": arguments,
    }  # fmt: skip


class Synthetic:
    """A trace written as Kineto writes it, and the kernels that are to be read from it."""

    def __init__(self) -> None:
        self.events: list[Json] = []
        self.launches = LaunchTrace()
        self.kernels: list[Kernel] = []
        self.now_ns = 0
        self._correlation = 100

    def call(self, range_name: str | None, category: str = "cuda_runtime") -> tuple[int, int]:
        """Write a launching call inside a range, or outside of all; (correlation, end in ns)."""
        self._correlation += 1
        start_ns, end_ns = self.now_ns + 500, self.now_ns + 1500
        self.events.append(
            complete(category, "launch", start_ns, 1000, correlation=self._correlation)
        )
        if range_name is not None:
            self.events.append(complete("user_annotation", range_name, self.now_ns, 2000))
        self.now_ns += 3000
        return self._correlation, end_ns

    def kernel(
        self, correlation: int, stream: int, start_ns: int, ns: int, category: str = "kernel"
    ) -> None:
        self.events.append(
            complete(category, "k", start_ns, ns, correlation=correlation, stream=stream)
        )

    def marker(self, stream: int) -> None:
        correlation, _ = self.call(f"hwq.marker {stream}")
        self.kernel(correlation, 20 + stream, self.now_ns, 10)

    def launch(self, launch: Launch, waited: int | None) -> None:
        if waited is not None:
            event: Event = Mark()
            self.launches.recorded(self.launches.launches[waited].stream, event)
            self.launches.waited(launch.stream, event)
        index = self.launches.launched(launch.stream, f"t{launch.stream}")
        correlation, enqueued_ns = self.call(kernel_trace.launch_name(index), "cuda_driver")
        for start_ns, ns in launch.kernels:
            self.kernel(correlation, 20 + launch.stream, start_ns, ns, launch.category)
            self.kernels.append(
                Kernel(
                    stream=launch.stream,
                    launch=index,
                    name="k",
                    tag=f"t{launch.stream}",
                    enqueued_ns=enqueued_ns,
                    start_ns=start_ns,
                    end_ns=start_ns + ns,
                    waits_for=self.launches.launches[index].waits_for,
                )
            )


def in_order(kernels: list[Kernel]) -> list[Kernel]:
    return sorted(kernels, key=lambda k: (k.start_ns, k.launch, k.end_ns))


@settings(deadline=None)
@given(LAUNCHES, st.one_of(st.none(), st.integers(1, 10**7)), st.randoms(use_true_random=False))
def test_every_kernel_is_its_launchs(
    wanted: list[Launch], gate_ns: int | None, random: Any
) -> None:
    trace = Synthetic()
    for stream in range(4):
        trace.marker(stream)
    if gate_ns is not None:
        correlation, _ = trace.call("hwq.gate")
        trace.kernel(correlation, 7, 1000, gate_ns)
    for number, launch in enumerate(wanted):
        # What nobody of ours launched: a call outside of all ranges, and a kernel of no call.
        stray, _ = trace.call(None)
        trace.kernel(stray, 20, 5, 5)
        trace.kernel(10_000 + number, 20, 5, 5)
        trace.launch(launch, number - 1 if launch.waits and number else None)
    trace.events.append({"ph": "M", "name": "thread_name", "tid": 20, "args": {"name": "x"}})
    random.shuffle(trace.events)
    timeline = kernel_trace.read({"traceEvents": trace.events}, trace.launches, 4)
    without_calls = [replace(kernel, call=None) for kernel in timeline.kernels]
    assert in_order(without_calls) == in_order(trace.kernels)
    for kernel in timeline.kernels:
        assert kernel.call is not None
        call = timeline.calls[kernel.call]
        assert (call.launch, call.end_ns) == (kernel.launch, kernel.enqueued_ns)
    assert timeline.released_ns == (None if gate_ns is None else 1000 + gate_ns)


def test_kernels_of_one_replayed_graph_are_one_launch() -> None:
    trace = Synthetic()
    trace.launch(Launch(0, ((100, 5), (200, 5), (300, 5)), "kernel", False), None)
    kernels = kernel_trace.read({"traceEvents": trace.events}, trace.launches, 1).kernels
    assert [(kernel.launch, kernel.start_ns) for kernel in kernels] == [
        (0, 100),
        (0, 200),
        (0, 300),
    ]


def test_stream_without_a_marker_is_the_launchs_own() -> None:
    trace = Synthetic()
    trace.launch(Launch(2, ((100, 5),), "kernel", False), None)
    kernels = kernel_trace.read({"traceEvents": trace.events}, trace.launches, 3).kernels
    assert [kernel.stream for kernel in kernels] == [2]


def test_kernel_runs_where_the_device_ran_it() -> None:
    trace = Synthetic()
    trace.marker(0)
    trace.marker(1)
    trace.launches.launched(0, None)
    correlation, _ = trace.call(kernel_trace.launch_name(0))
    trace.kernel(correlation, 21, 100, 5)
    kernels = kernel_trace.read({"traceEvents": trace.events}, trace.launches, 2).kernels
    assert [kernel.stream for kernel in kernels] == [1]


def test_trace_without_kernels_of_ours_is_refused() -> None:
    only_markers = Synthetic()
    only_markers.marker(0)
    stray = Synthetic()
    stray.kernel(stray.call(None)[0], 20, 5, 5)
    no_device_work = Synthetic()
    no_device_work.call(kernel_trace.launch_name(0))
    for events in ([], only_markers.events, stray.events, no_device_work.events):
        with pytest.raises(DeviceError, match="saw no kernels"):
            kernel_trace.read({"traceEvents": events}, LaunchTrace(), 1)


def test_torchs_advice_about_a_second_cycle_is_no_error_of_the_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Advising:
        def __init__(self, **options: object) -> None:
            self.options = options

        def start(self) -> None:
            warnings.warn("Warning: Profiler clears events at the end", stacklevel=1)

    monkeypatch.setattr("torch.profiler.profile", Advising)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        started = kernel_trace.start_profiler(experimental_config="all threads")
        with pytest.raises(UserWarning, match="another"):
            warnings.warn("another", stacklevel=1)
    assert cast(Advising, started).options == {
        "activities": kernel_trace.ACTIVITIES, "experimental_config": "all threads",
    }  # fmt: skip
