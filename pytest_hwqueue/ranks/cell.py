"""Measures a cell alone or together with other ranks; either way there is one record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from pytest_hwqueue.devices.lease import lease
from pytest_hwqueue.harness.cell import CellRequest
from pytest_hwqueue.harness.failures import Failure
from pytest_hwqueue.harness.runner import CellRunner
from pytest_hwqueue.harness.summary import summarise
from pytest_hwqueue.ranks.group import RankGroup, backend_of, group_of_one
from pytest_hwqueue.ranks.launched import LaunchedRank
from pytest_hwqueue.records.cell import Cell, Metrics, RanksSummary, RunRecord, Samples

if TYPE_CHECKING:
    from pytest_hwqueue.devices.protocol import Device


class RanksSink(Protocol):
    """Receives the ranks' own records, and ends a rank that waits for one that has gone."""

    def rank_failed(self, reason: str, detail: str) -> None:
        """End this process: another rank has failed, and this one will not end by itself."""

    def keep_ranks(self, cell: Cell, records: Sequence[RunRecord]) -> None:
        """Keep each rank's own record of a cell along with the cell's."""

    def keep_device(self, key: str) -> None:
        """Have this process's session take a device, and keep it."""

    def waits_for_device(self, waiting: bool, text: str) -> None:
        """Report that another session holds the device, or no longer does."""


def measure_cell(
    runner: CellRunner,
    request: CellRequest,
    launched: LaunchedRank | None,
    test: str,
    cell: int,
    timeout_s: float,
    sink: RanksSink,
) -> tuple[RunRecord, Failure | None]:
    """Measure a cell; return its record, and the failure if there was one.

    Args:
        runner: measures it on this process's device.
        request: what to measure.
        launched: this process's rank; None if it is alone.
        test: name of the test, the same on all ranks and unique in this session.
        cell: number of the cell in its test.
        timeout_s: time limit for a cell.
        sink: receives failed ranks and records.

    """
    device = runner.device
    with _leased(device, launched, sink):
        if launched is None:
            return measure_alone(runner, request)
        group = RankGroup(launched, device, test, cell, timeout_s)
        with group.watched(sink.rank_failed):
            joined = replace(request, rank_sync=group, group=group.join)
            record, failure = runner.run(joined)

            def summarised(samples: Samples) -> Metrics:
                workload = request.workload
                return summarise(
                    samples,
                    record.work_per_iteration,
                    workload.ratios,
                    workload.overlap,
                    workload.traffic(),
                    workload.primary,
                )

            record, failure, parts = group.settle(record, failure, summarised)
        sink.keep_ranks(request.cell, parts)
        return record, failure


def measure_alone(runner: CellRunner, request: CellRequest) -> tuple[RunRecord, Failure | None]:
    """Measure a cell in this process alone; a workload with collectives gets a group of one."""
    if not request.workload.collective:
        return runner.run(request)
    record, failure = runner.run(replace(request, group=lambda: group_of_one(runner.device)))
    alone = RanksSummary(world_size=1, backend=backend_of(runner.device))
    return record.model_copy(update={"ranks": alone}), failure


@contextmanager
def _leased(device: Device, launched: LaunchedRank | None, sink: RanksSink) -> Iterator[None]:
    """Take the device's lease, if it needs one. Ranks may share the CPU: rank 0 leases it for all.

    Other ranks have devices that their session does not know of; each is held for its cell.
    """
    first = launched is None or launched.rank == 0
    if device.lease_key is None or (device.capabilities.host and not first):
        sink.waits_for_device(False, "")
        yield
        return
    if first:
        sink.keep_device(device.lease_key)
    with lease(device.lease_key, on_wait=lambda text: sink.waits_for_device(True, text)):
        sink.waits_for_device(False, "")
        yield
