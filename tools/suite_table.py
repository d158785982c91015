"""A table of cells and of what limits them, as Markdown: a row for each cell that was measured.

    python -m tools.suite_table FOLDER [FOLDER ...]

FOLDERs are those of sessions, as `.hwqueue` has them; of a cell that was run several times, the run
with most iterations counts. Run it from the top of the tree.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from pytest_hwqueue.harness.summary import enqueueing_share
from pytest_hwqueue.metrics.latency import LatencySummary
from pytest_hwqueue.metrics.numbers import figure, percent, rate
from pytest_hwqueue.records.cell import RunRecord
from pytest_hwqueue.reports.markdown import markdown_table
from pytest_hwqueue.workloads.registry import WORKLOADS
from tools.session_records import session_records

_HEAD = (
    "workload", "streams", "n", "P50 ms", "P99 ms", "throughput", "queue switch µs",
    "streams' overlap", "kernels in flight", "enqueueing", "throttled",
)  # fmt: skip
_NONE = "—"


def records_of(folders: Iterable[Path]) -> list[RunRecord]:
    """Read cells that were measured, in the registry's order, by size, dispatch and streams."""
    found: dict[str, RunRecord] = {}
    for record in session_records(folders):
        before = found.get(record.cell_id)
        longer = before is None or record.iterations >= before.iterations
        if record.status == "ok" and longer:
            found[record.cell_id] = record
    names = [*WORKLOADS]
    return sorted(
        found.values(),
        key=lambda one: (
            names.index(one.cell.name) if one.cell.name in names else len(names),
            one.cell.name, one.cell.size, one.cell.dispatch, one.cell.sync_mode,
            one.cell.variant, one.cell.streams,
        ),
    )  # fmt: skip


def row_of(record: RunRecord) -> list[str]:
    """Return a cell's row; what was refused or is not there is a dash."""
    cell, metrics = record.cell, record.metrics
    usual = {"eager", "per_iteration", ""}
    unusual = [one for one in (cell.dispatch, cell.sync_mode, cell.variant) if one not in usual]
    beside = f" ({', '.join(unusual)})" if unusual else ""
    timeline, switch = metrics.timeline, metrics.queue_switch
    overhead = None if switch is None else switch.overhead
    at_once = None if timeline is None else timeline.in_flight_mean
    return [
        f"{cell.name}{beside}",
        str(cell.streams),
        str(record.iterations),
        _percentile(metrics.latency, "p50"),
        _percentile(metrics.latency, "p99"),
        ", ".join(str(rate(one.value, one.unit, one.interval)) for one in metrics.throughput),
        _NONE
        if overhead is None or overhead.difference is None
        else str(figure(overhead.difference, interval=overhead.interval)),
        _NONE
        if timeline is None or timeline.overlap_efficiency is None
        else str(percent(timeline.overlap_efficiency)),
        _NONE if at_once is None else str(figure(at_once)),
        _enqueueing(record),
        _throttled(record),
    ]


def _percentile(latency: LatencySummary | None, name: str) -> str:
    value = None if latency is None else getattr(latency, name)
    if latency is None or value is None:
        return _NONE
    return str(figure(value, interval=latency.intervals.get(name)))


def _enqueueing(record: RunRecord) -> str:
    """Return the share of an iteration in which the host was still enqueueing it."""
    samples = record.samples
    if samples is None or not samples.host_ns:
        return _NONE
    return str(percent(enqueueing_share(samples)))


def _throttled(record: RunRecord) -> str:
    telemetry = record.telemetry
    if telemetry is None or not telemetry.samples:
        return _NONE
    tagged = telemetry.throttled_samples
    return str(percent(tagged / record.iterations)) if tagged else "no"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    records = records_of(parser.parse_args().folders)
    print(markdown_table(_HEAD, [row_of(record) for record in records]))


if __name__ == "__main__":
    main()
