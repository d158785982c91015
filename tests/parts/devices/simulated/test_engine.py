"""What no cell can show of the modelled device: waves, groups, processes, XSched, any schedule."""

from __future__ import annotations

from itertools import groupby
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pytest_hwqueue.parts.devices.compute_units import Partition
from pytest_hwqueue.parts.devices.simulated.colocation import PreemptiveScheduler
from pytest_hwqueue.parts.devices.simulated.costs import (
    CopyWork,
    GraphNode,
    GraphWork,
    KernelWork,
    Point,
    Work,
)
from pytest_hwqueue.parts.devices.simulated.engine import Engine
from pytest_hwqueue.parts.devices.simulated.profile import Hardware

times = st.integers(1, 100_000)


class Ran(NamedTuple):
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


def ends(hardware: Hardware, *kernels: tuple[KernelWork, int, dict[str, Any]]) -> list[int]:
    """When kernels end, each on a stream of its own: what it is, when it arrives, the stream."""
    engine = Engine(hardware)
    ran = observed(engine)
    for label, (work, at_ns, of_stream) in enumerate(kernels):
        engine.submit(engine.add_stream(**of_stream), work, at_ns, label=label)
    engine.run()
    return [kernel.end_ns for kernel in sorted(ran, key=lambda kernel: kernel.label)]


