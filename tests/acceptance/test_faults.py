"""Faults that must be caught: the one of --hwq-fault, and some planted in the session's process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_hwqueue.engine.cell import runner
from pytest_hwqueue.parts.devices.compute_units import open_pool
from pytest_hwqueue.parts.devices.simulated.device import SimulatedReader
from pytest_hwqueue.parts.workloads.registry import workload_class
from tests.acceptance.inner import SUITE, records_in
from tests.conftest import RunInProcess

SIMULATED = ("--hwq-device=sim:h200", "--hwq-iterations=40", "--hwq-warmup=5")
HOST = ("--hwq-device=cpu", "--hwq-iterations=40", "--hwq-max-time=1")

Measure = Callable[..., dict[str, Any]]


@pytest.fixture
def measure(
    run_in_process: RunInProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Measure:
    """Measure a workload of the suite in a session in this process; return its only record."""
    monkeypatch.chdir(SUITE.parent)

    def measure(status: str, workload: str, *arguments: str) -> dict[str, Any]:
        result = run_in_process(
            str(SUITE), "-p", "no:cacheprovider", f"--hwq-workload={workload}",
            f"--hwq-json={tmp_path}/session.json", f"--hwq-dir={tmp_path}/records", *arguments,
        )  # fmt: skip
        assert result.ret == (0 if status == "ok" else 1)
        (record,) = records_in(tmp_path / "session.json")
        assert record["status"] == status, record["reason"]
        return record

    return measure


@pytest.mark.parametrize(
    ("workload", "streams"),
    [
        ("large_gemm_only", 4), ("large_gemm_only", 32), ("tiny_kernel_stress", 1),
        pytest.param("tiny_kernel_stress", 32, marks=pytest.mark.slow),
        ("hetero_kernels", 8), ("graph_subgraphs", 8),
    ],
)  # fmt: skip
def test_a_planted_slowness_is_that_of_the_judged_figure(
    measure: Measure, workload: str, streams: int
) -> None:
    """Whatever bounds the cell: kernels 10 % longer are hidden where the front end is full."""
    arguments = (*SIMULATED, f"--hwq-streams={streams}", "--hwq-dispatch=graph", "--hwq-lean")
    plain = measure("ok", workload, *arguments)
    slower = measure("ok", workload, *arguments, "--hwq-fault=slower:10")
    ratio = (
        slower["metrics"]["latency"]["p50"]["value"] / plain["metrics"]["latency"]["p50"]["value"]
    )
    assert ratio == pytest.approx(1.10, abs=0.02)
    assert plain["faults"] == []
    assert slower["faults"] == ["slower:10"]
    (note,) = [each for each in slower["notes"] if each.startswith("planted")]
    assert note.startswith("planted to be +10%: P50 +")


def test_everything_slower_on_the_host(measure: Measure) -> None:
    arguments = ("large_gemm_only", *HOST, "--hwq-streams=1")
    plain = measure("ok", *arguments)
    slower = measure("ok", *arguments, "--hwq-fault=slower:300")
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
    record = measure("ok", "large_gemm_only", *SIMULATED, "--hwq-streams=2")
    assert record["telemetry"]["throttled"][0]["reasons"] == ["heat"]
    assert any("while throttled" in note for note in record["notes"])


@pytest.mark.parametrize(
    ("device", "dispatch"), [(SIMULATED, "eager"), (SIMULATED, "graph"), (HOST, "eager")]
)
@pytest.mark.parametrize("lean", [(), ("--hwq-lean",)])
def test_aliased_streams_are_invalid(
    measure: Measure, monkeypatch: pytest.MonkeyPatch, device: tuple[str, ...], dispatch: str,
    lean: tuple[str, ...],
) -> None:  # fmt: skip
    """Also in a comparison, which measures no timeline."""
    workload = workload_class("tiny_kernel_stress")
    iterate = workload.iterate
    monkeypatch.setattr(
        workload, "iterate", lambda self, streams: iterate(self, [streams[0]] * len(streams))
    )
    asked = ("--hwq-streams=4", f"--hwq-dispatch={dispatch}")
    record = measure("invalid", "tiny_kernel_stress", *device, *asked, *lean)
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
    record = measure("failed", "hetero_kernels", *arguments)
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
    proof = measure("ok", "hetero_kernels", *arguments)["scheduler_proof"]
    assert proof["evidence"].endswith("urgent: 32 (0-31); the others: 100 (32-131)")
    monkeypatch.setattr(runner, "cell_partitions", lambda *_: None)
    record = measure("failed", "hetero_kernels", *arguments)
    assert record["reason"].startswith("NotProven: green-context:urgent=32: a stream of cell, in")
    assert record["samples"] is None
