"""Kernel traces (one recorded on an H200, synthetic ones whose truth is known) and their files.

data/kernel_trace_h200.json was written by torch.profiler on one H200; its "about" says how.
"""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hwqueue.data.errors import DeviceError
from pytest_hwqueue.data.metrics.timeline import HostCall, Kernel, KernelShape, Timeline
from pytest_hwqueue.parts.devices import kernel_trace
from pytest_hwqueue.parts.devices.accelerator import AcceleratorPool
from pytest_hwqueue.parts.devices.clocks import ClockOffset, ClockPair
from pytest_hwqueue.parts.devices.launches import (
    LaunchTrace,
    rank_of_process,
    trace_path,
    write_trace,
)
from tests.stored_texts import assert_as_stored

from .marks import Numbered, complete

RECORDED = Path(__file__).parent / "data" / "kernel_trace_h200.json"
Json = dict[str, Any]


@pytest.fixture
def recorded() -> Json:
    trace: Json = json.loads(RECORDED.read_text(encoding="utf-8"))
    return trace


@pytest.fixture
def launches() -> LaunchTrace:
    """The launches of the recorded pass."""
    trace = LaunchTrace()
    event = Numbered()
    for number in range(6):
        trace.launched(number % 3, "add")
        if number == 3:
            trace.recorded(0, event)
    trace.waited(1, event)
    trace.launched(1, None)
    return trace


def device_work(trace: Json, name: str = "") -> list[Json]:
    """The kernels of a trace whose name contains this."""
    return [e for e in trace["traceEvents"] if e.get("cat") == "kernel" and name in e["name"]]


def test_recorded_kernels_are_those_launched(recorded: Json, launches: LaunchTrace) -> None:
    timeline = kernel_trace.read(recorded, launches, 3)
    kernels = sorted(timeline.kernels, key=lambda kernel: kernel.launch)
    assert (timeline.streams, timeline.elsewhere, timeline.clocks) == (3, 0, None)
    assert [(k.launch, k.stream, k.tag, k.waits_for) for k in kernels] == [
        *((number, number % 3, "add", ()) for number in range(6)), (6, 1, None, (3,)),
    ]  # fmt: skip
    assert ["_add<float>" in kernel.name for kernel in kernels] == [True] * 6 + [False]
    assert "MulFunctor" in kernels[6].name
    assert {kernel.shape for kernel in kernels} == {KernelShape((1, 1, 1), (128, 1, 1))}
    (spin,) = device_work(recorded, "spin_kernel")
    opened_ns: int = round(spin["ts"] * 1000) + round(spin["dur"] * 1000)
    assert timeline.released_ns == opened_ns
    for kernel in kernels:
        assert kernel.enqueued_ns < opened_ns < kernel.start_ns < kernel.end_ns
    starts = [kernel.start_ns for kernel in timeline.kernels]
    enqueued = [kernel.enqueued_ns for kernel in kernels]
    assert (starts, enqueued) == (sorted(starts), sorted(enqueued))
    for first, second in [(0, 3), (1, 4), (2, 5), (4, 6), (3, 6)]:  # stream order, and the wait
        assert kernels[first].end_ns <= kernels[second].start_ns


def test_recorded_calls_are_those_that_enqueued(recorded: Json, launches: LaunchTrace) -> None:
    malloc = complete("cuda_runtime", "cudaMalloc", 1500, 2000, 9, correlation=7777)
    recorded["traceEvents"].append(malloc)
    timeline = kernel_trace.read(recorded, launches, 3)
    ours = [call for call in timeline.calls if call.launch is not None]
    assert [call.launch for call in sorted(ours, key=lambda call: call.begin_ns)] == [*range(7)]
    assert {(call.name, call.thread) for call in ours} == {("cudaLaunchKernel", 1)}
    others = {call.name: call for call in timeline.calls if call.launch is None}
    assert others.keys() == {"cudaLaunchKernel", "cudaMalloc"}
    assert others["cudaMalloc"] == HostCall("cudaMalloc", 9, 1500, 3500, None)


