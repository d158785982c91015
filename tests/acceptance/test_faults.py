"""Faults that must be caught: the one of --hwq-fault, and some planted in the session's process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_hwqueue.devices.compute_units import open_pool
from pytest_hwqueue.devices.simulated.device import SimulatedReader
from pytest_hwqueue.harness import runner
from pytest_hwqueue.suite import plugin_name
from pytest_hwqueue.workloads.registry import workload_class

SUITE = Path(__file__).parents[2] / "benchmarks"
SIMULATED = ("--hwq-device=sim:h200", "--hwq-iterations=40", "--hwq-warmup=5")
HOST = ("--hwq-device=cpu", "--hwq-iterations=200", "--hwq-max-time=3")

Measured = tuple[int, str, list[dict[str, Any]]]
Measure = Callable[..., Measured]


@pytest.fixture
def measure(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Measure:
    """Measure a workload of the suite in a session in this process; return what came of it."""
    monkeypatch.setenv("PYTHONPATH", str(SUITE.parent))
    monkeypatch.chdir(SUITE.parent)
    for name in os.environ:
        if name.startswith(("HWQ_", "PYTEST_XDIST_")):
            monkeypatch.delenv(name)
    number = 0

    def measure(workload: str, *arguments: str) -> Measured:
        nonlocal number
        number += 1
        file = tmp_path / f"{number}.json"
        all_arguments = [
            "-p", plugin_name(), str(SUITE), "-p", "no:cacheprovider", "-p", "no:faulthandler",
            f"--hwq-workload={workload}", f"--hwq-json={file}", f"--hwq-dir={tmp_path}/records",
            "--hwq-isolation=none", *arguments,
        ]  # fmt: skip
        exit_status = int(pytest.main(all_arguments))
        output = "".join(capsys.readouterr())
        return exit_status, output, json.loads(file.read_text())["records"] if file.exists() else []

    return measure


def only(measured: Measured, status: str) -> dict[str, Any]:
    exit_status, output, records = measured
    assert exit_status == (0 if status == "ok" else 1), output
    (record,) = records
    assert record["status"] == status, record["reason"]
    return record


def latency(record: dict[str, Any], percentile: str) -> float:
    value: float = record["metrics"]["latency"][percentile]
    return value


def test_everything_slower_is_measured_as_slower(measure: Measure) -> None:
    arguments = (*SIMULATED, "--hwq-streams=4", "--hwq-dispatch=graph")
    plain = only(measure("large_gemm_only", *arguments), "ok")
    slower = only(measure("large_gemm_only", *arguments, "--hwq-fault=slower:10"), "ok")
    ratio = latency(slower, "p50") / latency(plain, "p50")
    assert ratio == pytest.approx(1.10, abs=0.005)  # launching costs as much as before
    assert plain["faults"] == []
    assert slower["faults"] == ["slower:10"]


def test_everything_slower_on_the_host(measure: Measure) -> None:
    arguments = ("large_gemm_only", *HOST, "--hwq-streams=1")
    plain = only(measure(*arguments), "ok")
    slower = only(measure(*arguments, "--hwq-fault=slower:300"), "ok")
    # Each launch spins about three times as long as it took: in its latency, not behind it.
    name = plain["primary"]["name"]
    least = [min(record["samples"]["tags_ns"][name]) for record in (plain, slower)]
    assert least[1] > 2 * least[0]


def test_a_throttled_clock_is_said(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    read = SimulatedReader.read
    # Time that was spent throttled so far, as drivers count it: none of it in the second half.
    spent = iter([*range(0, 60, 10), *[50] * 1000])
    monkeypatch.setattr(
        SimulatedReader, "read",
        lambda self: replace(read(self), violation_counters={"heat": next(spent)}),
    )  # fmt: skip
    record = only(measure("large_gemm_only", *SIMULATED, "--hwq-streams=2"), "ok")
    assert record["telemetry"]["throttled"][0]["reasons"] == ["heat"]
    assert any("while throttled" in note for note in record["notes"])


@pytest.mark.parametrize(
    ("device", "dispatch"), [(SIMULATED, "eager"), (SIMULATED, "graph"), (HOST, "eager")]
)
def test_aliased_streams_are_invalid(
    measure: Measure, monkeypatch: pytest.MonkeyPatch, device: tuple[str, ...], dispatch: str
) -> None:
    workload = workload_class("tiny_kernel_stress")
    iterate = workload.iterate
    monkeypatch.setattr(
        workload, "iterate", lambda self, streams: iterate(self, [streams[0]] * len(streams))
    )
    asked = ("--hwq-streams=4", f"--hwq-dispatch={dispatch}")
    record = only(measure("tiny_kernel_stress", *device, *asked), "invalid")
    assert record["reason"].startswith("4 streams were requested, but kernels ran on 1")


@pytest.mark.parametrize("given", [lambda asked: [0] * len(asked), lambda asked: asked[::-1]])
def test_priorities_that_are_not_as_asked_are_refused(
    measure: Measure, monkeypatch: pytest.MonkeyPatch, given: Callable[[list[int]], list[int]]
) -> None:
    monkeypatch.setattr(
        runner, "open_pool",
        lambda device, asked, *others, **more: open_pool(device, given(asked), *others, **more),
    )  # fmt: skip
    arguments = (*SIMULATED, "--hwq-streams=4", "--hwq-scheduler=stream-priority")
    record = only(measure("hetero_kernels", *arguments), "failed")
    assert record["reason"].startswith("NotProven: stream-priority: urgent streams should report")
    assert record["samples"] is None


@pytest.mark.parametrize("dispatch", ["eager", "graph"])
def test_streams_that_are_not_on_their_multiprocessors_are_refused(
    measure: Measure, monkeypatch: pytest.MonkeyPatch, dispatch: str
) -> None:
    arguments = (
        *SIMULATED, "--hwq-streams=4", "--hwq-scheduler=green-context:urgent=32",
        f"--hwq-dispatch={dispatch}",
    )  # fmt: skip
    proof = only(measure("hetero_kernels", *arguments), "ok")["scheduler_proof"]
    assert proof["evidence"].endswith("urgent: 32 (0-31); the others: 100 (32-131)")
    monkeypatch.setattr(runner, "cell_partitions", lambda *_: None)
    record = only(measure("hetero_kernels", *arguments), "failed")
    assert record["reason"].startswith("NotProven: green-context:urgent=32: a stream of cell, in")
    assert record["samples"] is None
