"""Runs a single cell under a scheduler mode: the process that measures it is the only tenant."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_hwqueue.devices.kinds import capabilities_of
from pytest_hwqueue.schedulers.inside_evidence import gather, with_groups
from pytest_hwqueue.schedulers.mode import Proof, Scheduler, TenantRequest

if TYPE_CHECKING:
    from pytest_hwqueue.devices.partitions import Partition
    from pytest_hwqueue.devices.protocol import StreamPool

# Whoever starts the process of cells gives it ``environment(CELL)`` inside ``services``.
CELL = TenantRequest("cell")


def unavailable_for_process(scheduler: Scheduler, device_kind: str) -> str | None:
    """Return why no process for cells can be started under a mode, or None."""
    if not capabilities_of(device_kind).tenant_processes:
        return (
            f"{scheduler.mode}: a simulated device knows it between tenants, in scenario files, "
            "and not for single tests"
        )
    return scheduler.unavailable(device_kind, [CELL])


def unavailable_for_cell(
    scheduler: Scheduler, device_kind: str, urgency: Sequence[int]
) -> str | None:
    """Return why this process cannot measure a cell with these streams under a mode, or None."""
    if scheduler.spec.declaration.needs_environment:
        # `unavailable_for_process` was asked before this process was started.
        return None
    return scheduler.unavailable(device_kind, [replace(CELL, urgency=tuple(urgency))])


def cell_partitions(scheduler: Scheduler, urgency: Sequence[int]) -> list[Partition] | None:
    """Return where each of a cell's streams runs; None if the mode lets all run anywhere."""
    cell = replace(CELL, urgency=tuple(urgency))
    found = [scheduler.partition(cell, each) for each in urgency]
    partitions = [partition for partition in found if partition is not None]
    return partitions or None


def prove_cell(
    scheduler: Scheduler, pool: StreamPool, urgency: Sequence[int], *, replayed: bool = False
) -> Proof:
    """Prove, in the process that measures a cell, that the mode is active on its streams.

    Args:
        scheduler: the opened mode.
        pool: the cell's streams.
        urgency: of each stream's work.
        replayed: whether the cell's work is launched by replayed graphs.

    Raises:
        NotProven: if it is not, saying what was expected and what was seen.

    """
    # What was asked for, not what the streams were opened with: a planted fault must show.
    inside = replace(gather(pool), asked_priorities=scheduler.priorities(urgency))
    partitions = cell_partitions(scheduler, urgency)
    if partitions is not None:
        inside = with_groups(inside, pool, partitions, replayed=replayed)
    return scheduler.proof({CELL.name: os.getpid()}, {CELL.name: inside})
