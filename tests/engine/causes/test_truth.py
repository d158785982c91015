"""Planted delays get the right cause, and a run without any gets none of them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

import pytest
import torch

from pytest_hwqueue.data.metrics.attribution import Request, attribute
from pytest_hwqueue.data.records.tracing import Level, Refusal
from pytest_hwqueue.engine.causes import traced_pass as traced_pass_module
from pytest_hwqueue.engine.causes.perf_events import RING_BYTES, PerfTracer, Tracing
from pytest_hwqueue.engine.tenants.open_loop import Demand, Window, serve
from pytest_hwqueue.parts.devices.cpu_counters import RunDelays
from pytest_hwqueue.parts.devices.host import HostDevice
from pytest_hwqueue.parts.devices.protocol import Stream
from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.parts.devices.simulated.noise import NoiseModel
from tests.engine.causes.victims import need

from .traced import Traced, trace, tracing_by

_RIGHT = 0.95


def kernels(*launches: tuple[int, Callable[[], None]]) -> Callable[[Sequence[Stream]], None]:
    """Launches of kernels, each on a stream."""

    def enqueue(streams: Sequence[Stream]) -> None:
        for index, kernel in launches:
            streams[index].launch(kernel)

    return enqueue


def assert_own_work(found: Traced, planted: Sequence[int], what: str) -> None:
    """Assert that planted requests have it for their cause, by name, and that no others have."""
    own = {number: one.what for number, one in found.found().items() if one.cause == "own work"}
    assert sum(own.get(number) == what for number in planted) >= _RIGHT * len(planted)
    assert own.keys() <= set(found.planted_requests())


def sines(streams: Sequence[Stream]) -> None:
    """A usual request of a simulated device: a kernel on each stream."""
    for stream in streams:
        stream.launch(torch.sin, torch.empty(1 << 22))


def test_a_long_kernel_on_a_simulated_device_is_the_requests_own_work() -> None:
    device = SimulatedDevice("h200", NoiseModel(seed=1, jitter=0.1))
    found = trace(device, 2, sines, kernels((1, device.kernel_of(400_000))))
    assert found.causes.requests == 500
    planted = found.planted_requests()
    assert len(planted) >= 19
    assert_own_work(found, planted, "spin")


def test_a_clean_simulated_run_is_not_attributed_and_says_what_is_not_seen() -> None:
    device = SimulatedDevice("h200", NoiseModel(seed=1, jitter=0.1))
    found = trace(device, 2, sines)
    causes = [one.cause for one in found.found().values()]
    # How requests fall into chunks depends on this machine, and so the draws of their kernels. Of a
    # slow one whose kernels are all the longer half, that may explain just half of its excess.
    assert {*causes} <= {None, "own work"}
    assert sum(cause is None for cause in causes) >= 0.5 * len(causes) > 0
    # Its kernels vary, and that lies on the device.
    tail = found.causes.tails["p95"]
    assert " % unexplained (" in tail.words
    assert set(tail.not_seen) == {
        "descheduled", "interrupted", "garbage collection", "compilation", "allocation", "blocked",
        "time slice", "generator late", "throttled",
    }  # fmt: skip
    assert not set(tail.not_seen) & set(tail.shares)
    told = found.causes
    assert (told.level, told.lost, told.clock_offset_ns, told.launch_pairs, told.interrupts) == (
        "none", None, None, None, None,
    )  # fmt: skip
    assert "virtual time" in told.refused_levels[0].reason
    fewer = trace(device, 1, sines, requests=100).causes
    assert "1000 independent ones suffice" in fewer.refused["p99"]


class LateDevice(SimulatedDevice):
    """A simulated device whose host wakes up late each 25th time."""

    def __init__(self) -> None:
        super().__init__("h200")
        self.sleeps = 0
        self.late_from_ns: list[int] = []

    def sleep_until_ns(self, when_ns: int) -> None:
        self.sleeps += 1
        if self.sleeps % 25 == 0:
            self.late_from_ns.append(when_ns)
            when_ns += 300_000
        super().sleep_until_ns(when_ns)


def test_a_late_generator_on_a_simulated_device_is_found() -> None:
    device = LateDevice()
    draw = random.Random(2)
    kernel = device.kernel_of(50_000)
    schedule = [number * 1_000_000 + draw.randrange(200_000) for number in range(500)]
    with device.open_streams(1) as pool:

        def request() -> None:
            pool.streams[0].launch(kernel)
            pool.synchronize()

        begin_ns = device.clock_ns() + 1_000_000
        window = Window(begin_ns, begin_ns + 600_000_000)
        log = serve(device, [request], Demand(schedule), window)
    times = zip(
        log.scheduled_ns, [0, *log.finished_ns[:-1]], log.started_ns, log.finished_ns, strict=True
    )
    requests = [
        Request(number, due, max(due, free), started, finished)
        for number, (due, free, started, finished) in enumerate(times)
    ]
    tail = {one.request: one.cause for one in attribute(requests, [], {}).tails["p95"].requests}
    late = {one.number for one in requests if begin_ns + one.arrival_ns in device.late_from_ns}
    assert len(late) >= 19
    assert sum(tail.get(number) == "generator late" for number in late) >= _RIGHT * len(late)
    assert set(tail) <= late


def test_a_long_kernel_on_a_second_stream_of_the_host_is_own_work() -> None:
    device = HostDevice()
    short = device.kernel_of(200_000)
    on_cpu_ns: dict[int, int] = {}

    def planted() -> None:
        begin_ns, before_ns = time.perf_counter_ns(), time.thread_time_ns()
        # By the clock: the same work takes twice as long on a core that others slow down.
        while time.thread_time_ns() - before_ns < 6_000_000:
            short()
        on_cpu_ns[begin_ns] = time.thread_time_ns() - before_ns

    usual = kernels((0, device.kernel_of(200_000)))
    found = trace(device, 2, usual, kernels((1, planted)), requests=750)
    # Those that took what the kernel took: what else a busy machine delayed is nobody's plant.
    # Where it delayed usual requests by more than the kernel takes, some are not in the tail.
    requests = [
        one.number
        for one in found.passed.requests
        for at, spent_ns in on_cpu_ns.items()
        if one.number in found.found()
        and one.started_ns < at < one.finished_ns
        and one.finished_ns - one.started_ns < 1.3 * spent_ns
    ]
    # With fewer a single one that a busy machine disturbed otherwise is more than 5 %.
    if len(requests) < 20:
        pytest.skip(f"this machine is too busy: {len(requests)} kernels ran undisturbed")
    assert_own_work(found, requests, "planted")


@pytest.mark.parametrize(("level", "refused", "counted"), [
    ("perf", [Refusal("perf", 13, "no right")], True),
    ("rusage", [Refusal("perf", None, "no tracefs"), Refusal("perf", 13, "no right")], True),
    ("rusage", [Refusal("perf", None, "no tracefs"), Refusal("perf", 13, "no right")], False),
])  # fmt: skip
def test_at_each_level_it_is_said_what_is_missed(
    monkeypatch: pytest.MonkeyPatch, level: Level, refused: list[Refusal], counted: bool
) -> None:
    if level == "perf":
        need("switches")
    if not counted:
        monkeypatch.setattr(traced_pass_module, "RunDelays", lambda _: RunDelays([]))

    def opened(tids: Sequence[int], ring_bytes: int = RING_BYTES) -> Tracing:
        perf = PerfTracer(tids, None, ring_bytes) if level == "perf" else None
        return Tracing(level, tuple(refused), perf)

    device = HostDevice()
    with tracing_by(opened):
        causes = trace(device, 2, kernels((0, device.kernel_of(100_000))), requests=80).causes
    assert (causes.level, causes.interrupts) == (level, None)
    told = [(one.level, one.errno) for one in causes.refused_levels]
    assert told == [(one.level, one.errno) for one in refused]
    tail = causes.tails["p95"]
    assert "no right" in tail.not_seen["interrupted"]
    assert tail.not_seen["allocation"] == "allocations of the CPU's memory cannot be seen"
    if level == "perf":
        assert causes.lost == 0
        assert {"descheduled", "blocked"} <= set(tail.shares)
        # One launch a request: what lies between two is the host's waiting.
        assert causes.launch_pairs is not None
        assert causes.launch_pairs.with_switch + causes.launch_pairs.without_switch == 0
        assert "not who ran instead" in causes.limits[0]
        assert causes.limits[0].endswith("no right")
        return
    # Waiting for a core is counted where the kernel does.
    assert (causes.launch_pairs, causes.lost) == (None, None)
    assert "no tracefs; no right" in tail.not_seen["blocked"]
    assert "not when" in causes.limits[0]
    assert ("descheduled" in tail.shares) == counted
    assert counted or "no times on the run queue" in tail.not_seen["descheduled"]
