"""How many processes on this host a test needs together, and why it cannot have them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from pytest_hwqueue.devices.discover import visible_accelerators
from pytest_hwqueue.devices.kinds import capabilities_of
from pytest_hwqueue.errors import BadExtension, UnknownWorkload
from pytest_hwqueue.plugin.state import SETTINGS, parameters_of
from pytest_hwqueue.ranks.launched import launched_rank
from pytest_hwqueue.workloads.registry import declaration

if TYPE_CHECKING:
    from pytest_hwqueue.plugin.candidate import Candidate
    from pytest_hwqueue.workloads.declaration import Declaration

_ON_THE_HOST = 2


def ranks_needed(item: pytest.Item) -> int:
    """Return how many ranks to start for a test: more than 1 only if it has collectives.

    Under torchrun it is 1: every rank that torchrun started runs the test in its own worker.
    """
    found = workload_of(item)
    if found is None or launched_rank(os.environ) is not None:
        return 1
    device = str(parameters_of(item).get("hwq_device", ""))
    return ranks_of(found, device, item.config.stash[SETTINGS].ranks)


def ranks_of(workload: Declaration, device: str, asked: int | None) -> int:
    """Return how many ranks to start for a workload on a device; by default one per accelerator.

    Args:
        workload: what they run.
        device: its label.
        asked: the value of ``--hwq-ranks``.

    """
    if not workload.collective:
        return 1
    if asked is not None:
        return asked
    can = capabilities_of(device)
    if can.host:
        return _ON_THE_HOST
    return max(1, visible_accelerators()[1]) if can.several_ranks else 1


def refusal_of_ranks(test: Candidate) -> str | None:
    """Return why a test cannot run on its ranks, or None."""
    launched = test.launched
    size = test.ranks if launched is None else launched.size
    if size == 1:
        return None
    how = f"--hwq-ranks={size}" if launched is None else f"{size} ranks"
    if not test.isolated and not test.in_worker:
        return f"{how} need separate processes: leave out --hwq-isolation=none, --pdb, --trace"
    if not test.capabilities.several_ranks:
        return f"a simulated device has one rank, not {size}"
    if test.device and not test.capabilities.host:
        count = visible_accelerators()[1]
        local = size if launched is None else launched.local_size
        if test.device != test.kind:
            return (
                f"{how} take one device each, from the first: --hwq-device={test.kind}, not "
                f"{test.device}"
            )
        # A launcher may let each rank see its own accelerator only.
        if local > count and (launched is None or count != 1):
            return f"{how} need as many accelerators, and {count} are visible"
    return None


def local_device(label: str) -> str:
    """Return the device that a rank opens for the requested one: that of its local rank."""
    launched = launched_rank(os.environ)
    if launched is None or label not in ("cuda", "hip") or visible_accelerators()[1] == 1:
        return label
    return f"{label}:{launched.local_rank}"


def workload_of(item: pytest.Item) -> Declaration | None:
    """Return the suite's workload that a test's mark names, or None.

    Raises:
        pytest.UsageError: if there is no such workload.

    """
    mark = item.get_closest_marker("hwq_workload")
    if mark is None:
        return None
    try:
        return declaration(*mark.args)
    except (UnknownWorkload, BadExtension, TypeError) as error:
        raise pytest.UsageError(f"{item.nodeid}: mark hwq_workload: {error}") from None