def test_an_exported_trace_is_written_over_no_links_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launches: LaunchTrace
) -> None:
    def run(pool: AcceleratorPool, enqueue: object, hold: object, to: str, **_: object) -> object:
        # As the profiler does, which follows links.
        Path(to).write_text(RECORDED.read_text(encoding="utf-8"), encoding="utf-8")
        return launches

    monkeypatch.setattr(kernel_trace, "_run", run)
    victim, path = tmp_path / "victim", tmp_path / "trace.json"
    victim.write_text("mine")
    path.symlink_to(victim)
    kernel_trace.export(cast(AcceleratorPool, None), lambda: None, str(path))
    assert victim.read_text() == "mine"
    assert not path.is_symlink()
    assert device_work(json.loads(path.read_text(encoding="utf-8")), "_add<float>")


def move_the_products(trace: Json) -> None:
    """Have a library launch on a stream of its own."""
    for event in device_work(trace, "MulFunctor"):
        event["args"]["stream"] = 99


def replay_in(context: int) -> Callable[[Json], None]:
    """Turn the launches of stream 13 after its marker into replays, as an H200 reported them.

    Each stream has a context; the replayed kernels are on a stream that nobody marked.
    """

    def replay(trace: Json) -> None:
        replayed = set()
        for arguments in [event["args"] for event in device_work(trace)]:
            arguments["context"] = stream = arguments["stream"]
            if stream == 13 and arguments["correlation"] != 7:  # 7 is the marker
                arguments.update(context=context, stream=99)
                replayed.add(arguments["correlation"])
        for event in trace["traceEvents"]:
            if event.get("name") == "cudaLaunchKernel" and event["args"]["correlation"] in replayed:
                event["name"] = "cudaGraphLaunch"

    return replay


def number_streams_alike(trace: Json) -> None:
    """Have a context for each stream, in which it has the same number."""
    for event in trace["traceEvents"]:
        if "stream" in event.get("args", {}):
            event["args"].update(context=event["args"]["stream"], stream=7)


def number_contexts_apart(trace: Json) -> None:
    """Have a context for each kernel: the streams' numbers alone tell them apart."""
    for event in device_work(trace):
        event["args"]["context"] = event["args"]["correlation"]


@pytest.mark.parametrize(
    ("change", "in_green_contexts", "elsewhere"),
    [
        (move_the_products, set(), 1),
        (replay_in(context=13), {0}, 0),
        (replay_in(context=13), set(), 2),
        (replay_in(context=14), {0}, 2),
        (number_streams_alike, set(), 0),
        (number_contexts_apart, set(), 0),
    ],
)
def test_kernels_count_for_the_stream_that_launched_them(
    recorded: Json, launches: LaunchTrace, change: Any, in_green_contexts: set[int], elsewhere: int
) -> None:
    before = kernel_trace.read(recorded, launches, 3)
    change(recorded)
    timeline = kernel_trace.read(recorded, launches, 3, None, in_green_contexts)
    assert (timeline.kernels, timeline.elsewhere) == (before.kernels, elsewhere)


def test_stamps_become_those_of_the_hosts_clock(recorded: Json, launches: LaunchTrace) -> None:
    plain = kernel_trace.read(recorded, launches, 3)
    recorded["baseTimeNanoseconds"] = 1_000_000
    offset_ns = 400_000
    first_ns = min(call.begin_ns for call in plain.calls) + 1_000_000 - offset_ns
    before = ClockOffset(first_ns - 1, offset_ns, 50)
    # Somebody slewed the clock: over this time it gained a microsecond.
    after = ClockOffset(first_ns + 10_000_000, offset_ns + 1000, 60)
    moved = kernel_trace.read(recorded, launches, 3, ClockPair(before, after))
    assert moved.clocks == ClockPair(before, after)
    pairs = list(zip(plain.kernels, moved.kernels, strict=True))
    shifts = [now.start_ns - was.start_ns for was, now in pairs]
    assert sorted(shifts, reverse=True) == shifts
    for was, now in pairs:
        assert now.end_ns - now.start_ns == was.end_ns - was.start_ns
        for shift_ns in (now.start_ns - was.start_ns, now.enqueued_ns - was.enqueued_ns):
            assert 600_000 - 1000 <= shift_ns <= 600_000


