"""What holds of every device that is there without an accelerator."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_hwqueue.data.metrics.timeline import Timeline
from pytest_hwqueue.data.records.kinds import KINDS, capabilities_of
from pytest_hwqueue.parts.devices.host import HostDevice
from pytest_hwqueue.parts.devices.protocol import Device
from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice

from .marks import PROGRAMS, Numbered, Program, play, within_patience


@pytest.fixture(scope="module", params=[HostDevice, partial(SimulatedDevice, "h200")],
                ids=["cpu", "sim"])  # fmt: skip
def device(request: pytest.FixtureRequest) -> Device:
    return cast(Device, request.param())


def test_it_can_do_what_its_label_says(device: Device) -> None:
    assert device.capabilities == capabilities_of(device.label) == KINDS[device.kind]
    assert (device.model is None) == (not device.capabilities.simulated)


# The second stream, which launches nothing, hands on what it waits for.
RELAYED: Program = [
    (0, "launch", 0), (0, "record", 0), (1, "wait", 0), (1, "record", 0), (2, "wait", 0),
    (2, "launch", 0),
]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(program=PROGRAMS, held=st.booleans())
@example(program=RELAYED, held=True)
def test_any_program_runs_in_an_order_its_events_allow_and_is_traced_so(
    device: Device, program: Program, held: bool
) -> None:
    kernel, before, found = device.kernel_of(1_000), list[set[int]](), list[Timeline]()
    with device.open_streams(3) as pool:
        streams = pool.streams

        def enqueue() -> None:
            streams[0].wait(device.new_event())  # never recorded: it holds nothing
            before.extend(
                play(
                    program,
                    lambda stream: streams[stream].launch(kernel, tag=f"of {stream}"),
                    lambda stream, event: streams[stream].record(event),
                    lambda stream, event: streams[stream].wait(event),
                )
            )

        trace = pool.held_timeline if held else pool.timeline
        within_patience(lambda: found.append(trace(enqueue)))
        assert pool.trace is None
    (timeline,) = found
    launched = [stream for stream, what, _ in program if what == "launch"]
    kernels = sorted(timeline.kernels, key=lambda each: each.launch)
    assert [(each.launch, each.stream, each.tag) for each in kernels] == [
        (index, stream, f"of {stream}") for index, stream in enumerate(launched)
    ]
    starts = [each.start_ns for each in timeline.kernels]
    assert (starts, timeline.streams) == (sorted(starts), 3)
    assert (timeline.released_ns is not None) == held
    implied: list[set[int]] = []
    last: dict[int, int] = {}
    for each, ended in zip(kernels, before, strict=True):
        assert each.enqueued_ns <= (timeline.released_ns or each.start_ns) <= each.start_ns
        assert all(kernels[other].end_ns <= each.start_ns for other in ended)
        direct = {*each.waits_for, *([last[each.stream]] if each.stream in last else [])}
        implied.append(direct.union(*(implied[other] for other in direct)))
        last[each.stream] = each.launch
    assert implied == before


def test_events_have_the_times_of_their_streams_and_are_the_devices_own(device: Device) -> None:
    busy: Callable[[], object] = device.kernel_of(2_000_000)
    if device.capabilities.host:  # whose kernels take about as long
        busy = partial(time.sleep, 0.002)
    start, end, foreign = device.new_event(), device.new_event(), Numbered()
    with device.open_streams(3) as pool:
        stream = pool.streams[0]
        stream.wait(start)  # one that was never recorded has passed
        start.synchronize()
        assert start.query()
        assert stream.record(start) is start
        stream.launch(busy)
        stream.record(end)
        pool.synchronize()
        assert device.elapsed_ns(start, end) == -device.elapsed_ns(end, start) >= 2_000_000
        for refuse in (stream.wait, stream.record, lambda event: device.elapsed_ns(event, end)):
            with pytest.raises(TypeError, match="event of another device"):
                refuse(foreign)


def test_export_has_a_track_for_each_stream(device: Device, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with device.open_streams(3) as pool:
        assert len({stream.handle for stream in pool.streams}) == 3
        kernel = device.kernel_of(1_000)
        pool.export_trace(lambda: pool.streams[1].launch(kernel), str(path))
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    assert [event["tid"] for event in events if event["name"] == "thread_name"] == [0, 1, 2]
    assert [event["tid"] for event in events if event["ph"] == "X"] == [1]
