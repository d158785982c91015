"""The cells that tests will measure, as far as their parameters show beforehand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pytest_hwqueue.plugin.state import is_scenario
from pytest_hwqueue.verdicts.unmatched import PlannedCell

# Decided by the workload and the device, when the cell is opened.
_OPEN = "auto"


def planned_cells(items: Sequence[pytest.Item], sync_mode: str) -> list[PlannedCell] | None:
    """Return the cells that tests will measure, or None if some are unknown before they run.

    Args:
        items: tests that measure.
        sync_mode: the session's.

    """
    if any(map(is_scenario, items)):
        # The cells of a scenario are its tenants.
        return None
    planned = []
    for item in items:
        parameters: Mapping[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
        dispatch = parameters.get("hwq_dispatch")
        known = PlannedCell(
            device=parameters.get("hwq_device"),
            scheduler=parameters.get("hwq_scheduler"),
            dispatch=None if dispatch == _OPEN else dispatch,
            sync_mode=sync_mode,
        )
        mark = item.get_closest_marker("hwq_workload")
        if mark is not None and mark.args:
            streams = parameters.get("hwq_streams")
            known = replace(known, name=mark.args[0], streams=streams)
        # A test of one's own may measure anything, on as many streams as it likes.
        planned.append(known)
    return planned
