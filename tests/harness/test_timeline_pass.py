"""The timeline pass: what it holds together, and that both runs have the same kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hwqueue.devices.host import HostDevice
from pytest_hwqueue.devices.kinds import KINDS
from pytest_hwqueue.devices.protocol import Device, Stream, StreamPool
from pytest_hwqueue.errors import DeviceError
from pytest_hwqueue.harness.timeline_pass import PROBE_KERNEL_NS, probe_queue_switch, timeline_pass
from pytest_hwqueue.metrics.switching import THREADS
from pytest_hwqueue.metrics.timeline import Kernel, Timeline, summarise_timeline

MOST_HELD = 850
MOST_REPEATS = 20
MOST_SPAN_NS = 500_000_000


class FakeStream:
    """Counts what is launched on it into its pool."""

    priority = 0
    handle = 0

    def __init__(self, pool: FakePool, index: int) -> None:
        self._pool = pool
        self.index = index

    def launch(
        self, function: Callable[..., object], *arguments: object, tag: str | None = None
    ) -> None:
        self._pool.launched.append((self.index, function))


class FakePool:
    """Runs each launch at once for a fixed time, one after the other; keeps each held pass."""

    def __init__(self, count: int, kernel_ns: int) -> None:
        self.streams = cast(Sequence[Stream], [FakeStream(self, index) for index in range(count)])
        self.launched: list[tuple[int, object]] = []
        self.passes: list[list[tuple[int, object]]] = []
        self._kernel_ns = kernel_ns

    def held_timeline(self, enqueue: Callable[[], None]) -> Timeline:
        self.launched = []
        enqueue()
        self.passes.append(self.launched)
        ns = self._kernel_ns
        kernels = [
            Kernel(stream, number, "k", None, 0, 10 + number * ns, 10 + (number + 1) * ns)
            for number, (stream, _) in enumerate(self.launched)
        ]
        return Timeline(tuple(kernels), len(self.streams), 10)


def nothing() -> None:
    """A kernel."""


def once_each(streams: Sequence[Stream], per_stream: int = 1) -> None:
    for _ in range(per_stream):
        for stream in streams:
            stream.launch(nothing)


@settings(deadline=None)
@given(st.integers(2, 40), st.integers(1, 60), st.sampled_from([1, 1000, 10**6, 10**8, 10**9]))
def test_as_many_iterations_are_held_as_fit(streams: int, per_stream: int, kernel_ns: int) -> None:
    pool = FakePool(streams, kernel_ns)
    passed = timeline_pass(
        cast(StreamPool, pool), lambda given_streams: once_each(given_streams, per_stream)
    )
    once, many, one = pool.passes
    launches = streams * per_stream
    assert len(once) == launches
    repeats, rest = divmod(len(many), launches)
    assert rest == 0
    assert 1 <= repeats <= MOST_REPEATS

    def fits(count: int) -> bool:
        held, span = count * launches, count * launches * kernel_ns
        return count == 1 or (held <= MOST_HELD and span <= MOST_SPAN_NS)

    assert fits(repeats)
    assert repeats == MOST_REPEATS or not fits(repeats + 1)
    assert len(one) == len(many)
    assert {stream for stream, _ in one} == {0}
    assert passed.summary.kernels == len(many)
    assert passed.summary.streams_used == streams


def test_collapsed_run_gets_as_many_streams_all_of_them_the_first() -> None:
    pool = FakePool(3, 1000)
    given_streams: list[list[int]] = []

    def enqueue(streams: Sequence[Stream]) -> None:
        given_streams.append([stream.index for stream in streams])
        once_each(streams)

    timeline_pass(cast(StreamPool, pool), enqueue)
    assert given_streams == [[0, 1, 2]] * 21 + [[0, 0, 0]] * 20


def test_pass_summarises_the_run_on_many_streams() -> None:
    pool = FakePool(4, 1000)
    passed = timeline_pass(cast(StreamPool, pool), once_each)
    pool.passes.clear()
    many = pool.held_timeline(lambda: once_each(pool.streams, per_stream=20))
    assert passed.summary == summarise_timeline(many)
    assert passed.ready_to_start.streams == 4
    # The fake device starts one kernel as the last ends, on one stream as on several.
    assert passed.ready_to_start.overhead.second.median == 0.0


class ProbeDevice:
    """Hands out one kernel, and keeps what was asked for."""

    capabilities = KINDS["cuda"]

    def __init__(self) -> None:
        self.asked: list[int] = []

    def kernel_of(self, duration_ns: int) -> Callable[[], None]:
        self.asked.append(duration_ns)
        return nothing


@pytest.mark.parametrize(
    ("streams", "rounds"), [(1, 20), (2, 20), (42, 20), (43, 19), (128, 6), (425, 2), (1024, 2)]
)
def test_probe_takes_turns_and_is_held_whole(streams: int, rounds: int) -> None:
    device, pool = ProbeDevice(), FakePool(streams, PROBE_KERNEL_NS)
    probed = probe_queue_switch(cast(Device, device), cast(StreamPool, pool))
    spread, collapsed = pool.passes
    assert [stream for stream, _ in spread] == [*range(streams)] * rounds
    assert [stream for stream, _ in collapsed] == [0] * (streams * rounds)
    assert {function for _, function in spread + collapsed} == {nothing}
    assert device.asked == [PROBE_KERNEL_NS * math.ceil(streams / 32)]
    assert probed.streams == streams
    if streams == 1:
        assert probed.overhead.difference is None
        assert "fewer than 2" in probed.overhead.refused["difference"]


def test_pass_on_the_host_sees_all_kernels() -> None:
    device = HostDevice()
    with device.open_streams(2) as pool:
        passed = timeline_pass(pool, once_each)
        probed = probe_queue_switch(device, pool)
    assert passed.summary.kernels == 40
    assert passed.summary.streams_used == 2
    assert passed.ready_to_start.late_enqueued == 0
    assert passed.ready_to_start.overhead.difference is not None
    assert probed.overhead.difference is None
    assert probed.overhead.refused["difference"] == THREADS
    assert probed.late_enqueued == 0
    assert probed.overhead.first.n == probed.overhead.second.n == 40


def test_pass_without_kernels_is_refused_as_a_device_error() -> None:
    with HostDevice().open_streams(1) as pool, pytest.raises(DeviceError):
        timeline_pass(pool, lambda streams: None)


def test_wait_for_a_launch_without_kernels_is_refused_as_a_device_error() -> None:
    class Pool(FakePool):
        def held_timeline(self, enqueue: Callable[[], None]) -> Timeline:
            timeline = super().held_timeline(enqueue)
            waiting = Kernel(1, 99, "k", None, 0, 10**9, 10**9 + 1, waits_for=(98,))
            return Timeline((*timeline.kernels, waiting), 2, 10)

    with pytest.raises(DeviceError):
        timeline_pass(cast(StreamPool, Pool(2, 1000)), once_each)
