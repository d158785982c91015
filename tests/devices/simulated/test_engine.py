"""The engine does exactly what its configuration says: known truth for what is measured on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pytest_hwqueue.devices.compute_units import Partition
from pytest_hwqueue.devices.simulated.colocation import PreemptiveScheduler
from pytest_hwqueue.devices.simulated.costs import CopyWork, GraphNode, GraphWork, KernelWork, Point
from pytest_hwqueue.devices.simulated.engine import Engine
from pytest_hwqueue.devices.simulated.profile import Hardware

times = st.integers(1, 100_000)


@dataclass(frozen=True)
class Ran:
    stream: int
    label: Any
    start_ns: int
    end_ns: int


def observed(engine: Engine) -> list[Ran]:
    ran: list[Ran] = []
    engine.observer = lambda stream, label, name, at, start, end: ran.append(
        Ran(stream, label, start, end)
    )
    return ran


@given(durations=st.lists(times, min_size=1, max_size=20), start=st.integers(0, 5_000))
def test_a_stream_is_in_order_and_each_kernel_starts_after_the_start_cost(
    durations: list[int], start: int
) -> None:
    engine = Engine(Hardware(slots=10, start_ns=start))
    stream, ran = engine.add_stream(), observed(engine)
    for label, duration in enumerate(durations):
        engine.submit(stream, KernelWork(duration), 0, label=label)
    engine.run()
    ready = 0
    for label, (kernel, duration) in enumerate(zip(ran, durations, strict=True)):
        assert kernel == Ran(0, label, ready + start, ready + start + duration)
        ready = kernel.end_ns


@given(streams=st.integers(1, 24), connections=st.integers(1, 12), kernels=st.integers(1, 5))
def test_streams_beyond_the_connections_share_them(
    streams: int, connections: int, kernels: int
) -> None:
    """Enqueued stream by stream, the streams of one queue run one after the other."""
    engine = Engine(Hardware(slots=1000, connections=connections))
    for _ in range(streams):
        engine.add_stream()
    for stream in range(streams):
        for _ in range(kernels):
            engine.submit(stream, KernelWork(1000), 0)
    engine.run()
    sharing = -(-streams // connections)
    # The next stream's first kernel is issued beside the last one's last.
    assert engine.now_ns == 1000 * (sharing * (kernels - 1) + 1)


@given(streams=st.integers(2, 16), service=st.integers(1, 500))
def test_the_front_end_starts_one_after_the_other(streams: int, service: int) -> None:
    engine = Engine(Hardware(slots=1000, connections=64, front_end_ns=service, start_ns=7))
    ran = observed(engine)
    for stream in range(streams):
        engine.submit(engine.add_stream(), KernelWork(10_000), 0, label=stream)
    engine.run()
    assert [kernel.start_ns for kernel in ran] == [7 + service * index for index in range(streams)]


@given(first=times, second=times, switch=st.integers(0, 5_000))
def test_going_to_another_queue_costs_the_switch(first: int, second: int, switch: int) -> None:
    engine = Engine(Hardware(slots=1, start_ns=100, queue_switch_ns=switch))
    ran, point = observed(engine), Point()
    streams = [engine.add_stream(), engine.add_stream()]
    engine.submit(streams[0], KernelWork(first), 0)
    engine.record(streams[0], point, 0)
    engine.wait(streams[1], point, 0)
    engine.submit(streams[1], KernelWork(second), 0)
    engine.run()
    assert point.when_ns == ran[0].end_ns == 100 + first
    assert ran[1].start_ns - ran[0].end_ns == 100 + switch


@given(streams=st.integers(1, 20), limit=st.integers(1, 10))
def test_no_more_kernels_run_at_once_than_the_device_holds(streams: int, limit: int) -> None:
    engine = Engine(Hardware(slots=1000, connections=64, concurrent_kernels=limit))
    for _ in range(streams):
        engine.submit(engine.add_stream(), KernelWork(1000), 0)
    engine.run()
    assert engine.now_ns == 1000 * -(-streams // limit)


@given(streams=st.integers(1, 12), blocks=st.integers(1, 40), slots=st.integers(1, 40))
def test_blocks_are_limited_by_slots(streams: int, blocks: int, slots: int) -> None:
    """Kernels of equal blocks take as many waves as all of their blocks need together."""
    engine = Engine(Hardware(slots=slots, connections=64))
    ran = observed(engine)
    waves = -(-blocks // slots)
    for _ in range(streams):
        engine.submit(engine.add_stream(), KernelWork(1000 * waves, blocks), 0)
    engine.run()
    assert max(kernel.end_ns for kernel in ran) == 1000 * -(-streams * blocks // slots)


def ends_in_groups(split: tuple[int, ...], works: dict[int, KernelWork]) -> dict[int, int]:
    """When kernels end that start together, each alone in its group; by group."""
    engine = Engine(Hardware(slots=264, slots_per_multiprocessor=2))
    ran = observed(engine)
    for group, work in works.items():
        stream = engine.add_stream(partition=Partition(split, group))
        engine.submit(stream, work, 0, label=group)
    engine.run()
    return {kernel.label: kernel.end_ns for kernel in ran}


@given(
    split=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    waves=st.integers(1, 50),
    block_ns=times,
)
def test_kernels_in_groups_take_the_waves_of_their_own_slots_whatever_runs_elsewhere(
    split: list[int], waves: int, block_ns: int
) -> None:
    work = KernelWork(waves * block_ns, waves * 264)
    groups = range(len(split) + 1)
    together = ends_in_groups(tuple(split), dict.fromkeys(groups, work))
    sizes = [*split, 132 - sum(split)]
    assert together == {
        group: -(-waves * 264 // (2 * size)) * block_ns for group, size in enumerate(sizes)
    }
    assert all(
        ends_in_groups(tuple(split), {group: work}) == {group: together[group]} for group in groups
    )


@pytest.mark.parametrize(
    ("size", "blocks", "memory_bound", "slowness"),
    [
        (66, 264, False, 2), (66, 264, True, 1), (44, 264, True, 1), (22, 264, True, 2),
        (11, 264, True, 4), (11, 22, False, 1), (11, 1, True, 1), (131, 1, False, 1),
    ],
)  # fmt: skip
def test_a_group_slows_down_what_it_is_short_of(
    size: int, blocks: int, memory_bound: bool, slowness: int
) -> None:
    """Multiprocessors by their number; memory only below a third of its bandwidth's share."""
    work = KernelWork(12_000, blocks, memory_bound=memory_bound)
    assert ends_in_groups((size,), {0: work}) == {0: slowness * 12_000}


