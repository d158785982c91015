"""Why a test's requests were slow: its tenants run once more, traced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_hwqueue.metrics.latency import minimum_samples
from pytest_hwqueue.records.noise import Causes, causes_line
from pytest_hwqueue.scenarios.planned_runs import Case, PlannedRun
from pytest_hwqueue.scenarios.runs import ScenarioRuns

if TYPE_CHECKING:
    from pytest_hwqueue.records.tenants import ColocationRecord

MOST_S = 20.0
LEAST_S = 1.0
# A random schedule may have fewer than its rate says; a closed loop is slower while it is traced.
_SPARE, _SPARE_CLOSED = 1.1, 2.0

Trace = Callable[[PlannedRun, Mapping[str, float], float], "ColocationRecord"]
"""Runs tenants traced: peaks by tenant as for any run, and for how many seconds."""


def tenants_in_question(case: Case) -> list[str]:
    """Return the tenants whose latency a goal concerns, or all."""
    of_goals = [goal.tenant for goal in case.goals if goal.about_latency]
    return list(dict.fromkeys(of_goals)) or [tenant.name for tenant in case.tenants]


def causes_in_words(
    runs: ScenarioRuns, case: Case, tenants: Sequence[str], trace: Trace
) -> list[str]:
    """Run a test's tenants traced; return a line per tenant in question.

    If that fails, the one line says why there are no causes.

    Args:
        runs: with the test's records, all ``ok``.
        case: the test.
        tenants: those with slow requests; at least one.
        trace: runs it.

    """
    run, records, peaks = runs.measured(case)
    record = trace(run, peaks, _seconds(run, records, tenants))
    if record.status != "ok":
        return [f"causes are not known: the traced run was {record.status}: {record.reason}"]
    found = {name: record.tenant(name).causes for name in tenants}
    return [_line(name, causes) for name, causes in found.items() if causes is not None]


def _seconds(run: PlannedRun, records: Sequence[ColocationRecord], tenants: Sequence[str]) -> float:
    """Return how long it takes until each tenant has enough requests for a P99."""
    needed = [LEAST_S]
    for tenant in run.tenants:
        if tenant.name not in tenants:
            continue
        seconds = sum(record.duration_s for record in records)
        issued = sum(record.tenant(tenant.name).issued or 0 for record in records)
        spare = _SPARE_CLOSED if tenant.arrival.closed else _SPARE
        needed.append(minimum_samples(0.99) * spare * seconds / issued if issued else MOST_S)
    # Of the time in which all are there.
    return min(max(needed), MOST_S) + max(tenant.start or 0.0 for tenant in run.tenants)


def _line(tenant: str, causes: Causes) -> str:
    """Return a tenant's causes. P99 leaves few requests, so P95's tail is reported too."""
    line = f"{tenant}: {causes_line(causes)}"
    wider = causes.tails.get("p95")
    if wider is None:
        return "; ".join([line, *causes.limits])
    if "p99" in causes.tails:
        line += f"; of the slowest 5 %: {wider.words}"
    return f"{line} (of what is beyond the median of {wider.median_ms:.3g} ms)"
