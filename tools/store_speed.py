"""How long a baseline takes to read, and how much memory, by its number of cells.

    python tools/store_speed.py [CELLS ...]

Each cell has 12 runs of 1000 samples, two tags, two ratios. Writing and reading happen in
processes of their own, so that the peak of memory is that of the one thing; reading gets every
clear figure and decodes no samples, then all samples of 100 cells are decoded.
"""

from __future__ import annotations

import resource
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
from pytest_hwqueue.baselines.store import Store
from pytest_hwqueue.records.cell import Cell
from pytest_hwqueue.records.names import cell_file_name
from pytest_hwqueue.records.samples import encode_samples

NAME, DEVICE = "main", "nvidia-h200"
CELLS = (1_000, 3_000, 10_000)
RUNS = 12
SAMPLES = 1_000


def run(session: int, generator: np.random.Generator) -> Run:
    """A run whose latencies are log-normal around 5 ms."""
    latency_ns = np.rint(generator.lognormal(np.log(5e6), 0.03, SAMPLES))
    p50, p90, p95, p99, p999 = np.rint(np.quantile(latency_ns, [0.5, 0.9, 0.95, 0.99, 0.999]))
    tag = TagFigures(SAMPLES, int(p50), int(p90), int(p95), int(p99))
    return Run(
        session=f"20260101T0000{session:02}-1",
        when=f"2026-01-01T00:00:{session:02}.000+00:00",
        commit="0" * 40,
        n=SAMPLES,
        failed=0,
        p50_ns=int(p50),
        p90_ns=int(p90),
        p95_ns=int(p95),
        p99_ns=int(p99),
        p999_ns=int(p999),
        max_ns=int(latency_ns.max()),
        throughput={"small kernels/s": 1e9 / float(p50), "TFLOP/s": 1e8 / float(p50)},
        tags={"small": tag, "large": tag},
        ratios={name: RatioFigures(1.1, 1.2) for name in ("convoy_ratio", "large_slowdown")},
        soft={},
        samples=encode_samples(latency_ns),
    )


def write(root: Path, cells: int) -> None:
    """Write a baseline."""
    generator = np.random.default_rng(0)
    runs = [run(session, generator) for session in range(RUNS)]
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
        own = tuple(replace(each, p99_ns=each.p99_ns + number) for each in runs)
        path = root / DEVICE / NAME / cell_file_name(header.cell.id)
        write_cell(path, CellBaseline(header, own))


def read(root: Path) -> None:
    """Read a baseline; print seconds and memory."""
    before_mib = peak_mib()
    started, started_cpu = time.perf_counter(), time.process_time()
    cells = Store(root).read(NAME, DEVICE).cells
    read_s, read_cpu_s = time.perf_counter() - started, time.process_time() - started_cpu
    read_mib = peak_mib()
    assert all(len(cell.runs) == RUNS for cell in cells.values())
    chosen = list(cells.values())[:100]
    started = time.perf_counter()
    assert all(run.samples_ns().size == SAMPLES for cell in chosen for run in cell.runs)
    decode_us = (time.perf_counter() - started) / (len(chosen) * RUNS) * 1e6
    print(
        f"{len(cells):6} cells x {RUNS} runs: read in {read_s:5.2f} s ({read_cpu_s:.2f} s of CPU), "
        f"peak {read_mib:4.0f} MiB ({before_mib:.0f} before); decoding {decode_us:.0f} µs a run"
    )


def peak_mib() -> float:
    """Peak resident memory of this process, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(arguments: list[str]) -> None:
    """Measure each number of cells, or do the one part that a child was started for."""
    if arguments[:1] == ["--read"]:
        read(Path(arguments[1]))
        return
    for cells in map(int, arguments or CELLS):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            started = time.perf_counter()
            write(root, cells)
            files = list((root / DEVICE / NAME).iterdir())
            megabytes = sum(file.stat().st_size for file in files) / 1e6
            seconds = time.perf_counter() - started
            print(f"{cells:6} cells written in {seconds:.1f} s, {megabytes:.0f} MB", flush=True)
            subprocess.run([sys.executable, __file__, "--read", folder], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
