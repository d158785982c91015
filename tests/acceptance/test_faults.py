"""Each fault of --hwq-fault, planted where users would: caught with its cause, or refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_hwqueue.errors import BadFault
from pytest_hwqueue.faults.specification import Fault, impossible, parse_fault
from pytest_hwqueue.suite import plugin_name

if TYPE_CHECKING:
    from tests.conftest import Sessions

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
    sessions: Sessions,
) -> Measure:
    """Measure a workload of the suite in a session of its own; return what came of it.

    In this process, where torch is loaded already, unless the fault ends the process.
    """
    monkeypatch.setenv("PYTHONPATH", str(SUITE.parent))
    monkeypatch.chdir(SUITE.parent)
    for name in os.environ:
        if name.startswith(("HWQ_", "PYTEST_XDIST_")):
            monkeypatch.delenv(name)
    number = 0

    def measure(workload: str, *arguments: str, isolated: bool = False) -> Measured:
        nonlocal number
        number += 1
        file = tmp_path / f"{number}.json"
        all_arguments = [
            "-p", plugin_name(), str(SUITE), "-p", "no:cacheprovider", "-p", "no:faulthandler",
            f"--hwq-workload={workload}", f"--hwq-json={file}", f"--hwq-dir={tmp_path}/records",
            f"--hwq-isolation={'process' if isolated else 'none'}", *arguments,
        ]  # fmt: skip
        if isolated:
            done = sessions.run(SUITE.parent, *all_arguments)
            exit_status, output = done.returncode, done.stdout + done.stderr
        else:
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


def test_only_the_tail_slower(measure: Measure) -> None:
    arguments = (*SIMULATED, "--hwq-streams=2", "--hwq-dispatch=graph", "--hwq-iterations=400")
    plain = only(measure("large_gemm_only", *arguments), "ok")
    slower = only(measure("large_gemm_only", *arguments, "--hwq-fault=slower-tail:50:3"), "ok")
    plain, slower = plain["metrics"]["iteration"], slower["metrics"]["iteration"]
    assert slower["p50"] == pytest.approx(plain["p50"], rel=0.001)
    assert slower["p99"] == pytest.approx(1.5 * plain["p99"], rel=0.02)


def test_a_clock_dip_is_seen_by_telemetry(measure: Measure) -> None:
    arguments = (*SIMULATED, "--hwq-streams=2", "--hwq-iterations=400")
    fault = "--hwq-fault=clock-dip:40:0:50"
    record = only(measure("large_gemm_only", *arguments, fault), "ok")
    (span,) = record["telemetry"]["throttled"]
    assert span["reasons"] == ["planted clock dip"]
    assert any("while throttled" in note for note in record["notes"])
    slow = [
        ns for ns in record["samples"]["host_ns"] if ns > 1.3 * min(record["samples"]["host_ns"])
    ]
    # Half of the measuring time, in iterations longer by 40 %; the first three are no samples.
    assert len(slow) == pytest.approx(400 * 0.5 / 1.4 - 3, abs=4)


def test_aliased_streams_are_invalid(measure: Measure) -> None:
    arguments = (*SIMULATED, "--hwq-streams=8", "--hwq-fault=aliased-streams")
    record = only(measure("large_gemm_only", *arguments), "invalid")
    assert record["reason"].startswith("8 streams were requested, but kernels ran on 1")
    graph = only(measure("tiny_kernel_stress", *arguments, "--hwq-dispatch=graph"), "invalid")
    assert "kernels ran on 1" in graph["reason"]
    host = only(measure("large_gemm_only", *HOST, "--hwq-streams=2", arguments[-1]), "invalid")
    assert "kernels ran on 1" in host["reason"]


@pytest.mark.parametrize("fault", ["inverted-priority", "inactive-scheduler"])
def test_priorities_that_are_not_as_asked_are_refused(measure: Measure, fault: str) -> None:
    arguments = (*SIMULATED, "--hwq-streams=4", "--hwq-scheduler=stream-priority")
    record = only(measure("hetero_kernels", *arguments, f"--hwq-fault={fault}"), "failed")
    assert record["reason"].startswith("NotProven: stream-priority: urgent streams should report")
    assert record["samples"] is None


@pytest.mark.parametrize("dispatch", ["eager", "graph"])
def test_streams_that_are_not_on_their_multiprocessors_are_refused(
    measure: Measure, dispatch: str
) -> None:
    arguments = (
        *SIMULATED, "--hwq-streams=4", "--hwq-scheduler=green-context:urgent=32",
        f"--hwq-dispatch={dispatch}",
    )  # fmt: skip
    proof = only(measure("hetero_kernels", *arguments), "ok")["scheduler_proof"]
    assert proof["evidence"].endswith("urgent: 32 (0-31); the others: 100 (32-131)")
    record = only(measure("hetero_kernels", *arguments, "--hwq-fault=inactive-scheduler"), "failed")
    assert record["reason"].startswith("NotProven: green-context:urgent=32: a stream of cell, in")
    assert record["samples"] is None


def test_a_hidden_inversion_shows_in_the_urgent_latency(measure: Measure) -> None:
    arguments = (*SIMULATED, "--hwq-streams=8", "--hwq-scheduler=stream-priority")
    plain = only(measure("hetero_kernels", *arguments), "ok")
    inverted = only(
        measure("hetero_kernels", *arguments, "--hwq-fault=hidden-inverted-priority"), "ok"
    )
    assert plain["primary"]["name"] == "small"
    assert latency(inverted, "p50") > 2 * latency(plain, "p50")


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        ("crash:5", "failed", "the worker process died by SIGSEGV"),
        ("hang:5", "timeout", "not finished within 5 s (--hwq-timeout), in stage measure"),
        ("out-of-memory:5", "failed", "out of memory: "),
        ("device-error:5", "failed", "planted: the device failed"),
    ],
)
@pytest.mark.parametrize(
    "arguments",
    [pytest.param(HOST, id="cpu"), pytest.param(SIMULATED, id="sim", marks=pytest.mark.slow)],
)
def test_what_stops_a_cell_is_named(
    measure: Measure, arguments: Sequence[str], fault: str, status: str, reason: str
) -> None:
    timeout = ("--hwq-timeout=5",) if status == "timeout" else ()
    measured = measure(
        "large_gemm_only",
        *arguments,
        "--hwq-streams=2",
        f"--hwq-fault={fault}",
        *timeout,
        isolated=status == "timeout" or fault.startswith("crash"),
    )
    record = only(measured, status)
    assert reason in record["reason"]
    assert record["stage"] == "measure"
    assert record["faults"] == [fault]


def test_a_fault_that_the_device_cannot_have_is_refused(measure: Measure) -> None:
    exit_status, output, records = measure(
        "large_gemm_only", "--hwq-device=cpu", "--hwq-fault=clock-dip:10"
    )
    assert exit_status == pytest.ExitCode.USAGE_ERROR
    assert "--hwq-fault=clock-dip:10:40:60 needs a device of kind sim" in output
    assert not records


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("sloer:10", "there is no fault 'sloer'"),
        ("slower", "PERCENT is missing; slower takes slower:PERCENT"),
        ("slower:ten", "PERCENT is 'ten'"),
        ("slower:nan", "PERCENT is 'nan'"),
        ("slower:-1", "from 0.1 to"),
        ("crash:1.5", "give a whole number"),
        ("aliased-streams:1", "takes aliased-streams"),
        ("clock-dip:10:60:40", "START 60 is not before END 40"),
    ],
)
def test_what_is_no_fault_is_refused(text: str, reason: str) -> None:
    with pytest.raises(BadFault, match=reason.replace("(", r"\(")):
        parse_fault(text)


def test_faults_are_written_as_they_are_read() -> None:
    fault = parse_fault("slower-tail:50")
    assert str(fault) == "slower-tail:50:2"
    assert parse_fault(str(fault)) == fault
    assert impossible((fault,), "cpu") is None
    assert impossible((Fault("inverted-priority"),), "cpu") == (
        "--hwq-fault=inverted-priority needs a device of kind cuda, hip, sim"
    )
