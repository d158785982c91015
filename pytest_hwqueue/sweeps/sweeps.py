"""Groups records of one cell at several stream counts, and computes its scaling."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_hwqueue.metrics.scaling import Scaling, ScalingPoint, scaling
from pytest_hwqueue.records.cell import RunRecord


def find_sweeps(records: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """Group records that differ only in their number of streams and count the same work.

    Args:
        records: of any status; those that were not measured are left out. A cell measured twice in
            a session counts with its first record.

    """
    groups: dict[str, dict[int, RunRecord]] = {}
    for record in records:
        if record.status != "ok" or not record.work_per_iteration or not _iteration_ns(record):
            continue
        units = ", ".join(record.work_per_iteration)
        key = f"{record.cell.model_dump_json(exclude={'streams'})} {units}"
        groups.setdefault(key, {}).setdefault(record.cell.streams, record)
    return [[group[n] for n in sorted(group)] for group in groups.values() if len(group) > 1]


def scaling_of(sweep: Sequence[RunRecord]) -> Scaling:
    """Return how the headline throughput of a sweep scales over its streams.

    Raises:
        ValueError: if an iteration took no time.

    """
    headline = next(iter(sweep[0].work_per_iteration))
    points = [
        ScalingPoint(
            record.cell.streams, record.work_per_iteration[headline], _iteration_ns(record)
        )
        for record in sweep
    ]
    return scaling(points, f"{headline}/s", sweep[0].seed)


def _iteration_ns(record: RunRecord) -> list[int]:
    return [] if record.samples is None else record.samples.host_ns or record.samples.pace_ns
