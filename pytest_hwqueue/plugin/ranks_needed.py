"""How many processes of this host a test needs together, and why it cannot have them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from pytest_hwqueue.devices.discover import visible_accelerators
from pytest_hwqueue.plugin.state import SETTINGS
from pytest_hwqueue.ranks.launched import launched_rank

if TYPE_CHECKING:
    from pytest_hwqueue.workloads.registry import Declaration

_ON_THE_CPU = 2


def ranks_needed(item: pytest.Item) -> int:
    """Return how many ranks to start for a test: more than 1 only where it has collectives.

    Under torchrun it is 1: every rank that torchrun started runs the test in a worker of its own.
    """
    found = workload_of(item)
    if found is None or launched_rank(os.environ) is not None:
        return 1
    return ranks_of(found, _device(item), item.config.stash[SETTINGS].ranks)


def ranks_of(workload: Declaration, device: str, asked: int | None) -> int:
    """Return how many ranks to start for a workload on a device; one per accelerator unless asked.

    Args:
        workload: what they run.
        device: its label.
        asked: by ``--hwq-ranks``.

    """
    if not workload.collective:
        return 1
    kind = device.partition(":")[0]
    if asked is not None:
        return asked
    if kind == "cpu":
        return _ON_THE_CPU
    return 1 if kind == "sim" else max(1, visible_accelerators()[1])


def refusal_of_ranks(item: pytest.Item, isolated: bool) -> str | None:
    """Say why a test cannot run on its ranks, or return None.

    Args:
        item: the test.
        isolated: whether measuring tests run in workers of their own.

    """
    launched, device = launched_rank(os.environ), _device(item)
    kind, _, index = device.partition(":")
    size = ranks_needed(item) if launched is None else launched.size
    if size == 1:
        return None
    how = f"--hwq-ranks={size}" if launched is None else f"{size} ranks"
    if not isolated:
        return f"{how} need processes of their own: leave out --hwq-isolation=none, --pdb, --trace"
    if kind == "sim":
        return f"a simulated device has one rank, not {size}"
    if kind in ("cuda", "hip"):
        count = visible_accelerators()[1]
        local = size if launched is None else launched.local_size
        if index:
            return f"{how} take one device each, from the first: --hwq-device={kind}, not {device}"
        # A launcher may let each rank see its own accelerator only.
        if local > count and (launched is None or count != 1):
            return f"{how} need as many accelerators, and {count} are visible"
    return None


def local_device(label: str) -> str:
    """Return which device a rank opens for the one that is asked for: that of its local rank."""
    launched = launched_rank(os.environ)
    if launched is None or label not in ("cuda", "hip") or visible_accelerators()[1] == 1:
        return label
    return f"{label}:{launched.local_rank}"


def _device(item: pytest.Item) -> str:
    parameters: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return str(parameters.get("hwq_device", ""))


def workload_of(item: pytest.Item) -> Declaration | None:
    """Return the suite's workload that a test runs, if its mark names one."""
    from pytest_hwqueue.workloads.registry import declaration

    mark = item.get_closest_marker("hwq_workload")
    return None if mark is None else declaration(mark.args[0])
