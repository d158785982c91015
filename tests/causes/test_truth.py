"""Planted delays get the right cause, and a run without any gets none of them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import pytest_hwqueue
from pytest_hwqueue.causes import traced_pass as traced_pass_module
from pytest_hwqueue.devices.host import HostDevice
from pytest_hwqueue.devices.protocol import Stream
from pytest_hwqueue.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.devices.simulated.noise import NoiseModel
from pytest_hwqueue.harness.open_loop import Window, serve
from pytest_hwqueue.metrics.attribution import Request, attribute
from pytest_hwqueue.tracing.levels import Refusal, Tracing
from pytest_hwqueue.tracing.perf_events import RING_BYTES, PerfTracer

from ..tracing.victims import need
from .traced import Traced, trace

_HERE = Path(__file__).parent
_RIGHT = 0.95


def kernels(*launches: tuple[int, Callable[[], None]]) -> Callable[[Sequence[Stream]], None]:
    """Launches of kernels, each on a stream."""

    def enqueue(streams: Sequence[Stream]) -> None:
        for index, kernel in launches:
            streams[index].launch(kernel)

    return enqueue


def share_right(found: Traced, planted: Sequence[int], cause: str, what: str) -> float:
    """The share of planted requests that have a cause of this kind and name."""
    tail = found.found()
    right = [
        number in tail and (tail[number].cause, tail[number].what) == (cause, what)
        for number in planted
    ]
    return sum(right) / len(planted)


def others_with(found: Traced, cause: str) -> list[int]:
    """Requests of the tail that have a cause which was not planted into them."""
    planted = set(found.planted_requests())
    return [
        number
        for number, one in found.found().items()
        if number not in planted and one.cause == cause
    ]


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
    assert share_right(found, planted, "own work", "spin") >= _RIGHT
    assert not others_with(found, "own work")


def test_a_clean_simulated_run_is_not_attributed() -> None:
    device = SimulatedDevice("h200", NoiseModel(seed=1, jitter=0.1))
    found = trace(device, 2, sines)
    causes = [one.cause for one in found.found().values()]
    # How requests fall into chunks depends on this machine, and so which are in the tail.
    assert sum(cause is None for cause in causes) >= _RIGHT * len(causes) > 0
    # Its kernels vary, and that lies on the device.
    assert " % unexplained (" in found.causes.tails["p95"].words


def test_what_a_simulated_device_has_not_is_not_seen() -> None:
    device = SimulatedDevice("h200", NoiseModel(seed=1, jitter=0.1))
    causes = trace(device, 1, kernels((0, device.kernel_of(50_000))), requests=100).causes
    assert causes.level == "none"
    assert "virtual time" in causes.refused_levels[0].reason
    assert (causes.lost, causes.clock_offset_ns, causes.launch_pairs, causes.interrupts) == (
        None, None, None, None,
    )  # fmt: skip
    tail = causes.tails["p95"]
    unseen = {
        "descheduled", "interrupted", "garbage collection", "compilation", "allocation", "blocked",
        "time slice", "generator late", "throttled",
    }  # fmt: skip
    assert set(tail.not_seen) == unseen
    assert not unseen & set(tail.shares)
    assert "needs at least 368 requests" in causes.refused["p99"]


class LateDevice(SimulatedDevice):
    """A simulated device whose host now and then wakes up late."""

    late_ns = 300_000

    def __init__(self) -> None:
        super().__init__("h200")
        self.sleeps = 0
        self.late_from_ns: list[int] = []

    def sleep_until_ns(self, when_ns: int) -> None:
        self.sleeps += 1
        late = self.sleeps % 25 == 0
        if late:
            self.late_from_ns.append(when_ns)
        super().sleep_until_ns(when_ns + (self.late_ns if late else 0))


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
        log = serve(device, [request], schedule, Window(begin_ns, begin_ns + 600_000_000))
    free = [0, *log.finished_ns[:-1]]
    requests = [
        Request(number, due, max(due, before), started, finished)
        for number, (due, before, started, finished) in enumerate(
            zip(log.scheduled_ns, free, log.started_ns, log.finished_ns, strict=True)
        )
    ]
    tail = {one.request: one.cause for one in attribute(requests, [], {}).tails["p95"].requests}
    late = [begin_ns + one.arrival_ns in device.late_from_ns for one in requests]
    planted = [number for number, is_late in enumerate(late) if is_late]
    assert len(planted) >= 19
    right = [tail.get(number) == "generator late" for number in planted]
    assert sum(right) >= _RIGHT * len(planted)
    assert not [number for number in tail if not late[number]]


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
    tail = found.found()
    requests = [
        one.number
        for one in found.passed.requests
        for at, spent_ns in on_cpu_ns.items()
        if one.number in tail
        and one.started_ns < at < one.finished_ns
        and one.finished_ns - one.started_ns < 1.3 * spent_ns
    ]
    # With fewer a single one that a busy machine disturbed otherwise is more than 5 %.
    if len(requests) < 20:
        pytest.skip(f"this machine is too busy: {len(requests)} kernels ran undisturbed")
    assert share_right(found, requests, "own work", "planted") >= _RIGHT
    assert not others_with(found, "own work")


def test_perf_self_sees_no_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    need("perf-self")
    refused = (Refusal("perf-system", None, "no tracefs"),)

    def opened(tids: Sequence[int], ring_bytes: int = RING_BYTES) -> Tracing:
        return Tracing("perf-self", refused, PerfTracer(tids, None, ring_bytes))

    monkeypatch.setattr(traced_pass_module, "open_tracing", opened)
    device = HostDevice()
    causes = trace(device, 2, kernels((0, device.kernel_of(100_000))), requests=80).causes
    assert (causes.level, causes.lost) == ("perf-self", 0)
    tail = causes.tails["p95"]
    assert tail.not_seen["interrupted"] == "level perf-self sees no interrupts"
    assert "descheduled" in tail.shares
    assert causes.interrupts is None
    # One launch a request: what lies between two is the host's waiting.
    assert causes.launch_pairs is not None
    assert causes.launch_pairs.with_switch + causes.launch_pairs.without_switch == 0
    assert "nor who ran instead" in causes.limits[0]


@pytest.mark.parametrize("level", ["rusage", "none"])
def test_without_rights_the_next_level_says_what_it_cannot_see(
    monkeypatch: pytest.MonkeyPatch, level: Any
) -> None:
    refused = (Refusal("perf-system", 13, "no right"), Refusal("perf-self", 13, "no right"))
    asked: list[object] = []

    def opened(tids: object, ring_bytes: int = 0) -> Tracing:
        asked.append(tids)
        return Tracing(level, refused, None)

    monkeypatch.setattr(traced_pass_module, "open_tracing", opened)
    device = HostDevice()
    causes = trace(device, 2, kernels((0, device.kernel_of(100_000))), requests=80).causes
    assert asked
    assert causes.level == level
    assert [(one.level, one.errno) for one in causes.refused_levels] == [
        ("perf-system", 13), ("perf-self", 13),
    ]  # fmt: skip
    assert (causes.launch_pairs, causes.interrupts, causes.lost) == (None, None, None)
    tail = causes.tails["p95"]
    assert "interrupted" in tail.not_seen
    if level == "none":
        assert tail.not_seen["descheduled"] == "no right"
    else:
        assert "descheduled" in tail.shares
        assert "not when" in causes.limits[0]


def run_victim(requests: int, level: str, cpu: int | None = None) -> subprocess.Popen[str]:
    """Start a victim; return when it is about to trace."""
    pin = [] if cpu is None else ["taskset", "-c", str(cpu)]
    process = subprocess.Popen(
        [*pin, sys.executable, str(_HERE / "victim.py"), str(requests), level],
        stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(Path(pytest_hwqueue.__file__).parents[1])},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    return process


def finished(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def test_requests_that_a_stop_from_outside_hit_are_descheduled() -> None:
    need("perf-system")
    draw = random.Random(5)
    stops = []
    process = run_victim(800, "perf-system")
    try:
        time.sleep(0.4)
        for _ in range(16):
            time.sleep(draw.uniform(0.02, 0.05))
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.03)
            stops.append(time.monotonic_ns())
            process.send_signal(signal.SIGCONT)
        found = finished(process)
    finally:
        process.kill()
        process.wait()
    hit = [
        number
        for number, (begin, end) in enumerate(found["requests"])
        if any(begin < stop < end for stop in stops)
    ]
    assert len(hit) >= 8
    told = {number: (cause, what) for number, cause, what in found["tail"]}
    right = [told.get(number) == ("descheduled", "stopped by a signal") for number in hit]
    assert sum(right) >= _RIGHT * len(hit)
    others = [what for number, (_, what) in told.items() if number not in hit]
    assert "stopped by a signal" not in others


@pytest.mark.slow
@pytest.mark.parametrize("level", ["perf-system", "rusage"])
def test_requests_beside_a_busy_neighbour_on_the_same_core_are_descheduled(level: str) -> None:
    if level == "perf-system":
        need("perf-system")
    cpu = min(os.sched_getaffinity(0))
    process = run_victim(2500, level, cpu)
    neighbour = subprocess.Popen(
        [sys.executable, str(_HERE / "neighbour.py"), str(cpu), "3"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        output, _ = neighbour.communicate(timeout=60)
        found = finished(process)
    finally:
        for one in (process, neighbour):
            one.kill()
            one.wait()
    bursts = json.loads(output)
    lengths = sorted(end - begin for begin, end in found["requests"])
    usual = lengths[len(lengths) // 2]
    told = {number: cause for number, cause, _ in found["tail"]}
    # Those that lost most of a scheduler's slice to it.
    hit = [
        number
        for number, (begin, end) in enumerate(found["requests"])
        if number in told
        and end - begin > 2 * usual
        and any(begin < stop and start < end for start, stop in bursts)
    ]
    assert len(hit) >= 15
    assert sum(told[number] == "descheduled" for number in hit) >= _RIGHT * len(hit)
