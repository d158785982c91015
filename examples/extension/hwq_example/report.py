"""The report `csv`: a line for each cell that was measured, in records.csv next to the records."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from pytest_hwqueue import HwqError, RunRecord


def pytest_hwqueue_report(folder: Path, records: Sequence[RunRecord]) -> None:
    """Write the file; pytest-hwqueue calls this when the session has measured."""
    try:
        with open(folder / "records.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["cell", "run", "status", "p50 ms", "p99 ms"])
            for record in records:
                latency = record.metrics.latency
                figures = ["", ""] if latency is None else [latency.p50.value, latency.p99.value]
                writer.writerow([record.cell_id, record.run, record.status, *figures])
    except OSError as error:
        raise HwqError(f"records.csv: {error.strerror}") from error