def test_export_names_tracks_tagged_launches_and_the_rank(
    recorded: Json, launches: LaunchTrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def export() -> list[Json]:
        found: list[Json] = kernel_trace.with_names(json.loads(json.dumps(recorded)), launches)[
            "traceEvents"
        ]
        return found

    monkeypatch.delenv("RANK", raising=False)
    # What CUDA's profiler adds by itself: a copy of a host range on the stream's track.
    copy = complete("gpu_user_annotation", "hwq.launch 0", 0, 1000, 13)
    process = {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}
    # Launch 0 has more kernels, sooner and later and elsewhere; others are nobody's.
    number = device_work(recorded)[4]["args"]["correlation"]
    first_ns = 4392701922480000
    more = [
        complete(category, name, first_ns + after_ns, 1250, stream, correlation=correlation)
        for category, name, after_ns, stream, correlation in (
            ("kernel", "sooner", 0, 13, number), ("gpu_memcpy", "later", 9000, 13, number),
            ("gpu_memset", "elsewhere", 3000, 20, number), ("kernel", "foreign", 90000, 13, 99999),
        )
    ]  # fmt: skip
    # Of tracks with a stream's number only the stream's own is named and ordered.
    thread = {"ph": "M", "name": "thread_name", "pid": 5, "tid": 13, "args": {"name": "thread 13"}}
    order = {"ph": "M", "name": "thread_sort_index", "args": {"sort_index": 99}}
    tracks = [{**order, "pid": pid, "tid": tid} for pid, tid in ((0, 14), (0, 7), (5, 13))]
    recorded["traceEvents"] += [copy, process, {**process, "pid": 0}, *more, thread, *tracks]
    lines = []
    for event in export():
        names = ("name", "launch", "sort_index")
        arguments = {each: event["args"][each] for each in names if each in event["args"]}
        where = f"{event['pid']}/{event.get('tid', '')} {event.get('ts')} {event.get('dur')}"
        lines.append(f"{event.get('cat', 'M')} {event['name']} {where} {arguments}")
    assert_as_stored(__file__, "exported_trace.txt", "\n".join(lines))
    monkeypatch.setenv("RANK", "3")
    named = [event["args"]["name"] for event in export() if event["name"] == "process_name"]
    assert named == ["rank 3: python"] * 2


# A launch of a synthetic trace: its stream, start and length of each of its kernels, what they are,
# and whether it waits for the launch before it.
Launch = tuple[int, list[tuple[int, int]], str, bool]
KERNELS = st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**6)), min_size=1, max_size=4)
CATEGORIES = st.sampled_from(["kernel", "gpu_memcpy", "gpu_memset"])
LAUNCHES = st.lists(
    st.tuples(st.integers(0, 3), KERNELS, CATEGORIES, st.booleans()), min_size=1, max_size=12
)


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
        begin_ns, number = self.now_ns, self._correlation
        self.now_ns += 3000
        self.events.append(complete(category, "launch", begin_ns + 500, 1000, correlation=number))
        if range_name is not None:
            self.events.append(complete("user_annotation", range_name, begin_ns, 2000))
        return number, begin_ns + 1500

    def kernel(
        self, correlation: int, stream: int, start_ns: int, ns: int, category: str = "kernel"
    ) -> None:
        numbers = {"correlation": correlation, "stream": stream}
        self.events.append(complete(category, "k", start_ns, ns, **numbers))

    def marker(self, stream: int) -> None:
        correlation, _ = self.call(f"hwq.marker {stream}")
        self.kernel(correlation, 20 + stream, self.now_ns, 10)

    def launch(self, launch: Launch) -> None:
        stream, kernels, category, waits = launch
        if waits and self.launches.launches:
            event = Numbered()
            self.launches.recorded(self.launches.launches[-1].stream, event)
            self.launches.waited(stream, event)
        tag = f"t{stream}"
        index = self.launches.launched(stream, tag)
        waits_for = self.launches.launches[index].waits_for
        correlation, when_ns = self.call(kernel_trace.launch_name(index), "cuda_driver")
        for start_ns, ns in kernels:
            self.kernel(correlation, 20 + stream, start_ns, ns, category)
            end_ns = start_ns + ns
            self.kernels.append(
                Kernel(stream, index, "k", tag, when_ns, start_ns, end_ns, waits_for)
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
        trace.launch(launch)
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


def test_kernel_runs_where_the_device_ran_it_or_without_a_marker_where_it_was_launched() -> None:
    trace = Synthetic()
    for stream in range(2):
        trace.marker(stream)
        trace.launches.launched(0, None)
    for index, stream in enumerate((21, 22)):
        trace.kernel(trace.call(kernel_trace.launch_name(index))[0], stream, 100 + index, 5)
    kernels = kernel_trace.read({"traceEvents": trace.events}, trace.launches, 3).kernels
    assert [kernel.stream for kernel in kernels] == [1, 0]


def test_trace_without_kernels_of_ours_is_refused() -> None:
    only_markers, stray, no_device_work = Synthetic(), Synthetic(), Synthetic()
    only_markers.marker(0)
    stray.kernel(stray.call(None)[0], 20, 5, 5)
    no_device_work.call(kernel_trace.launch_name(0))
    for events in ([], only_markers.events, stray.events, no_device_work.events):
        with pytest.raises(DeviceError, match="saw no kernels"):
            kernel_trace.read({"traceEvents": events}, LaunchTrace(), 1)


@pytest.mark.parametrize("operations", [True, False])
def test_a_profiler_notes_ranges_and_operations_only_if_asked(
    tmp_path: Path, operations: bool
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # This torch has no CUDA, and says so.
        warnings.filterwarnings("ignore", message="CUDA is not available")
        profiler = kernel_trace.Profiler(operations=operations).start()
        with torch.profiler.record_function("hwq.launch 0"):
            torch.ones(4).add_(1)
        profiler.stop()
        profiler.write(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {event["name"] for event in events if event.get("cat") in ("user_annotation", "cpu_op")}
    assert "hwq.launch 0" in names
    assert ("aten::add_" in names) is operations
    assert operations or names == {"hwq.launch 0"}


def test_tracing_imports_no_compiler() -> None:
    script = (
        "import sys, warnings; warnings.simplefilter('ignore'); "
        "from pytest_hwqueue.parts.devices.kernel_trace import Profiler; "
        "Profiler().start().stop(); "
        "assert not {'torch._inductor', 'torch._dynamo'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_each_rank_has_a_file_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for told, rank in ((None, None), ("", None), ("x", None), ("0", "0"), ("12", "12")):
        with monkeypatch.context() as patched:
            patched.delenv("RANK", raising=False)
            if told is not None:
                patched.setenv("RANK", told)
            assert rank_of_process() == rank
            name = "moe-1234.json" if rank is None else f"moe-1234-rank{rank}.json"
            assert trace_path(Path("traces"), "moe-1234.json") == Path("traces") / name


def test_host_traces_say_their_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = Kernel(0, 1, "run", "small", 500, 1000, 3500), Kernel(1, 0, "run", None, 5, 10, 20)
    expected = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 0, "args": {"name": "stream 0 of A"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "stream 1 of A"}},
        {"ph": "X", "cat": "kernel", "name": "small", "pid": 1, "tid": 0, "ts": 1.0, "dur": 2.5,
         "args": {"launch": 1, "enqueued_us": 0.5}},
        {"ph": "X", "cat": "kernel", "name": "run", "pid": 1, "tid": 1, "ts": 0.01, "dur": 0.01,
         "args": {"launch": 0, "enqueued_us": 0.005}},
    ]  # fmt: skip
    path = tmp_path / "trace.json"
    for rank, process, names in [
        ("", None, []),
        ("2", None, ["rank 2"]),
        ("2", "simulated NVIDIA H200", ["rank 2: simulated NVIDIA H200"]),
    ]:
        monkeypatch.setenv("RANK", rank)
        write_trace(Timeline(kernels, 2, None), str(path), process=process, label="of A")
        named = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": n}} for n in names]
        assert json.loads(path.read_text()) == {"traceEvents": named + expected}


@pytest.mark.parametrize(
    ("asked", "started", "left"),
    [
        pytest.param("1", {2**40, 2**41}, True, id="its threads have ended"),
        pytest.param("0", {2**40}, False, id="it was not asked to leave"),
        pytest.param("1", set(), False, id="no thread was seen: it may be there as before"),
    ],
)
def test_a_profiler_has_left_once_its_threads_have(
    monkeypatch: pytest.MonkeyPatch, asked: str, started: set[int], left: bool
) -> None:
    monkeypatch.setenv("TEARDOWN_CUPTI", asked)
    assert kernel_trace.detached(started) is left
