"""Replaying an iteration that repeats gives what simulating it gives, to the nanosecond."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hwqueue.devices.protocol import Device, Event
from pytest_hwqueue.devices.simulated import repeats
from pytest_hwqueue.devices.simulated.costs import CopyWork, KernelWork, Work
from pytest_hwqueue.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.devices.simulated.noise import NoiseModel
from pytest_hwqueue.devices.simulated.pool import SimulatedPool
from pytest_hwqueue.harness.cell import CellRequest
from pytest_hwqueue.harness.closed_loop import LoopPlan
from pytest_hwqueue.harness.program import graph
from pytest_hwqueue.harness.runner import CellRunner
from pytest_hwqueue.ranks.cell import measure_alone
from pytest_hwqueue.records.cell import Cell
from pytest_hwqueue.records.noise import Provenance
from pytest_hwqueue.schedulers.syntax import open_scheduler
from pytest_hwqueue.workloads.registry import WORKLOADS, workload_class
from pytest_hwqueue.workloads.workload import Workload, parameters_for

_ITERATIONS = 12
# What it cannot do without on a device that runs no code.
_GIVEN = {"torch_compile": {"mode": "eager"}}
# One of each kind: kernels alone, traced tags, copies, iterations that differ. All others are slow.
_ALWAYS = ("hetero_kernels", "tiny_kernel_stress", "moe", "async_dataload", "continuous_batch")

Launchable = Callable[[], None]


@pytest.fixture(scope="module", autouse=True)
def _collecting_little() -> Iterator[None]:
    gc.freeze()
    yield
    gc.unfreeze()


def _record(
    name: str, streams: int, dispatch: str, sync_mode: str = "per_iteration"
) -> tuple[dict[str, Any], int]:
    """A cell's record without what tells of this machine, and how much of it was replayed."""
    found: Any = workload_class(name)
    values = parameters_for(found, "tiny", _GIVEN.get(name, {}))
    device = SimulatedDevice("h200")
    pools: list[SimulatedPool] = []
    opened = device.open_streams

    def open_streams(*arguments: Any, **named: Any) -> SimulatedPool:
        pools.append(opened(*arguments, **named))
        return pools[-1]

    device.open_streams = open_streams  # type: ignore[method-assign]

    def make(changed: Mapping[str, Any]) -> Workload:
        return cast(Workload, found(values.model_copy(update=dict(changed))))

    cell = Cell(
        name=name, device=device.label, streams=streams, scheduler="native", dispatch=dispatch,
        sync_mode=sync_mode, size="tiny", parameters=values.model_dump(),
    )  # fmt: skip
    request = CellRequest(
        cell=cell, workload=make({}), make_workload=make, urgency=found.urgency(streams),
        nodeid="file.py::test", family=found.family, mark=found.mark,
        plan=LoopPlan(_ITERATIONS, 1, 4_000_000_000, sync_mode), seed=7, command="pytest",
        provenance=Provenance(), trace_folder=None,
    )  # fmt: skip
    runner = CellRunner(cast(Device, device), open_scheduler("native"), lambda *_: None)
    record, _ = measure_alone(runner, request)
    kept = json.loads(record.model_dump_json())
    del kept["started"], kept["duration_s"]
    return kept, sum(pool.repeats.replayed for pool in pools)


def _streams(name: str, how_many: str) -> int:
    range_ = workload_class(name).stream_range
    if how_many == "recommended":
        return range_.recommended
    if how_many == "fewest":
        return range_.least
    streams = 32 if how_many == "many" else 2 * range_.recommended + 1
    if not range_.least <= streams <= range_.most:
        pytest.skip(f"{name} does not take {streams} streams")
    return streams


