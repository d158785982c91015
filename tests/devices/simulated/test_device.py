"""Workloads run unchanged on the modelled device, and always in the same nanoseconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from pytest_hwqueue.devices.launches import TagLog
from pytest_hwqueue.devices.protocol import Device, Stream
from pytest_hwqueue.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.devices.simulated.noise import NoiseModel
from pytest_hwqueue.errors import DeviceError
from pytest_hwqueue.harness.program import graph
from pytest_hwqueue.harness.timeline_pass import probe_queue_switch, timeline_pass
from pytest_hwqueue.metrics.timeline import tag_latencies
from pytest_hwqueue.workloads.registry import workload_class
from pytest_hwqueue.workloads.workload import Setup, Workload, parameters_for

P0 = ("hetero_kernels", "tiny_kernel_stress", "large_gemm_only")


def workload_named(name: str, size: str) -> Workload:
    found: Any = workload_class(name)
    workload: Workload = found(parameters_for(found, size, {}))
    return workload


def figures(name: str, streams: int, *, noise: NoiseModel | None = None) -> dict[str, Any]:
    """Everything the harness would measure, in virtual ns."""
    simulated = SimulatedDevice("h200", noise)
    device = cast(Device, simulated)
    workload = workload_named(name, "tiny")
    found: dict[str, Any] = {"host": [], "device": []}
    with simulated.open_streams(streams) as pool:
        workload.setup(Setup(device, streams, 7))
        pool.synchronize()
        pool.tags = tags = TagLog(device.new_event)
        start, end = device.new_event(), device.new_event()
        tagged: dict[str, list[int]] = {}
        for _ in range(4):
            tags.rewind()
            pool.streams[0].record(start)
            began = simulated.clock_ns()
            workload.iterate(pool.streams)
            pool.record_all(end)
            pool.synchronize()
            found["host"].append(simulated.clock_ns() - began)
            found["device"].append(device.elapsed_ns(start, end))
            tags.collect(device.elapsed_ns, tagged)
        found["tags"] = tagged
        pool.tags = None
        found["kernels"] = [
            (kernel.stream, kernel.launch, kernel.name, kernel.start_ns, kernel.end_ns)
            for kernel in pool.timeline(lambda: workload.iterate(pool.streams)).kernels
        ]
        program = graph(device, pool, workload.iterate, bool(workload.tags))
        began = simulated.clock_ns()
        program.enqueue(pool.streams)
        pool.synchronize()
        found["graph"] = simulated.clock_ns() - began
    return found


@pytest.mark.parametrize("streams", [2, 8, 32])
@pytest.mark.parametrize("name", P0)
def test_workloads_run_unchanged_in_the_same_nanoseconds(name: str, streams: int) -> None:
    first = figures(name, streams)
    assert first == figures(name, streams)
    assert all(device > 0 for device in first["device"])
    assert {kernel[0] for kernel in first["kernels"]} == set(range(streams))
    if name == "hetero_kernels":
        assert set(first["tags"]) == {"small", "large"}


@pytest.mark.slow
def test_another_process_with_another_hash_seed_finds_the_same() -> None:
    code = (
        "import json; from tests.devices.simulated import test_device as t; "
        "print(json.dumps([t.figures(name, 8) for name in t.P0], sort_keys=True))"
    )
    root = Path(__file__).parents[3]
    outputs = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
        environment.pop("LD_PRELOAD", None)
        run = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            cwd=root,
            check=False,
            capture_output=True,
            text=True,
        )
        assert run.returncode == 0, run.stderr
        outputs.append(run.stdout)
    assert outputs[0] == outputs[1]
    assert len(json.loads(outputs[0])) == len(P0)


@pytest.mark.parametrize("name", P0)
def test_the_harness_timeline_passes_run_on_it(name: str) -> None:
    device = SimulatedDevice("h200")
    workload = workload_named(name, "tiny")
    with device.open_streams(4) as pool:
        workload.setup(Setup(cast(Device, device), 4, 0))
        found = timeline_pass(pool, workload.iterate)
    assert found.summary.streams_used == 4


def test_the_probe_finds_the_queue_switch_cost_that_the_profile_gives() -> None:
    device = SimulatedDevice("h200")
    with device.open_streams(8) as pool:
        found = probe_queue_switch(cast(Device, device), pool).queue_switch
    assert found.overhead.difference == pytest.approx(1.6)


def test_a_launch_costs_the_host_what_the_profile_says() -> None:
    device = SimulatedDevice("h200")
    kernel = device.kernel_of(1_000)
    with device.open_streams(1) as pool:
        pool.streams[0].launch(kernel)
        assert device.clock_ns() == 12_000 + 7_000
        pool.streams[0].record()
        assert device.clock_ns() == 19_000 + 6_200
        pool.synchronize()
        assert device.clock_ns() == 25_200 + 4_000


def test_names_say_that_it_is_simulated() -> None:
    assert SimulatedDevice("h200").name == "simulated NVIDIA H200"
    assert SimulatedDevice("mi300x").name == "simulated AMD Instinct MI300X, not calibrated"
    device = SimulatedDevice("h200")
    assert (device.kind, device.label, device.connections) == ("sim", "sim:h200", 8)
    assert not device.capabilities.has_values


def test_handles_are_distinct_and_priorities_in_the_devices_numbers() -> None:
    device = SimulatedDevice("h200")
    with device.open_streams(64, [index % 8 for index in range(64)]) as pool:
        assert len({stream.handle for stream in pool.streams}) == 64
        assert pool.device_priorities()[:8] == [0, -1, -2, -3, -4, -5, -5, -5]


def test_an_urgent_stream_does_not_wait_for_what_is_queued() -> None:
    latencies = []
    for priority in (0, 1):
        device = SimulatedDevice("h200")
        with device.open_streams(3, [0, 0, priority]) as pool:
            a = torch.empty(8192, 8192, dtype=torch.bfloat16)

            def enqueue(streams: Sequence[Stream] = pool.streams, a: torch.Tensor = a) -> None:
                for stream in (*streams[:2], *streams[:2], *streams[:2]):
                    stream.launch(lambda: a @ a)
                streams[2].launch(lambda: a[0].add_(1.0), tag="small")

            latencies += tag_latencies(pool.timeline(enqueue))["small"]
    assert latencies[1] < latencies[0] / 1.5


def test_events_order_streams_and_have_device_time() -> None:
    device = SimulatedDevice("h200")
    long, short = device.kernel_of(100_000), device.kernel_of(1_000)
    with device.open_streams(2) as pool:
        first, second = pool.streams

        def enqueue() -> None:
            first.launch(long)
            second.wait(first.record())
            second.launch(short)

        timeline = pool.timeline(enqueue)
        start, end = device.new_event(), device.new_event()
        first.record(start)
        first.launch(long)
        first.record(end)
        assert not end.query()
        end.synchronize()
        assert end.query()
    before, after = timeline.kernels
    assert after.start_ns >= before.end_ns
    assert after.waits_for == (0,)
    assert 100_000 <= device.elapsed_ns(start, end) < 125_000


def test_polling_an_event_comes_to_an_end() -> None:
    device = SimulatedDevice("h200")
    with device.open_streams(1) as pool:
        pool.streams[0].launch(device.kernel_of(10**9))
        event = pool.streams[0].record()
        polls = 0
        while not event.query():
            polls += 1
        assert polls < 10
    assert device.clock_ns() >= 10**9


def test_held_work_starts_at_the_release() -> None:
    device = SimulatedDevice("h200")
    kernel = device.kernel_of(1_000)
    with device.open_streams(4) as pool:

        def enqueue() -> None:
            for stream in pool.streams * 500:
                stream.launch(kernel)

        timeline = pool.held_timeline(enqueue)
    assert timeline.released_ns is not None
    assert min(ran.start_ns for ran in timeline.kernels) == timeline.released_ns + 1_100
    assert max(ran.enqueued_ns for ran in timeline.kernels) <= timeline.released_ns


def test_the_host_waits_where_the_launch_queue_is_full() -> None:
    device = SimulatedDevice("h200")
    kernel = device.kernel_of(1_000_000)
    with device.open_streams(1) as pool:
        for _ in range(1100):
            pool.streams[0].launch(kernel)
        assert device.clock_ns() > 70_000_000
        pool.synchronize()


def test_streams_that_wait_for_each_other_are_told() -> None:
    device = SimulatedDevice("h200")
    with device.open_streams(2) as pool:
        first, second = pool.streams
        gate = device.new_event()
        gate.begin(pool)  # recorded by nobody
        first.wait(gate)
        second.launch(device.kernel_of(1))
        with pytest.raises(DeviceError, match="deadlock"):
            first.synchronize()


def test_an_iteration_across_streams_becomes_one_graph() -> None:
    device = SimulatedDevice("h200")
    kernel = device.kernel_of(10_000)

    def iterate(streams: Sequence[Stream]) -> None:
        streams[0].launch(kernel)
        fork = streams[0].record()
        for stream in streams[1:]:
            stream.wait(fork)
            stream.launch(kernel)

    with device.open_streams(3) as pool:
        program = graph(cast(Device, device), pool, iterate, False)
        start = pool.streams[0].record(device.new_event())
        program.enqueue(pool.streams)
        end = pool.streams[0].record(device.new_event())
        pool.synchronize()
    assert 20_000 <= device.elapsed_ns(start, end) < 45_000


def test_trace_is_labelled_simulated(tmp_path: Path) -> None:
    device = SimulatedDevice("h200")
    path = tmp_path / "trace.json"
    with device.open_streams(2) as pool:
        kernel = device.kernel_of(1_000)
        pool.export_trace(lambda: pool.streams[1].launch(kernel), str(path))
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    assert events[0]["args"]["name"] == "simulated NVIDIA H200"
    assert [event["tid"] for event in events if event["ph"] == "X"] == [1]


@pytest.mark.parametrize("count", [0, -1])
def test_too_few_streams_are_refused(count: int) -> None:
    with pytest.raises(DeviceError, match="at least 1"):
        SimulatedDevice("h200").open_streams(count)


def test_noise_is_seeded_and_off_unless_asked_for() -> None:
    plain = figures("large_gemm_only", 2)
    noise = NoiseModel(seed=3, session=0.1, run=0.05, jitter=0.2)
    noisy = figures("large_gemm_only", 2, noise=noise)
    assert noisy != plain
    assert noisy == figures("large_gemm_only", 2, noise=noise)
    assert noisy != figures("large_gemm_only", 2, noise=NoiseModel(seed=4, session=0.1))
    assert plain == figures("large_gemm_only", 2, noise=NoiseModel(seed=3))


def test_a_slowed_model_is_so_in_its_block() -> None:
    device = SimulatedDevice("h200")
    with device.model.slowed(1.5):
        assert device.kernel_factor(1) == 1.5
    assert device.kernel_factor(1) == 1.0


@pytest.mark.parametrize("bad", [{"session": 1.0}, {"run": -0.1}])
def test_noise_that_is_none_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        NoiseModel(0, **bad)
