"""Workloads run unchanged, and replaying an iteration is simulating it, to the nanosecond."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hwqueue.engine.cell.program import graph
from pytest_hwqueue.parts.devices.protocol import Device, Event, Stream
from pytest_hwqueue.parts.devices.simulated import repeats
from pytest_hwqueue.parts.devices.simulated.costs import CopyWork, KernelWork, Work
from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.parts.devices.simulated.noise import NoiseModel
from pytest_hwqueue.parts.devices.simulated.pool import SimulatedPool
from pytest_hwqueue.parts.workloads.registry import WORKLOADS, workload_class
from pytest_hwqueue.parts.workloads.workload import Workload, parameters_for

if TYPE_CHECKING:
    from tests.parts.devices.simulated.conftest import Bench

_ITERATIONS = 8
# What it cannot do without on a device that runs no code.
_GIVEN = {"torch_compile": {"mode": "eager"}}
# Kernels alone, traced tags, many streams. All others are slow: the scripts below have copies and
# iterations that differ, too.
_ALWAYS = ("hetero_kernels", "tiny_kernel_stress", "moe")


@contextmanager
def simulating_all() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeats, "_MOST_STEPS", 0)
        yield


class Counting(SimulatedDevice):
    """The modelled H200; knows how many iterations it has replayed."""

    def __init__(self) -> None:
        super().__init__("h200")
        self.opened_pools: list[SimulatedPool] = []

    def open_streams(self, *arguments: Any, **named: Any) -> SimulatedPool:
        self.opened_pools.append(super().open_streams(*arguments, **named))
        return self.opened_pools[-1]

    def replayed(self) -> int:
        return sum(pool.repeats.replayed for pool in self.opened_pools)


def record_of(bench: Bench, name: str, streams: int, **how: str) -> tuple[dict[str, Any], int]:
    """A cell's record without what tells of this machine, and how much of it was replayed."""
    found: Any = workload_class(name)
    values = parameters_for(found, "tiny", _GIVEN.get(name, {}))
    device = Counting()

    def make(changed: Mapping[str, Any]) -> Workload:
        return cast(Workload, found(values.model_copy(update=dict(changed))))

    record = bench.record(
        device, streams, make({}), make=make, iterations=_ITERATIONS,
        max_time_ns=4_000_000_000, urgency=found.urgency(streams), **how,  # type: ignore[arg-type]
    )  # fmt: skip
    return record.model_dump(mode="json", exclude={"started", "duration_s"}), device.replayed()


@pytest.mark.parametrize("dispatch", ["eager", "graph"])
@pytest.mark.parametrize(
    "how_many",
    ["recommended", *(pytest.param(s, marks=pytest.mark.slow) for s in ("fewest", "odd", "many"))],
)
@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=[] if each in _ALWAYS else pytest.mark.slow) for each in WORKLOADS],
)
def test_a_workload_has_the_record_of_a_full_simulation(
    bench: Bench, name: str, how_many: str, dispatch: str
) -> None:
    taken = workload_class(name).stream_range
    streams = {
        "recommended": taken.recommended,
        "fewest": taken.least,
        "odd": min(2 * taken.recommended + 1, taken.most),
        "many": min(32, taken.most),
    }[how_many]
    quick, replayed = record_of(bench, name, streams, dispatch=dispatch)
    with simulating_all():
        assert record_of(bench, name, streams, dispatch=dispatch) == (quick, 0)
    measured = quick["status"] == "ok"
    assert replayed >= _ITERATIONS - 2 if measured else name not in _ALWAYS, quick["reason"]


def test_a_workload_that_never_waits_has_the_record_of_a_full_simulation(bench: Bench) -> None:
    quick, _ = record_of(bench, "hetero_kernels", 4, sync_mode="end_only")
    assert set(quick["samples"]["tags_ns"]) == {"small", "large"}
    assert quick["metrics"]["timeline"]["streams_used"] == 4
    with simulating_all():
        assert record_of(bench, "hetero_kernels", 4, sync_mode="end_only") == (quick, 0)


_STREAMS = 3
_Script = list[tuple[str, int, int]]
_works: st.SearchStrategy[Work] = st.one_of(
    st.builds(
        KernelWork, st.integers(1, 30_000), st.integers(1, 5_000), st.sampled_from([1, 4, 40])
    ),
    st.builds(CopyWork, st.integers(1, 2_000_000), st.integers(0, 1)),
)
# Few of everything: iterations are to be alike, and to depart from one another late.
_NONE, _stream, _event = st.just(0), st.integers(0, _STREAMS - 1), st.integers(0, 1)
_launch = st.tuples(st.just("launch"), _stream, st.integers(0, 2))
_step = st.one_of(
    _launch,
    _launch,
    st.tuples(st.sampled_from(["record", "wait"]), _stream, _event),
    st.tuples(st.just("record all"), _NONE, _event),
    st.tuples(st.just("graph"), _stream, _NONE),
    st.tuples(st.just("sleep"), _NONE, st.sampled_from([700, 9_000])),
)
_asking = st.one_of(
    st.tuples(st.sampled_from(["query", "wait for event"]), _NONE, _event),
    st.tuples(st.just("wait for stream"), _stream, _NONE),
    st.tuples(st.sampled_from(["trace", "trace held"]), _NONE, _NONE),
)


