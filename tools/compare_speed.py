"""How long `hwq compare` takes, and how much memory, by the number of cells.

    python tools/compare_speed.py [CELLS ...]

Each cell has 10 runs in a baseline and 2 in another, all of unchanged code: their P99 differs by
3 % between runs, so that a fifth of the cells is not acquitted at once, as in a real comparison.
The command runs in a process of its own, as a user would start it; its time is from start to end.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from pytest_hwqueue.baselines.cell_file import write_cell
from pytest_hwqueue.baselines.runs import (
    CellBaseline,
    CellHeader,
    RatioFigures,
    Run,
    SampleDefinition,
    TagFigures,
)
from pytest_hwqueue.records.cell import Cell
from pytest_hwqueue.records.names import cell_file_name
from pytest_hwqueue.records.samples import encode_samples

DEVICE = "nvidia-h200"
CELLS = (1_000, 3_000, 10_000)
SIDES = {"main": 10, "new": 2}
SD = 0.03
SAMPLES = 1_000


def run(session: int, generator: np.random.Generator) -> Run:
    """A run whose latencies are log-normal around 5 ms, with two tags and two ratios."""
    latency_ns = np.rint(generator.lognormal(np.log(5e6), 0.03, SAMPLES))
    levels = np.quantile(latency_ns, [0.5, 0.9, 0.95, 0.99, 0.999]).tolist()
    p50, p90, p95, p99, p999 = map(round, levels)
    tag = TagFigures(SAMPLES, p50, p90, p95, p99)
    return Run(
        session=f"20260101T0000{session:02}-1",
        when=f"2026-01-01T00:00:{session:02}.000+00:00",
        commit="0" * 40,
        n=SAMPLES,
        failed=0,
        p50_ns=p50,
        p90_ns=p90,
        p95_ns=p95,
        p99_ns=p99,
        p999_ns=p999,
        max_ns=int(latency_ns.max()),
        throughput={"small kernels/s": 1e9 / p50, "TFLOP/s": 1e8 / p50},
        tags={"small": tag, "large": tag},
        ratios={name: RatioFigures(1.1, 1.2) for name in ("convoy_ratio", "large_slowdown")},
        soft={},
        samples=encode_samples(latency_ns),
    )


def write(root: Path, cells: int) -> None:
    """Write both baselines."""
    generator = np.random.default_rng(0)
    first = 0
    for name, count in SIDES.items():
        runs = [run(session, generator) for session in range(first, first + count)]
        first += count
        for number in range(cells):
            header = CellHeader(
                schema="pytest-hwqueue/baseline/1",
                cell=Cell(
                    name=f"workload_{number}",
                    device="cuda",
                    streams=8,
                    scheduler="native",
                    dispatch="eager",
                    sync_mode="per_iteration",
                    size="full",
                    parameters={"mm_dim": 4096, "dtype": "fp32"},
                ),
                hard={"device_kind": "cuda", "device_name": "NVIDIA H200", "driver_major": 580},
                soft={"torch_version": "2.13.0", "python_version": "3.11.7"},
                sample=SampleDefinition("host_ns", "events"),
            )
            own = tuple(moved(each, float(generator.lognormal(0, SD))) for each in runs)
            path = root / DEVICE / name / cell_file_name(header.cell.id)
            write_cell(path, CellBaseline(header, own))


def moved(one: Run, factor: float) -> Run:
    """A run with another P99; its samples stay as they are, since none is decoded."""
    return replace(one, p99_ns=round(one.p99_ns * factor))


def measure(root: Path, cells: int, *more: str) -> None:
    """Run the command; print a row of the table."""
    command = [
        sys.executable, "-m", "pytest_hwqueue", "compare", "--baselines", str(root),
        "--baseline", "main", "--test", "new", *more,
    ]  # fmt: skip
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    cpu_s = usage.ru_utime + usage.ru_stime
    print(
        f"{cells:6}  {seconds:6.2f} s  {cpu_s:6.2f} s  {usage.ru_maxrss / 1024:6.0f} MiB  "
        f"{process.returncode:6}  {' '.join(more)}",
        flush=True,
    )


def main(arguments: list[str]) -> None:
    """Measure each number of cells, without and with files."""
    print(f"{'cells':>6}  {'time':>8}  {'CPU':>8}  {'peak':>10}  {'status':>6}")
    for cells in map(int, arguments or CELLS):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            write(root, cells)
            measure(root, cells)
            files = ("--json", str(root / "all.json"), "--markdown", str(root / "all.md"))
            measure(root, cells, *files)


if __name__ == "__main__":
    main(sys.argv[1:])
