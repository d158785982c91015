"""Measures the gate's error rates end to end: simulated device, records, verdicts.

Every run is measured by the suite's own loop on a simulated device with seeded noise, becomes a
record and a stored run, and is judged as `--hwq-compare` does, with re-runs. Nothing is drawn from
a formula; what is simulated is the device.

    python tools/gate_end_to_end.py --suites 1000                unchanged: false alarms
    python tools/gate_end_to_end.py --suites 300 --slower 10     planted: power
    python tools/gate_end_to_end.py --ladder --suites 20         verdicts from x 1 to x 1000
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import Counter
from collections.abc import Sequence

from pytest_hwqueue.baselines.diff import Source
from pytest_hwqueue.baselines.runs import CellBaseline, add_runs, cell_of_record
from pytest_hwqueue.devices.protocol import Stream
from pytest_hwqueue.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.devices.simulated.noise import NoiseModel
from pytest_hwqueue.gate.settings import GateSettings
from pytest_hwqueue.harness.closed_loop import LoopPlan, measure
from pytest_hwqueue.harness.program import eager
from pytest_hwqueue.records.cell import Cell, Metrics, RunRecord, Samples, now
from pytest_hwqueue.verdicts.judging import Judgement, Judging

_BASELINE_RUNS = 10


class Bench:
    """Measures runs of cells that differ by the length of their kernel."""

    def __init__(
        self,
        iterations: int,
        run_noise: float,
        session_noise: float,
        max_time_s: float = 1000.0,
    ) -> None:
        self._plan = LoopPlan(
            iterations=iterations,
            warmup=0,
            max_time_ns=int(max_time_s * 1e9),
            sync_mode="per_iteration",
        )
        # Its clock goes on from run to run; nothing else of a run is left in it.
        self._device = SimulatedDevice("h200")
        self._run_noise = run_noise
        self._session_noise = session_noise
        # Numbers of samples of the new session's runs of the suite that was judged last.
        self.lengths: set[int] = set()

    def run(self, cell: int, session: str, number: int, slower: float = 0.0) -> CellBaseline:
        """Measure one run; the session's name seeds its noise."""
        device = self._device
        seed = int.from_bytes(session.encode(), "big")
        device.noise = NoiseModel(
            seed, f"{cell}/{number}", session=self._session_noise, run=self._run_noise, jitter=0.1
        )
        device.slowdown = 1 + slower
        # Long against the host's part of an iteration, so that the noise planted is P99's.
        kernel = device.kernel_of(500_000 * (1 + cell))

        def iterate(streams: Sequence[Stream]) -> None:
            streams[0].launch(kernel)

        with device.open_streams(1) as pool:
            result = measure(
                device, pool, eager(device, iterate, False), self._plan, lambda _: None
            )
        self.lengths.add(len(result.host_ns))
        measured = Cell(
            name=f"cell {cell}", device="sim:h200", streams=1, scheduler="native",
            dispatch="eager", sync_mode="per_iteration", size=None,
        )  # fmt: skip
        record = RunRecord(
            cell=measured,
            cell_id=measured.id,
            nodeid="",
            status="ok",
            started=now(),
            duration_s=0.0,
            samples=Samples(
                host_ns=result.host_ns, device_ns=result.device_ns,
                enqueue_ns=result.enqueue_ns, pace_ns=[],
            ),
            metrics=Metrics(),
            fingerprint=device.fingerprint(),
            seed=number,
            command="",
        )  # fmt: skip
        return cell_of_record(record, session)