def test_a_group_of_all_multiprocessors_changes_nothing() -> None:
    for memory_bound in (False, True):
        work = KernelWork(9_999, 1000, 3, 1, memory_bound=memory_bound)
        engine = Engine(Hardware(slots=264, slots_per_multiprocessor=2))
        engine.submit(engine.add_stream(), work, 0)
        engine.run()
        assert ends_in_groups((132,), {0: work}) == {0: engine.now_ns}


@given(waves=st.integers(1, 5_000), arrives=st.integers(1, 10_000_000), wave=times)
def test_an_urgent_kernel_gets_in_at_the_next_wave(waves: int, arrives: int, wave: int) -> None:
    engine = Engine(Hardware(slots=4))
    ran = observed(engine)
    low, high = engine.add_stream(0), engine.add_stream(1)
    engine.submit(low, KernelWork(waves * wave, 4 * waves), 0, label="low")
    engine.submit(high, KernelWork(50, 4), arrives, label="high")
    engine.run()
    by_label = {kernel.label: kernel for kernel in ran}
    inside = arrives < waves * wave
    expected = -(-arrives // wave) * wave if inside else arrives
    assert by_label["high"].start_ns == expected
    delayed = expected < waves * wave
    assert by_label["low"].end_ns == waves * wave + (50 if delayed else 0)


@given(waves=st.integers(1, 5_000), arrives=st.integers(1, 10_000))
def test_an_equal_kernel_waits_for_the_whole_of_the_one_before(waves: int, arrives: int) -> None:
    engine = Engine(Hardware(slots=4))
    ran = observed(engine)
    first, second = engine.add_stream(), engine.add_stream()
    engine.submit(first, KernelWork(waves * 1000, 4 * waves), 0, label="first")
    engine.submit(second, KernelWork(50, 4), arrives, label="second")
    engine.run()
    second_ran = next(kernel for kernel in ran if kernel.label == "second")
    assert second_ran.start_ns == max(arrives, waves * 1000)


@given(
    kernels=st.lists(
        st.tuples(times, st.integers(1, 60), st.integers(1, 5), st.integers(0, 2), times),
        min_size=1,
        max_size=25,
    ),
    slots=st.integers(1, 30),
)
def test_whatever_runs_slots_are_never_exceeded_and_all_ends(
    kernels: list[tuple[int, int, int, int, int]], slots: int
) -> None:
    engine = Engine(Hardware(slots=slots, connections=64))
    ran = observed(engine)
    for duration, blocks, per_block, priority, at in kernels:
        stream = engine.add_stream(priority)
        engine.submit(stream, KernelWork(duration, blocks, per_block), at, label=(duration, at))
    engine.run()
    assert len(ran) == len(kernels)
    for kernel in ran:
        duration, at = kernel.label
        assert kernel.start_ns >= at
        assert kernel.end_ns - kernel.start_ns >= min(duration, 1)
    # Work done cannot exceed what the slots offer from the first arrival to the end.
    offered = slots * (max(kernel.end_ns for kernel in ran) - min(at for *_, at in kernels))
    needed = 0
    for duration, blocks, per_block, _, _ in kernels:
        size = min(per_block, slots)
        waves = -(-blocks // max(1, slots // per_block))
        needed += -(-duration // waves) * blocks * size
    assert needed <= offered


@given(gap=st.integers(0, 1000), nodes=st.integers(1, 30))
def test_a_graphs_chain_has_its_own_gap_and_one_start_cost(gap: int, nodes: int) -> None:
    engine = Engine(Hardware(slots=1, start_ns=900, front_end_ns=10_000, graph_gap_ns=gap))
    chain = tuple(
        GraphNode(KernelWork(100), (index - 1,) if index else ()) for index in range(nodes)
    )
    engine.submit(engine.add_stream(), GraphWork(chain), 0)
    engine.run()
    assert engine.now_ns == 900 + nodes * (gap + 100)


def test_a_graph_records_its_events_on_each_replay() -> None:
    engine = Engine(Hardware(slots=1))
    graph = GraphWork((GraphNode(KernelWork(100)), GraphNode(None, (0,))))
    stream, points = engine.add_stream(), [Point(), Point()]
    for point in points:
        engine.submit(stream, graph, 0, points={1: point})
    engine.run()
    assert [point.when_ns for point in points] == [100, 200]


@given(sizes=st.lists(st.integers(1, 10**7), min_size=1, max_size=10))
def test_a_copy_engine_serves_one_copy_at_a_time_beside_kernels(sizes: list[int]) -> None:
    engine = Engine(Hardware(slots=1, connections=64, copy_bytes_per_s=(1e9,)))
    for size in sizes:
        engine.submit(engine.add_stream(), CopyWork(size), 0)
    kernel_end: list[int] = []
    engine.submit(engine.add_stream(), KernelWork(5), 0, done=kernel_end.append)
    engine.run()
    assert engine.now_ns == max(5, sum(sizes))
    assert kernel_end == [5]


@given(time_slice=st.integers(10, 1000), arrives=st.integers(1, 5_000))
def test_a_second_process_waits_for_the_end_of_the_slice(time_slice: int, arrives: int) -> None:
    engine = Engine(Hardware(slots=4, time_slice_ns=time_slice))
    ends: dict[str, int] = {}
    first, second = engine.add_stream(process=0), engine.add_stream(process=1)
    engine.submit(first, KernelWork(100_000, 4), 0, done=lambda at: ends.update(first=at))
    engine.submit(second, KernelWork(5, 4), arrives, done=lambda at: ends.update(second=at))
    engine.run()
    expected = max(1, -(-arrives // time_slice)) * time_slice
    assert ends == {"second": expected + 5, "first": 100_000 + 5}


def test_processes_take_turns_of_a_slice_each() -> None:
    engine = Engine(Hardware(slots=4, time_slice_ns=1000, process_switch_ns=10))
    ends: list[int] = []
    for process in (0, 1):
        engine.submit(engine.add_stream(process=process), KernelWork(2000, 4), 0, done=ends.append)
    engine.run()
    # 0..1000, 1010..2010, 2020..3020 (the first ends), 3030..4030 (the second ends)
    assert ends == [3020, 4030]


def test_processes_that_share_run_at_once() -> None:
    engine = Engine(Hardware(slots=4, share_processes=True))
    for process in (0, 1):
        engine.submit(engine.add_stream(process=process), KernelWork(2000, 2), 0)
    engine.run()
    assert engine.now_ns == 2000


@given(threshold=st.integers(1, 20), arrives=st.integers(1, 30_000))
def test_an_urgent_queue_waits_for_no_more_than_what_is_in_flight(
    threshold: int, arrives: int
) -> None:
    engine = Engine(Hardware(slots=4))
    scheduler = PreemptiveScheduler(engine)
    low = scheduler.add_stream(priority=0, threshold=threshold)
    high = scheduler.add_stream(priority=1, threshold=1)
    ends: list[int] = []
    for _ in range(50):
        scheduler.submit(low, KernelWork(1000, 4), 0)
    scheduler.submit(high, KernelWork(10, 4), arrives, done=ends.append)
    engine.run()
    # At the instant at which a kernel ends, the next one in flight may come first.
    assume(arrives % 1000)
    started = -(-arrives // 1000) * 1000
    # All slots go by arrival: the rest of the running kernel first, nothing that is merely queued
    # behind it in its stream.
    assert ends == [started + 10]


@given(batch=st.integers(0, 5), arrives=st.integers(1, 20_000))
def test_a_stopped_queue_still_hands_on_the_batch_that_it_had_begun(
    batch: int, arrives: int
) -> None:
    assume(arrives % 1000)
    engine = Engine(Hardware(slots=4))
    scheduler = PreemptiveScheduler(engine)
    low = scheduler.add_stream(priority=0, threshold=2, batch=batch)
    high = scheduler.add_stream(priority=1, threshold=16)
    ends: list[int] = []
    for _ in range(50):
        scheduler.submit(low, KernelWork(1000, 4), 0, done=ends.append)
    # Nothing comes near its end, so that low stays stopped.
    scheduler.submit(high, KernelWork(1_000_000), arrives)
    engine.run(900_000)
    # What ran, what was in flight behind it, and the batch.
    assert len(ends) == arrives // 1000 + 2 + batch


def test_a_slow_host_notices_late() -> None:
    engine = Engine(Hardware(slots=4))
    scheduler = PreemptiveScheduler(engine, round_trip_ns=500)
    queue = scheduler.add_stream(priority=0, threshold=1)
    for _ in range(10):
        scheduler.submit(queue, KernelWork(1000, 4), 0, slowness=2.0)
    engine.run()
    assert engine.now_ns == 10 * 2000


def test_below_its_round_trip_a_threshold_of_one_leaves_the_device_idle() -> None:
    ends = []
    for threshold in (1, 2):
        engine = Engine(Hardware(slots=4))
        scheduler = PreemptiveScheduler(engine, round_trip_ns=500)
        queue = scheduler.add_stream(priority=0, threshold=threshold)
        for _ in range(10):
            scheduler.submit(queue, KernelWork(1000, 4), 0)
        engine.run()
        ends.append(engine.now_ns)
    assert ends[0] == 10 * 1500
    assert ends[1] == 10 * 1000 + 500


def test_a_threshold_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one command"):
        PreemptiveScheduler(Engine(Hardware(slots=1))).add_stream(0, 0)


# Few and small numbers, so that things often happen at one instant.
host_steps = st.lists(
    st.tuples(
        st.sampled_from(["kernel", "kernel", "kernel", "copy", "graph", "record", "wait"]),
        st.integers(0, 2),  # stream
        st.integers(1, 4),  # duration
        st.integers(1, 5),  # blocks
        st.integers(0, 9),  # time since the step before
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=400)
@given(
    steps=host_steps,
    connections=st.integers(1, 3),
    priorities=st.tuples(*[st.integers(0, 1)] * 3),
    processes=st.integers(1, 2),
    switch=st.integers(0, 2),
    service=st.integers(0, 9),
)
def test_running_on_gives_what_single_instants_give(
    steps: list[tuple[str, int, int, int, int]],
    connections: int,
    priorities: tuple[int, int, int],
    processes: int,
    switch: int,
    service: int,
) -> None:
    """An idle device takes a short cut (`idle`), but not beyond the time that it may run until."""
    hardware = Hardware(
        slots=4, connections=connections, start_ns=1, queue_switch_ns=switch,
        front_end_ns=service, graph_start_ns=service, copy_bytes_per_s=(5e8,),
        process_switch_ns=switch,
    )  # fmt: skip

    def run(*, by_instants: bool) -> tuple[list[Ran], list[int | None], int]:
        engine = Engine(hardware)
        ran, points, at = observed(engine), [Point()], 0
        streams = [
            engine.add_stream(priority, index % processes)
            for index, priority in enumerate(priorities)
        ]
        for label, (kind, stream, duration, blocks, gap) in enumerate(steps):
            at += gap
            kernel = KernelWork(duration, blocks)
            if kind == "record":
                points.append(Point())
                engine.record(streams[stream], points[-1], at)
            elif kind == "wait":
                engine.wait(streams[stream], points[-1], at)
            elif kind == "copy":
                engine.submit(streams[stream], CopyWork(duration), at, label=label)
            elif kind == "graph":
                graph = GraphWork((GraphNode(kernel), GraphNode(kernel)))
                engine.submit(streams[stream], graph, at, label=label)
            else:
                engine.submit(streams[stream], kernel, at, label=label)
        while by_instants and (instant := engine.next_ns()) is not None:
            engine.run(instant)
        engine.run()
        return ran, [point.when_ns for point in points], engine.now_ns

    assert run(by_instants=False) == run(by_instants=True)


def test_what_a_lone_kernels_end_lets_go_on_is_served_by_priority() -> None:
    engine = Engine(Hardware(slots=4, front_end_ns=50))
    ran, point = observed(engine), Point()
    low, high = engine.add_stream(0), engine.add_stream(1)
    engine.wait(high, point, 0)
    engine.submit(high, KernelWork(10), 0, label="high")
    engine.submit(low, KernelWork(100), 1, label="first")
    engine.record(low, point, 1)
    engine.submit(low, KernelWork(10), 1, label="low")
    engine.run()
    starts = [(kernel.label, kernel.start_ns) for kernel in ran]
    assert starts == [("first", 1), ("high", 101), ("low", 151)]


@given(size=times, behind=times)
def test_a_kernel_waits_for_the_copy_before_it(size: int, behind: int) -> None:
    engine = Engine(Hardware(slots=1, copy_bytes_per_s=(1e9,)))
    ran, stream = observed(engine), engine.add_stream()
    engine.submit(stream, CopyWork(size), 0)
    engine.submit(stream, KernelWork(1), behind)
    engine.run()
    assert ran[-1].start_ns == max(size, behind)


def test_no_kernel_is_alone_while_a_graph_starts() -> None:
    engine = Engine(Hardware(slots=1, start_ns=10))
    ran = observed(engine)
    engine.submit(engine.add_stream(), GraphWork((GraphNode(KernelWork(5)),)), 0, label="node")
    engine.run(5)
    engine.submit(engine.add_stream(), KernelWork(5), 10, label="kernel")
    engine.run()
    assert ran == [Ran(0, "node", 10, 15), Ran(1, "kernel", 20, 25)]


def test_the_device_runs_no_further_than_a_point_that_is_waited_for() -> None:
    engine = Engine(Hardware(slots=1))
    ran, point = observed(engine), Point()
    engine.record(engine.add_stream(), point, 100)
    engine.submit(engine.add_stream(), KernelWork(100), 100)
    assert engine.run_until_passed(point)
    assert point.when_ns == engine.now_ns == 100
    assert not ran


def test_a_point_that_nothing_will_pass_is_told() -> None:
    engine = Engine(Hardware(slots=1))
    stream, gate, end = engine.add_stream(), Point(), Point()
    engine.wait(stream, gate, 0)
    engine.record(stream, end, 0)
    assert not engine.run_until_passed(end)
