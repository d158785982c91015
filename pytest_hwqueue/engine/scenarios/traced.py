"""A test's tenants run once more, traced: how they use the device, and why requests were slow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pytest_hwqueue.data.metrics.latency import minimum_samples
from pytest_hwqueue.data.records.files import TRACED, TRACED_AGAIN
from pytest_hwqueue.data.records.noise import Causes, causes_line
from pytest_hwqueue.engine.scenarios.planned_runs import Case, PlannedRun
from pytest_hwqueue.engine.scenarios.runs import PeakUnknown, ScenarioRuns, WindowRecord
from pytest_hwqueue.engine.scenarios.traced_windows import MOST_S, enough_s, time_for

Trace = Callable[[PlannedRun, Mapping[str, float], float, str], WindowRecord]
"""Runs tenants traced: peaks by tenant as for any run, for how many seconds, and in which folder
of the session's the record is."""


def trace_for_goals(runs: ScenarioRuns, case: Case, trace: Trace) -> None:
    """Run a test's tenants traced if a goal asks how they use the device, and keep the record.

    Once; not if the test was not measured, or a trace would not show it. The window is no longer
    than the test's measuring time, and as far as that goes it suffices for a P99 of waiting.
    """
    asked = [goal for goal in case.goals if goal.traced]
    if not asked:
        return
    try:
        run, records, peaks = runs.measured(case)
    except PeakUnknown:
        return
    failed = any(record.status != "ok" for record in records)
    if failed or runs.traced(run) or runs.not_traced(run):
        return
    length_s = min(enough_s(run, records, asked), runs.planned_s(run))
    runs.add_traced(run, *trace(run, peaks, length_s, TRACED))


def tenants_in_question(case: Case) -> list[str]:
    """Return the tenants whose latency a goal concerns, or all."""
    of_goals = [goal.tenant for goal in case.goals if goal.about_latency]
    return list(dict.fromkeys(of_goals)) or [tenant.name for tenant in case.tenants]


def causes_in_words(
    runs: ScenarioRuns, case: Case, tenants: Sequence[str], trace: Trace
) -> list[str]:
    """Run a test's tenants traced; return a line per tenant in question.

    A window that was traced for goals serves if it is long enough; else another is traced, whose
    record stands apart, as no goal was judged by it. If tracing fails, the one line says why there
    are no causes.

    Args:
        runs: with the test's records, all ``ok``.
        case: the test.
        tenants: those with slow requests; at least one.
        trace: runs it.

    """
    run, records, peaks = runs.measured(case)
    needed_s = time_for(run, records, tenants, minimum_samples(0.99), MOST_S)
    traced = [each for each in runs.traced(run) if each.plan.duration_s >= needed_s]
    if traced:
        record = traced[-1]
    else:
        folder = TRACED_AGAIN if runs.traced(run) else TRACED
        record, _ = trace(run, peaks, needed_s, folder)
    if record.status != "ok":
        return [f"causes are not known: the traced run was {record.status}: {record.reason}"]
    found = {name: record.tenant(name).causes for name in tenants}
    return [_line(name, causes) for name, causes in found.items() if causes is not None]


def _line(tenant: str, causes: Causes) -> str:
    """Return a tenant's causes. P99 leaves few requests, so P95's tail is reported too."""
    line = f"{tenant}: {causes_line(causes)}"
    wider = causes.tails.get("p95")
    if wider is None:
        return "; ".join([line, *causes.limits])
    if "p99" in causes.tails:
        line += f"; of the slowest 5 %: {wider.words}"
    return f"{line} (of what is beyond the median of {wider.median_ms:.3g} ms)"
