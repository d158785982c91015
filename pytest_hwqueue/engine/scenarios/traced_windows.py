"""How long a traced window is, and what kept one from being longer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pytest_hwqueue.data.metrics.latency import sufficient_samples
from pytest_hwqueue.engine.scenarios.goals import EndedBy, Goal
from pytest_hwqueue.engine.scenarios.planned_runs import PlannedRun
from pytest_hwqueue.engine.tenants import DEVICE
from pytest_hwqueue.engine.tenants.arrivals import is_closed

if TYPE_CHECKING:
    from pytest_hwqueue.data.records.tenants import ColocationRecord

MOST_S = 20.0
LEAST_S = 1.0
# A random schedule may have fewer than its rate says; a closed loop is slower while it is traced.
_SPARE, _SPARE_CLOSED = 1.1, 2.0


def enough_s(run: PlannedRun, records: Sequence[ColocationRecord], goals: Iterable[Goal]) -> float:
    """Return how long a traced window is that suffices for goals; inf if none is known to.

    For a P99 of waiting as long as its requests take, for other goals at most `MOST_S`.

    Args:
        run: the run.
        records: of its measured windows, all ``ok``.
        goals: those that a traced window judges.

    """
    lengths = [LEAST_S]
    for goal in goals:
        everyone = [tenant.name for tenant in run.tenants]
        tenants = everyone if goal.tenant == DEVICE else [goal.tenant]
        # Blocks of time give the others' intervals, and requests those of a wait.
        most_s = math.inf if goal.figure.startswith("wait") else MOST_S
        lengths.append(time_for(run, records, tenants, sufficient_samples(0.99), most_s))
    return max(lengths)


def time_for(
    run: PlannedRun, records: Sequence[ColocationRecord], tenants: Sequence[str], requests: int,
    most_s: float,
) -> float:  # fmt: skip
    """Return how long it takes until each of these tenants has so many requests, or ``most_s``."""
    needed = [LEAST_S]
    for tenant in run.tenants:
        if tenant.name not in tenants:
            continue
        seconds = sum(record.duration_s for record in records)
        issued = sum(record.tenant(tenant.name).issued or 0 for record in records)
        spare = _SPARE_CLOSED if is_closed(tenant.arrival) else _SPARE
        needed.append(requests * spare * seconds / issued if issued else most_s)
    # Of the time in which all are there.
    return min(max(needed), most_s) + max(tenant.start_s for tenant in run.tenants)


def traced_ended_by(record: ColocationRecord, enough_s: float, planned_s: float) -> EndedBy:
    """Return what kept a traced window from being longer.

    Args:
        record: of the window.
        enough_s: as `enough_s` returns it.
        planned_s: the run's measuring time, which a traced window does not exceed.

    """
    if served_all(record):
        return "requests"
    given_s = record.plan.duration_s
    if record.duration_s < given_s:
        return "trace"
    return "duration" if planned_s <= given_s < enough_s else ""


def served_all(record: ColocationRecord) -> bool:
    """Whether a window ended with the last of the requests that its tenants count."""
    counted = record.plan.counted
    return bool(counted) and all(record.tenant(name).until_ns is not None for name in counted)