@given(
    waves=st.integers(1, 5_000), arrives=st.integers(1, 10_000_000), wave=times,
    urgent=st.booleans(),
)  # fmt: skip
def test_an_urgent_kernel_gets_in_at_the_next_wave_and_an_equal_one_after_the_last(
    waves: int, arrives: int, wave: int, urgent: bool
) -> None:
    whole = waves * wave
    first = KernelWork(whole, 4 * waves), 0, {"priority": 0}
    second = KernelWork(50, 4), arrives, {"priority": int(urgent)}
    let_in = -(-arrives // wave) * wave if urgent else whole
    started = let_in if arrives < whole else arrives
    truth = [whole + 50 * (started < whole), started + 50]
    assert ends(Hardware(slots=4), first, second) == truth


def ends_in_groups(split: list[int], groups: list[int], work: KernelWork) -> list[int]:
    """When kernels end that start together, each alone in its group."""
    hardware = Hardware(slots=264, slots_per_multiprocessor=2)
    partitions = [Partition(tuple(split), group) for group in groups]
    return ends(hardware, *[(work, 0, {"partition": each}) for each in partitions])


@given(
    split=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    waves=st.integers(1, 50),
    block_ns=times,
)
def test_kernels_in_groups_take_the_waves_of_their_own_slots_whatever_runs_elsewhere(
    split: list[int], waves: int, block_ns: int
) -> None:
    work = KernelWork(waves * block_ns, waves * 264)
    sizes = [*split, 132 - sum(split)]
    truth = [-(-waves * 264 // (2 * size)) * block_ns for size in sizes]
    assert ends_in_groups(split, [*range(len(sizes))], work) == truth
    for group, end_ns in enumerate(truth):
        assert ends_in_groups(split, [group], work) == [end_ns]


@pytest.mark.parametrize(
    ("size", "blocks", "memory_bound", "slowness"),
    [
        (66, 264, False, 2), (66, 264, True, 1), (44, 264, True, 1), (22, 264, True, 2),
        (11, 264, True, 4), (11, 22, False, 1), (11, 1, True, 1), (131, 1, False, 1),
        (132, 264, False, 1), (132, 264, True, 1),
    ],
)  # fmt: skip
def test_a_group_slows_down_what_it_is_short_of(
    size: int, blocks: int, memory_bound: bool, slowness: int
) -> None:
    """Multiprocessors by their number; memory only below a third of its bandwidth's share."""
    work = KernelWork(12_000, blocks, memory_bound=memory_bound)
    assert ends_in_groups([size], [0], work) == [slowness * 12_000]


@given(time_slice=st.integers(10, 1000), arrives=st.integers(1, 5_000))
def test_a_second_process_waits_for_the_end_of_the_slice(time_slice: int, arrives: int) -> None:
    first = KernelWork(100_000, 4), 0, {"process": 0}
    second = KernelWork(5, 4), arrives, {"process": 1}
    truth = [100_000 + 5, -(-arrives // time_slice) * time_slice + 5]
    assert ends(Hardware(slots=4, time_slice_ns=time_slice), first, second) == truth


@pytest.mark.parametrize(
    ("share", "truth"),
    [
        # 0..1000, 1010..2010, 2020..3020 (the first ends), 3030..4030 (the second ends)
        (False, [3020, 4030]),
        (True, [2000, 2000]),
    ],
)
def test_processes_take_turns_of_a_slice_each_or_share(share: bool, truth: list[int]) -> None:
    hardware = Hardware(slots=8, time_slice_ns=1000, process_switch_ns=10, share_processes=share)
    both = [(KernelWork(2000, 4), 0, {"process": process}) for process in (0, 1)]
    assert ends(hardware, *both) == truth


@given(threshold=st.integers(1, 8), batch=st.integers(0, 5), arrives=st.integers(1, 20_000))
def test_under_xsched_a_stopped_queue_ends_what_is_in_flight_and_its_batch(
    threshold: int, batch: int, arrives: int
) -> None:
    # At the instant at which a kernel ends, the next one in flight may come first.
    assume(arrives % 1000)
    for urgent in (KernelWork(10, 4), KernelWork(1_000_000)):
        engine, low_ends, high_ends = Engine(Hardware(slots=4)), list[int](), list[int]()
        scheduler = PreemptiveScheduler(engine)
        low = scheduler.add_stream(priority=0, threshold=threshold, batch=batch)
        high = scheduler.add_stream(priority=1, threshold=16)
        for _ in range(50):
            scheduler.submit(low, KernelWork(1000, 4), 0, done=low_ends.append)
        scheduler.submit(high, urgent, arrives, done=high_ends.append)
        engine.run(900_000)
        if urgent.duration_ns == 10:  # waits for the running kernel, not for those behind it
            assert high_ends == [-(-arrives // 1000) * 1000 + 10]
            assert len(low_ends) == 50
        else:  # never nears its end, so that low stays stopped
            assert len(low_ends) == arrives // 1000 + threshold + batch


@pytest.mark.parametrize(
    ("threshold", "slowness", "each_ns", "last_ns"),
    [(1, 1.0, 1500, 0), (1, 2.0, 2000, 0), (2, 1.0, 1000, 500)],
)
def test_under_xsched_the_device_idles_while_a_slow_host_notices(
    threshold: int, slowness: float, each_ns: int, last_ns: int
) -> None:
    engine = Engine(Hardware(slots=4))
    scheduler = PreemptiveScheduler(engine, round_trip_ns=500)
    queue = scheduler.add_stream(priority=0, threshold=threshold)
    for _ in range(10):
        scheduler.submit(queue, KernelWork(1000, 4), 0, slowness=slowness)
    engine.run()
    assert engine.now_ns == 10 * each_ns + last_ns
    with pytest.raises(ValueError, match="at least one command"):
        scheduler.add_stream(0, 0)


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
def test_any_schedule_keeps_to_order_and_room_and_runs_alike_in_one_go_or_by_instants(
    steps: list[tuple[str, int, int, int, int]],
    connections: int,
    priorities: tuple[int, int, int],
    processes: int,
    switch: int,
    service: int,
) -> None:
    hardware = Hardware(
        slots=4, connections=connections, start_ns=1, queue_switch_ns=switch,
        front_end_ns=service, graph_start_ns=service, copy_bytes_per_s=(5e8,),
        process_switch_ns=switch,
    )  # fmt: skip

    def run(*, by_instants: bool) -> tuple[list[Ran], list[int | None], int]:
        engine = Engine(hardware)
        ran, points, at = observed(engine), [Point()], 0
        for index, priority in enumerate(priorities):
            engine.add_stream(priority, index % processes)
        for step, (kind, stream, duration, blocks, gap) in enumerate(steps):
            at += gap
            kernel = KernelWork(duration, blocks)
            if kind == "record":
                points.append(Point())
                engine.record(stream, points[-1], at)
            elif kind == "wait":
                engine.wait(stream, points[-1], at)
            else:
                graph = GraphWork((GraphNode(kernel), GraphNode(kernel)))
                works: dict[str, Work] = {"copy": CopyWork(duration), "graph": graph}
                engine.submit(
                    stream, works.get(kind, kernel), at, label=(step, kind, at, duration, blocks)
                )
        while by_instants and (instant := engine.next_ns()) is not None:
            engine.run(instant)
        engine.run()
        return ran, [point.when_ns for point in points], engine.now_ns

    ran, *rest = run(by_instants=False)
    assert (ran, *rest) == run(by_instants=True)
    kinds = [kind for kind, *_ in steps]
    if "wait" not in kinds:  # some wait for what nothing records
        assert len(ran) == len(steps) - kinds.count("record") + kinds.count("graph")
    needed, free_ns = 0, [0, 0, 0]
    for _, parts in groupby(sorted(ran, key=_step_of), _step_of):
        of_step = list(parts)
        for stream, (_, kind, at, duration, blocks), start_ns, _ in of_step:
            assert start_ns >= max(at, free_ns[stream])
            needed += 0 if kind == "copy" else blocks * -(-duration // -(-blocks // 4))
        free_ns[stream] = max(kernel.end_ns for kernel in of_step)
    assert needed <= 4 * max(free_ns)


def _step_of(kernel: Ran) -> int:
    return int(kernel.label[0])
