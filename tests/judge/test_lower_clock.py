"""A simulated device whose clock is 10 % lower: from its telemetry to the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from pathlib import Path

import pytest

from pytest_hwqueue.data.records.cell import Cell, Metrics, RanksSummary, RunRecord, Samples, now
from pytest_hwqueue.data.records.files import cell_file_name
from pytest_hwqueue.data.records.telemetry import Telemetry, TelemetrySample
from pytest_hwqueue.engine.cell.closed_loop import Plan, measure
from pytest_hwqueue.engine.cell.program import eager
from pytest_hwqueue.engine.cell.stop_rule import StopRule
from pytest_hwqueue.judge.baselines.cell_file import read_cell, write_cell
from pytest_hwqueue.judge.baselines.runs import CellBaseline, add_runs, cell_of_record
from pytest_hwqueue.judge.baselines.sources import Source
from pytest_hwqueue.judge.judging import Judging
from pytest_hwqueue.judge.verdict import GateSettings, Verdict
from pytest_hwqueue.parts.devices.protocol import Stream
from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.parts.devices.simulated.noise import NoiseModel
from pytest_hwqueue.parts.devices.telemetry import TelemetryLog
from tests.conftest import make_record

_PLAN = Plan(StopRule(320, 2_000_000_000), warmup=0, sync_mode="per_iteration")
_CELL = Cell(
    name="cell", device="sim:h200", streams=1, scheduler="native", dispatch="eager",
    sync_mode="per_iteration", size=None,
)  # fmt: skip


def run_of(session: str, number: int, *, clock: float = 1.0, code: float = 1.0) -> CellBaseline:
    """Measure a run at a share of the clock, of a kernel of so many times its cycles."""
    device = SimulatedDevice("h200", NoiseModel(number, session, run=0.01, jitter=0.02))
    nominal = device.profile.sm_clock_mhz
    assert nominal is not None
    lower = nominal.model_copy(update={"value": nominal.value * clock})
    device.profile = device.profile.model_copy(update={"sm_clock_mhz": lower})
    device.slowdown = code / clock
    kernel = device.kernel_of(500_000)

    def iterate(streams: Sequence[Stream]) -> None:
        streams[0].launch(kernel)

    log = TelemetryLog(device.open_telemetry(), clock_ns=device.clock_ns)
    log.poll(0, force=True)

    def polled(done: int) -> None:
        log.poll(done)

    with device.open_streams(1) as pool:
        found = measure(device, pool, eager(device, iterate, False), _PLAN, polled)
    log.poll(found.iterations, force=True)
    samples = Samples(
        host_ns=found.host_ns, device_ns=found.device_ns, enqueue_ns=found.enqueue_ns, pace_ns=[]
    )
    record = RunRecord(
        cell=_CELL, cell_id=_CELL.id, nodeid="", status="ok", started=now(), duration_s=0.0,
        samples=samples, metrics=Metrics(), fingerprint=device.fingerprint(), seed=number,
        command="", telemetry=log.finish(),
    )  # fmt: skip
    return cell_of_record(record, session)


@pytest.fixture(scope="module")
def baseline() -> Source:
    """Ten runs at the profile's clock, as read from a file."""
    return Source("baseline", "baseline", {
        _CELL.id: reduce(add_runs, [run_of(f"{n // 2}", n) for n in range(10)])
    })  # fmt: skip


def judged(source: Source, **how: float) -> Verdict:
    judging = Judging(source, ["p99"], GateSettings(tau=0.005))
    number = 0
    while number < 2 or judging.wanted():
        judging.add(run_of("new", 100 + number, **how))
        number += 1
    (found,) = judging.judgement().verdicts
    assert not [each for each in found.differences if each.kind == "identity"]
    return found.verdict


def test_a_lower_clock_is_not_called_code(baseline: Source) -> None:
    verdict = judged(baseline, clock=0.9)
    assert (verdict.state, verdict.reason) == ("incomparable", "lower-clock"), verdict
    assert "1782 MHz, in the baseline 1980 MHz" in verdict.sentence


def test_code_is_called_code_at_any_clock(baseline: Source) -> None:
    found = [judged(baseline, code=1.12), judged(baseline, code=1.2, clock=0.9)]
    assert [each.state for each in found] == ["regression"] * 2, found
    assert judged(baseline).state == "pass"


@pytest.mark.parametrize(("ranks", "clock_mhz"), [(None, 1500), (1, 1500), (4, None)])
def test_the_clock_of_one_rank_is_not_that_of_all(ranks: int | None, clock_mhz: int | None) -> None:
    readings = tuple(
        TelemetrySample(0, clock, None, None, None) for clock in (1400, None, 1500, 1980)
    )
    telemetry = Telemetry("NVML", readings, read_before=(0, 1, 2, 3))
    summary = None if ranks is None else RanksSummary(world_size=ranks, backend="nccl")
    (run,) = cell_of_record(make_record(telemetry=telemetry, ranks=summary), "s").runs
    assert run.sm_clock_mhz == clock_mhz


def test_the_clock_is_kept_in_the_baseline(baseline: Source, tmp_path: Path) -> None:
    cell = baseline.cells[_CELL.id]
    assert {run.sm_clock_mhz for run in cell.runs} == {1980}
    path = tmp_path / cell_file_name(_CELL.id)
    write_cell(path, cell)
    assert read_cell(path) == cell