@pytest.mark.parametrize("dispatch", ["eager", "graph"])
@pytest.mark.parametrize(
    "how_many",
    [
        "recommended",
        pytest.param("fewest", marks=pytest.mark.slow),
        pytest.param("odd", marks=pytest.mark.slow),
        pytest.param("many", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=[] if each in _ALWAYS else pytest.mark.slow) for each in WORKLOADS],
)
def test_a_workload_has_the_record_of_a_full_simulation(
    name: str, how_many: str, dispatch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = _streams(name, how_many)
    quick, replayed = _record(name, streams, dispatch)
    monkeypatch.setattr(repeats, "_MOST_STEPS", 0)
    full, none = _record(name, streams, dispatch)
    assert quick == full
    assert none == 0
    if quick["status"] == "ok":
        assert replayed >= _ITERATIONS - 2


def test_a_workload_that_never_waits_has_the_record_of_a_full_simulation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quick, _ = _record("hetero_kernels", 4, "eager", "end_only")
    monkeypatch.setattr(repeats, "_MOST_STEPS", 0)
    assert quick == _record("hetero_kernels", 4, "eager", "end_only")[0]


_STREAMS = 3
_works: st.SearchStrategy[Work] = st.one_of(
    st.builds(
        KernelWork, st.integers(1, 30_000), st.integers(1, 5_000), st.sampled_from([1, 4, 40])
    ),
    st.builds(CopyWork, st.integers(1, 2_000_000), st.integers(0, 1)),
)
# Few of everything: iterations are to be alike, and to depart from one another late.
_stream = st.integers(0, _STREAMS - 1)
_event = st.integers(0, 1)
_launch = st.tuples(st.just("launch"), _stream, st.integers(0, 2))
_step = st.one_of(
    _launch,
    _launch,
    st.tuples(st.just("record"), _stream, _event),
    st.tuples(st.just("wait"), _stream, _event),
    st.tuples(st.just("record all"), st.just(0), _event),
    st.tuples(st.just("graph"), _stream, st.just(0)),
    st.tuples(st.just("sleep"), st.just(0), st.sampled_from([700, 9_000])),
)
_asking = st.one_of(
    st.tuples(st.just("query"), st.just(0), _event),
    st.tuples(st.just("wait for event"), st.just(0), _event),
    st.tuples(st.just("wait for stream"), _stream, st.just(0)),
    st.tuples(st.just("trace"), st.just(0), st.integers(0, 1)),
)
_Script = list[tuple[str, int, int]]


class _Played:
    """Plays scripts on a device and writes down every time that anyone could see."""

    def __init__(
        self, works: list[list[Work]], captured: _Script, noise: NoiseModel | None
    ) -> None:
        self.device = SimulatedDevice("h200", noise)
        self.seen: list[Any] = []
        self._functions = [self._launchable(each) for each in works]
        self._captured = captured

    def _launchable(self, works: list[Work]) -> Launchable:
        def enqueue() -> None:
            for work in works:
                self.device.costs.add(work)

        return enqueue

    def play(self, scripts: list[_Script]) -> int:
        device = self.device
        with device.open_streams(_STREAMS, [0, 1, 0]) as pool:
            self.pool = pool
            self.events: list[Event] = [device.new_event() for _ in range(2)]

            def captured(streams: Any) -> None:
                for _, stream, number in self._captured:
                    streams[stream].launch(self._functions[number])

            self.graph = graph(cast(Device, device), pool, captured, False)
            for script in scripts:
                for step in script:
                    self._take(*step)
                    self.seen.append(device.clock_ns())
                pool.synchronize()
                times = [[point.when_ns for point in e.points] for e in self.events]  # type: ignore[attr-defined]
                self.seen += [device.clock_ns(), times]
            return pool.repeats.replayed

    def _take(self, what: str, stream: int, number: int) -> None:
        pool, device = self.pool, self.device
        if what == "launch":
            pool.streams[stream].launch(self._functions[number])
        elif what == "record":
            pool.streams[stream].record(self.events[number])
        elif what == "wait":
            pool.streams[stream].wait(self.events[number])
        elif what == "record all":
            pool.record_all(self.events[number])
        elif what == "graph":
            self.graph.enqueue(pool.streams)
        elif what == "sleep":
            device.sleep_until_ns(device.clock_ns() + number)
        elif what == "query":
            self.seen.append(self.events[number].query())
        elif what == "wait for event":
            self.events[number].synchronize()
        elif what == "wait for stream":
            pool.streams[stream].synchronize()
        else:
            self._trace(held=bool(number))

    def _trace(self, *, held: bool) -> None:
        """Two rounds with a wait between them, as passes that trace iterations do it."""

        def rounds() -> None:
            for _ in range(1 if held else 2):
                for stream in self.pool.streams:
                    stream.launch(self._functions[0], tag="some")
                if not held:
                    self.pool.synchronize()

        traced = self.pool.held_timeline if held else self.pool.timeline
        self.seen.append(traced(rounds))


@settings(deadline=None, max_examples=60)
@given(
    works=st.lists(st.lists(_works, min_size=1, max_size=3), min_size=3, max_size=3),
    captured=st.lists(_launch, min_size=1, max_size=4),
    first=st.lists(_step, max_size=8),
    changes=st.lists(st.tuples(st.integers(0, 8), _step | _asking), max_size=4),
    order=st.lists(st.integers(0, 4), max_size=10),
    noise=st.sampled_from(
        [
            None,
            None,
            NoiseModel(1, run=0.2),
            NoiseModel(1, run=0.2, jitter=0.1),
        ]
    ),
)
def test_no_script_has_other_times_than_in_a_full_simulation(
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
    _compare(works, captured, scripts, noise)


def test_what_iterations_wait_for_and_what_they_leave_behind_tells_them_apart() -> None:
    begin: _Script = [
        ("launch", 0, 0), ("record", 0, 0), ("launch", 2, 1), ("record", 2, 1),
    ]  # fmt: skip
    on_first: _Script = [*begin, ("wait", 1, 0), ("launch", 1, 2)]
    on_second: _Script = [*begin, ("wait", 1, 1), ("launch", 1, 2)]
    slept: list[_Script] = [
        [("launch", 0, 1), ("sleep", 0, time_ns), ("launch", 1, 1), ("record", 1, 0)]
        for time_ns in (700, 9_000)
    ]
    # The front end is slower for another queue than the one it served last.
    of_first: _Script = [("launch", 0, 0)]
    of_second: _Script = [("launch", 1, 2)]
    departs: _Script = [("launch", 0, 0), ("launch", 0, 1)]
    scripts = [on_first, on_first, on_second, on_second, on_first, on_second]
    scripts += [slept[0], slept[0], slept[1], slept[1], slept[0], slept[1]]
    scripts += [of_first, of_first, of_first, of_second, of_first, of_second, departs]
    works: list[list[Work]] = [[KernelWork(90_000)], [KernelWork(20_000)], [KernelWork(1_000)]]
    assert _compare(works, [("launch", 0, 0)], scripts, None) > 0


def _compare(
    works: list[list[Work]], captured: _Script, scripts: list[_Script], noise: NoiseModel | None
) -> int:
    quick = _Played(works, captured, noise)
    replayed = quick.play(scripts)
    full = _Played(works, captured, noise)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeats, "_MOST_STEPS", 0)
        assert full.play(scripts) == 0
    assert quick.seen == full.seen
    return replayed
