"""Threads that launch at once on the model: what its locks make calls wait is known."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hwqueue.data.errors import DeviceError, RecordError
from pytest_hwqueue.data.records.cell import RunRecord
from pytest_hwqueue.judge.baselines.runs import cell_of_record
from pytest_hwqueue.parts.devices.simulated import profile
from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.parts.devices.simulated.launching import (
    ModelledCall,
    made_calls,
    window_of_calls,
)
from pytest_hwqueue.parts.workloads.registry import workload_class
from tests.parts.workloads.cells import measured

WORKLOAD = workload_class("launch_contention")


def planted(folder: Path, driver_ns: int, interpreter_ns: int) -> SimulatedDevice:
    """An H200 with locks that are held for so long."""
    file = Path(profile.__file__).parent / "profiles" / "h200.yaml"
    values: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    values["launch_locks"] = {
        "driver_ns": {"value": driver_ns, "source": "planted"},
        "interpreter_ns": {"value": interpreter_ns, "source": "planted"},
    }
    path = folder / "planted.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return SimulatedDevice(str(path))


def p99_ns(record: RunRecord) -> float | None:
    latency = record.metrics.latency
    return None if latency is None or latency.p99.value is None else latency.p99.value * 1e6


@settings(max_examples=50, deadline=None)
@given(
    threads=st.integers(1, 64),
    unlocked_ns=st.integers(0, 10_000),
    driver_ns=st.integers(1, 10_000),
    interpreter_ns=st.integers(0, 10_000),
)
def test_calls_wait_for_those_of_the_other_threads(
    threads: int, unlocked_ns: int, driver_ns: int, interpreter_ns: int
) -> None:
    """A closed circle of threads turns as slowly as its slowest lock, or as one call takes."""
    call = ModelledCall(unlocked_ns, driver_ns)
    made = made_calls(call, threads, 20 * threads, interpreter_ns, 7)
    turn_ns = max(
        threads * driver_ns, threads * interpreter_ns, unlocked_ns + driver_ns + interpreter_ns
    )
    last = made[-threads:]
    assert {each.returned_ns - each.begun_ns for each in last} == {turn_ns - interpreter_ns}
    assert window_of_calls(made, threads).calls == 20 * threads
    # No lock is held by two at once.
    for before, after in pairwise(made):
        assert after.launched_ns - before.launched_ns >= driver_ns
        assert after.returned_ns - before.returned_ns >= interpreter_ns


@pytest.mark.parametrize("threads", [1, 8, 64])
def test_p99_is_the_number_of_threads_times_the_drivers_lock(threads: int) -> None:
    """By default the driver has one lock, held for all of a graph's launch."""
    device = SimulatedDevice("h200")
    record = measured(WORKLOAD, threads, device, dispatch="graph")
    host = device.profile.host
    alone_ns = host.graph_launch_ns.value + host.graph_node_launch_ns.value
    assert p99_ns(record) == pytest.approx(threads * alone_ns)
    (rate,) = record.metrics.throughput
    assert rate.unit == "launches/s"
    assert float(rate) == pytest.approx(1e9 / alone_ns, rel=1e-3)
    assert record.samples is not None
    found = record.samples.launching
    assert found is not None
    assert (found.launchers, found.by) == (threads, "threads")
    assert found.inside == pytest.approx(threads, rel=0.02)
    assert (found.alone_ns, found.control_ns, found.explained) == (alone_ns, alone_ns, 0.0)
    assert record.simulated
    cell_of_record(record, "session")


def test_planted_lock_of_the_driver_is_found_beside_a_quick_interpreter(tmp_path: Path) -> None:
    device = planted(tmp_path, driver_ns=5000, interpreter_ns=100)
    record = measured(WORKLOAD, 8, device, dispatch="graph")
    assert p99_ns(record) == pytest.approx(8 * 5000 - 100)
    assert record.samples is not None
    assert record.samples.launching is not None
    assert record.samples.launching.explained == 0.0


def test_planted_lock_of_the_interpreter_is_no_figure_of_the_driver(tmp_path: Path) -> None:
    """Of 8 threads a call takes 8 x 5 - 4 µs, and 8 x 4 - 4 without the driver: 23 more."""
    device = planted(tmp_path, driver_ns=5000, interpreter_ns=4000)
    record = measured(WORKLOAD, 8, device, dispatch="graph")
    assert record.status == "ok"
    assert (record.metrics.latency, record.metrics.throughput) == (None, [])
    assert set(record.metrics.tags) == {"interpreter", "control"}
    assert record.samples is not None
    assert record.samples.launching is not None
    assert record.samples.launching.explained == pytest.approx(23 / 36, rel=1e-3)
    reason = record.samples.launching.refused
    assert reason.startswith("interpreter: 63.9 % of this P99 is there without the driver")
    assert record.metrics.refused["latency"] == record.metrics.refused["throughput"] == reason
    assert record.metrics.tags["interpreter"].p99.value == pytest.approx(0.036)
    assert record.metrics.tags["control"].p99.value == pytest.approx(0.028)
    with pytest.raises(RecordError, match=r"interpreter: 63\.9 %"):
        cell_of_record(record, "session")


def test_an_eager_launch_runs_python_and_is_the_interpreters() -> None:
    record = measured(WORKLOAD, 2, SimulatedDevice("h200"), dispatch="eager")
    assert record.metrics.latency is None
    assert "such a launch runs Python" in record.metrics.refused["latency"]


def test_only_planted_locks_change_what_a_profiles_figures_are_of(tmp_path: Path) -> None:
    """Runs that were stored before there were any stay comparable."""
    plain, other = SimulatedDevice("h200"), planted(tmp_path, 5000, 0)
    digests = [each.fingerprint().hard["profile_sha256"] for each in (plain, other)]
    assert digests[0] != digests[1]
    assert plain.profile.launch_locks is None


def test_a_slower_model_has_a_driver_that_holds_its_lock_for_longer() -> None:
    device = SimulatedDevice("h200")
    with device.open_streams(4) as pool, device.slowed(1.1):
        window = pool.launching_window([device.kernel_of(1000)] * 4, 40, 10)
        pool.synchronize()
    alone_ns = device.profile.host.kernel_launch_ns.value
    assert max(window.latencies()) == pytest.approx(4 * 1.1 * alone_ns)


def test_threads_that_would_wait_for_their_stream_are_refused() -> None:
    device = SimulatedDevice("h200")
    with device.open_streams(2) as pool:
        kernel = device.kernel_of(1000)
        with pytest.raises(DeviceError, match="not modelled"):
            pool.launching_window([kernel, kernel], 11, 5)
        assert pool.launching_window([kernel, kernel], 10, 5).calls == 10
        pool.synchronize()
