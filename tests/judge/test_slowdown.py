"""Worse is never weaker: verdicts over slowdowns whose runs a time cap ends ever earlier."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import pytest

from pytest_hwqueue.data.records.cell import Cell, Metrics, RunRecord, Samples, now
from pytest_hwqueue.engine.cell.closed_loop import Plan, measure
from pytest_hwqueue.engine.cell.program import eager
from pytest_hwqueue.engine.cell.stop_rule import StopRule
from pytest_hwqueue.judge.baselines.runs import CellBaseline, add_runs, cell_of_record
from pytest_hwqueue.judge.baselines.sources import Source
from pytest_hwqueue.judge.judging import Judging
from pytest_hwqueue.judge.verdict import LEAST_FIRST_RUNS, GateSettings
from pytest_hwqueue.parts.devices.protocol import Stream
from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.parts.devices.simulated.noise import NoiseModel

_BASELINE_RUNS = 10
_PLAN = Plan(StopRule(1000, 2_000_000_000), warmup=0, sync_mode="per_iteration")
_CELL = Cell(
    name="cell", device="sim:h200", streams=1, scheduler="native", dispatch="eager",
    sync_mode="per_iteration", size=None,
)  # fmt: skip


def run_of(session: str, number: int, factor: float) -> CellBaseline:
    """Measure one run of a kernel of 0.5 ms; the session's name seeds its noise."""
    device = SimulatedDevice("h200")
    seed = int.from_bytes(session.encode(), "big")
    device.noise = NoiseModel(seed, str(number), session=0.012, run=0.0735, jitter=0.1)
    device.slowdown = factor
    kernel = device.kernel_of(500_000)

    def iterate(streams: Sequence[Stream]) -> None:
        streams[0].launch(kernel)

    with device.open_streams(1) as pool:
        found = measure(device, pool, eager(device, iterate, False), _PLAN, lambda _: None)
    samples = Samples(
        host_ns=found.host_ns, device_ns=found.device_ns, enqueue_ns=found.enqueue_ns, pace_ns=[]
    )
    record = RunRecord(
        cell=_CELL, cell_id=_CELL.id, nodeid="", status="ok", started=now(), duration_s=0.0,
        samples=samples, metrics=Metrics(), fingerprint=device.fingerprint(), seed=number,
        command="",
    )  # fmt: skip
    return cell_of_record(record, session)


@pytest.mark.slow
def test_the_slower_the_surer() -> None:
    old = [run_of(f"{n // 2}", n, 1.0) for n in range(_BASELINE_RUNS)]
    source = Source("baseline", "baseline", {_CELL.id: reduce(add_runs, old)})
    found = []
    for factor in (1.0, 1.02, 1.1, 1.2, 1.5, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 150.0, 1000.0):
        judging = Judging(source, ["p99"], GateSettings(tau=0.005))
        new: list[CellBaseline] = []
        while len(new) < LEAST_FIRST_RUNS or judging.wanted():
            new.append(run_of("new", _BASELINE_RUNS + len(new), factor))
            judging.add(new[-1])
        (judged,) = judging.judgement().verdicts
        lengths = [run.n for cell in new for run in cell.runs]
        found.append((factor, judged.verdict.state, judged.verdict.by, min(lengths)))
    states = [state for _, state, _, _ in found]
    # The same noise is drawn at each factor.
    assert states == sorted(states, key=["pass", "inconclusive", "regression"].index), found
    worse = [one for one in found if one[0] >= 1.5]
    assert {state for _, state, _, _ in worse} == {"regression"}, found
    assert states[0] == "pass"
    # Where a P99 can still be given it is what convicts; below, the time per iteration does.
    assert {by for _, _, by, n in worse if n >= 299} == {"p99"}
    assert {by for _, _, by, n in worse if n < 299} == {"iteration_time"}
    lengths = [n for _, _, _, n in found]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] < 10