def judge_suite(bench: Bench, suite: int, cells: int, slower: float, tau: float) -> Judgement:
    """Measure a baseline in five sessions of two runs, then a new session; judge it."""
    baseline: dict[str, CellBaseline] = {}
    for cell in range(cells):
        runs = [
            bench.run(cell, f"{suite}-{number // 2}", number) for number in range(_BASELINE_RUNS)
        ]
        joined = runs[0]
        for run in runs[1:]:
            joined = add_runs(joined, run)
        baseline[joined.header.cell.id] = joined
    bench.lengths = set()
    judging = Judging(Source("baseline", "baseline", baseline), ["p99"], GateSettings(tau=tau))
    numbers = dict.fromkeys(baseline, _BASELINE_RUNS)
    for _ in range(judging.first_runs):
        for index, cell_id in enumerate(baseline):
            judging.add(bench.run(index, f"{suite}-new", numbers[cell_id], slower))
            numbers[cell_id] += 1
    order = list(baseline)
    while wanted := judging.wanted():
        for cell_id in wanted:
            judging.add(bench.run(order.index(cell_id), f"{suite}-new", numbers[cell_id], slower))
            numbers[cell_id] += 1
    return judging.judgement()


LADDER = (1.0, 1.02, 1.1, 1.2, 1.5, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 150.0, 1000.0)


def ladder(bench: Bench, suites: int) -> list[str]:
    """Return a Markdown table: what a cell that got so many times slower is called.

    Args:
        bench: whose time cap ends the runs of what got slow, so that they have fewer samples.
        suites: how many cells are judged for each row.

    """
    lines = [
        "| slower by | samples of a new run | regression | by | inconclusive | pass | new runs |",
        "|---|---|---|---|---|---|---|",
    ]
    for factor in LADDER:
        states: Counter[str] = Counter()
        by: Counter[str] = Counter()
        samples, runs = set(), 0
        for suite in range(suites):
            (judged,) = judge_suite(bench, suite, 1, factor - 1, 0.005).verdicts
            states[judged.verdict.state] += 1
            by[judged.verdict.by] += bool(judged.verdict.by)
            samples |= bench.lengths
            runs += len(judged.verdict.new)
        least, most = min(samples), max(samples)
        lines.append(
            f"| x {factor:g} | {least if least == most else f'{least} to {most}'} | "
            f"{states['regression']} of {suites} | {', '.join(sorted(by))} | "
            f"{states['inconclusive']} | {states['pass']} | {runs / suites:.1f} |"
        )
    return lines


def main() -> None:
    """Measure and print one line of a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--suites", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="number of the first suite")
    parser.add_argument("--cells", type=int, default=1, help="cells of a suite")
    parser.add_argument("--iterations", type=int, default=320)
    parser.add_argument("--run-noise", type=float, default=0.0735, help="amplitude; sd is a/√6")
    parser.add_argument("--session-noise", type=float, default=0.012)
    parser.add_argument("--slower", type=float, default=0.0, help="percent, planted in new runs")
    parser.add_argument("--max-time", type=float, default=1000.0, help="seconds a run, simulated")
    parser.add_argument("--ladder", action="store_true", help="one row for each slowdown")
    given = parser.parse_args()
    bench = Bench(given.iterations, given.run_noise, given.session_noise, given.max_time)
    # The loop collects garbage before each run; what is imported need not be looked at each time.
    gc.freeze()
    if given.ladder:
        print("\n".join(ladder(bench, given.suites)))
        return
    states: Counter[str] = Counter()
    alarms = runs = 0
    began = time.perf_counter()
    for suite in range(given.first, given.first + given.suites):
        judgement = judge_suite(bench, suite, given.cells, given.slower / 100, 0.005)
        states.update(each.verdict.state for each in judgement.verdicts)
        alarms += judgement.count("regression") > 0
        runs += sum(len(each.verdict.new) for each in judgement.verdicts)
    cells = given.suites * given.cells
    print(
        f"{given.suites} suites of {given.cells}, {given.slower:g} % slower: suites with a "
        f"regression {alarms} ({alarms / given.suites:.2%}), verdicts {dict(states)}, "
        f"{runs / cells:.2f} new runs a cell, {time.perf_counter() - began:.0f} s"
    )


if __name__ == "__main__":
    main()