def play(
    bench: Bench,
    works: list[list[Work]],
    captured: _Script,
    scripts: list[_Script],
    noise: NoiseModel | None,
) -> tuple[list[Any], int]:
    """Play scripts on a device; return every time that anyone could see, and what was replayed."""
    device = SimulatedDevice("h200", noise)
    functions = [bench.launchable(device, *each) for each in works]
    events: list[Event] = [device.new_event() for _ in range(2)]
    seen: list[Any] = []

    def capture(streams: Sequence[Stream]) -> None:
        for _, stream, number in captured:
            streams[stream].launch(functions[number])

    with device.open_streams(_STREAMS, [0, 1, 0]) as pool:
        streams, whole = pool.streams, graph(cast(Device, device), pool, capture)

        def round_() -> None:
            for stream in streams:
                stream.launch(functions[0], tag="some")

        def rounds() -> None:
            """Two with a wait between them, as passes that trace iterations do it."""
            round_()
            pool.synchronize()
            round_()

        take: dict[str, Callable[[int, int], object]] = {
            "launch": lambda stream, number: streams[stream].launch(functions[number]),
            "record": lambda stream, number: streams[stream].record(events[number]) and None,
            "wait": lambda stream, number: streams[stream].wait(events[number]),
            "record all": lambda _, number: pool.record_all(events[number]),
            "graph": lambda *_: whole.enqueue(streams),
            "sleep": lambda _, number: device.sleep_until_ns(device.clock_ns() + number),
            "query": lambda _, number: events[number].query(),
            "wait for event": lambda _, number: events[number].synchronize(),
            "wait for stream": lambda stream, _: streams[stream].synchronize(),
            "trace": lambda *_: pool.timeline(rounds),
            "trace held": lambda *_: pool.held_timeline(round_),
        }
        for script in scripts:
            for what, stream, number in script:
                seen += [take[what](stream, number), device.clock_ns()]
            pool.synchronize()
            times = [[point.when_ns for point in e.points] for e in events]  # type: ignore[attr-defined]
            seen += [device.clock_ns(), times]
        return seen, pool.repeats.replayed


@settings(deadline=None, max_examples=60)
@given(
    works=st.lists(st.lists(_works, min_size=1, max_size=3), min_size=3, max_size=3),
    captured=st.lists(_launch, min_size=1, max_size=4),
    first=st.lists(_step, max_size=8),
    changes=st.lists(st.tuples(st.integers(0, 8), _step | _asking), max_size=4),
    order=st.lists(st.integers(0, 4), max_size=10),
    noise=st.sampled_from([None, None, NoiseModel(1, run=0.2), NoiseModel(1, run=0.2, jitter=0.1)]),
)
def test_no_script_has_other_times_than_in_a_full_simulation(
    bench: Bench,
    works: list[list[Work]],
    captured: _Script,
    first: _Script,
    changes: list[tuple[int, tuple[str, int, int]]],
    order: list[int],
    noise: NoiseModel | None,
) -> None:
    # An iteration, and others that depart from it by one step, in any order and often enough.
    kinds = [first, *([*first[:at], step, *first[at:]] for at, step in changes)]
    scripts = [kinds[number % len(kinds)] for number in [0, 0, *order, *order]]
    seen, _ = play(bench, works, captured, scripts, noise)
    with simulating_all():
        assert play(bench, works, captured, scripts, noise) == (seen, 0)


def test_what_iterations_wait_for_and_what_they_leave_behind_tells_them_apart(
    bench: Bench,
) -> None:
    begin: _Script = [("launch", 0, 0), ("record", 0, 0), ("launch", 2, 1), ("record", 2, 1)]
    on_first, on_second = ([*begin, ("wait", 1, event), ("launch", 1, 2)] for event in (0, 1))
    brief, long = (
        [("launch", 0, 1), ("sleep", 0, ns), ("launch", 1, 1), ("record", 1, 0)]
        for ns in (700, 9_000)
    )
    # The front end is slower for another queue than the one it served last.
    a: _Script = [("launch", 0, 0)]
    b: _Script = [("launch", 1, 2)]
    scripts = [on_first, on_first, on_second, on_second, on_first, on_second]
    scripts += [brief, brief, long, long, brief, long, a, a, a, b, a, b, [*a, ("launch", 0, 1)]]
    works: list[list[Work]] = [[KernelWork(90_000)], [KernelWork(20_000)], [KernelWork(1_000)]]
    seen, replayed = play(bench, works, a, scripts, None)
    assert replayed > 0
    with simulating_all():
        assert play(bench, works, a, scripts, None) == (seen, 0)
