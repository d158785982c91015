"""Builds a scenario's table from its runs: every tenant's figures under every scheduler."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pytest_hwqueue.metrics.latency import CONFIDENCE, minimum_samples
from pytest_hwqueue.metrics.numbers import untold
from pytest_hwqueue.records.tenants import ColocationRecord, TenantResult
from pytest_hwqueue.scenarios.file import Scenario, Tenant
from pytest_hwqueue.scenarios.goals import latency_bound_ns
from pytest_hwqueue.scenarios.planned_runs import PlannedRun, native_run, solo_run
from pytest_hwqueue.scenarios.runs import PeakUnknown
from pytest_hwqueue.tenancy import figures
from pytest_hwqueue.tenancy import sessions as over_sessions
from pytest_hwqueue.tenancy.cells import failed_for
from pytest_hwqueue.tenancy.figures import Estimate, Estimator, Served
from pytest_hwqueue.which.file import (
    NOT_MEASURED,
    WhichCase,
    WhichFigure,
    WhichFile,
    WhichSession,
    WhichTenant,
    choices,
    proof_of,
)
from pytest_hwqueue.which.runs import Entry, WhichRuns

_NS_PER_MS = 1e6
_P50, _P99 = figures.percentile(0.5), figures.percentile(0.99)


def table(
    scenario: Scenario, entries: Sequence[Entry], runs: WhichRuns, *, complete: bool = True
) -> WhichFile:
    """Return a scenario's table from the measurements so far.

    Args:
        scenario: the scenario.
        entries: rows of the table.
        runs: measured, or read.
        complete: whether everything planned was measured.

    """
    cases = [_case(scenario, entry, runs) for entry in entries]
    sessions = _sessions(scenario, entries, runs)
    records = [record for entry in entries for record in _records(runs, entry.run)]
    fingerprints = [record.fingerprint for record in records if record.fingerprint is not None]
    first = min(records, key=lambda record: record.started, default=None)
    return WhichFile(
        scenario=scenario.name,
        description=scenario.description,
        device="" if first is None else first.device,
        simulated=any(record.simulated for record in records),
        complete=complete,
        seed=None if first is None else first.seed,
        command="" if first is None else first.command,
        version=None if first is None else first.version,
        git_commit=None if first is None else first.git_commit,
        git_dirty=None if first is None else first.git_dirty,
        fingerprint=fingerprints[0] if fingerprints else None,
        cases=cases,
        choices=choices(cases, sessions=len(sessions)),
        sessions=sessions,
    )


def _sessions(scenario: Scenario, entries: Sequence[Entry], runs: WhichRuns) -> list[WhichSession]:
    found = runs.all_sessions()
    return [
        WhichSession(
            folder=Path(session.name).name,
            device_uuid=session.device,
            started=first.started,
            command=first.command,
            version=first.version,
            git_commit=first.git_commit,
            git_dirty=first.git_dirty,
            cases=[] if len(found) == 1 else _cases_of(scenario, entries, runs.within(session)),
        )
        for session, first in found.items()
    ]


def _cases_of(scenario: Scenario, entries: Sequence[Entry], runs: WhichRuns) -> list[WhichCase]:
    cases = [_case(scenario, entry, runs) for entry in entries]
    return [case for case in cases if case.status != NOT_MEASURED]


def _case(scenario: Scenario, entry: Entry, runs: WhichRuns) -> WhichCase:
    try:
        records = runs.found(entry.run)
        status, reason = _status(records)
    except PeakUnknown as error:
        records, status, reason = [], "failed", str(error)
    known = WhichCase(
        id=entry.id,
        role=entry.role,
        variant=None if entry.case.variant is None else entry.case.variant.name,
        placement=entry.run.placement,
        scheduler=entry.run.scheduler,
        status=status,
        reason=reason,
        records=[path.name for path in runs.files.get(entry.run.key, [])],
        sessions=len(set(runs.sessions(entry.run))) if records else 0,
    )
    if status != "ok":
        outputs = {
            tenant.name: tenant.last_output
            for record in records
            for tenant in record.tenants
            if tenant.last_output
        }
        return known.model_copy(update={"last_output": outputs})
    judged = [] if entry.role == "solo" else runs.judge(entry.case)
    return known.model_copy(
        update={
            "window_s": sum(record.duration_s for record in records),
            "tenants": [
                _tenant(scenario, entry, tenant, records, runs) for tenant in entry.run.tenants
            ],
            "goals": judged,
            "proof": proof_of(entry.run.scheduler, records),
        }
    )


def _status(
    records: Sequence[ColocationRecord],
) -> tuple[Literal["ok", "failed", "timeout", "invalid", "skipped", "not measured"], str]:
    """One failed run costs its case the figures: what it would have shown is unknown."""
    if not records:
        return NOT_MEASURED, "there is no record of it"
    for record in records:
        if record.status != "ok":
            return record.status, record.reason
    return "ok", ""


def _tenant(
    scenario: Scenario,
    entry: Entry,
    tenant: Tenant,
    records: Sequence[ColocationRecord],
    runs: WhichRuns,
) -> WhichTenant:
    windows = runs.windows(entry.run, tenant.name)
    results = [record.tenant(tenant.name) for record in records]
    goals = scenario.goals_of(entry.case.variant, entry.case.placement)
    within_ns = latency_bound_ns(goals, tenant.name)
    if tenant.deadline_ms is not None:
        within_ns = tenant.deadline_ms * _NS_PER_MS
    native = native_run(scenario, entry.case)
    solo = solo_run(scenario, entry.case, tenant)
    rates = [result.throughput for result in results if result.throughput is not None]
    items = [rate.items_per_s / rate.requests_per_s for rate in rates if rate.requests_per_s > 0]
    kept = None
    if entry.role != "solo":
        kept = _ratio(figures.throughput, entry.run, native, tenant.name, windows, runs)
    return WhichTenant(
        name=tenant.name,
        work=_work(tenant, results),
        priority=tenant.priority,
        issued=sum(result.issued or 0 for result in results),
        completed=sum(result.completed or 0 for result in results),
        failed=sum(result.failed or 0 for result in results),
        unserved=sum(result.unserved or 0 for result in results),
        failed_for=failed_for(results),
        p50_ms=_percentile(windows, 0.5),
        p95_ms=_percentile(windows, 0.95),
        p99_ms=_percentile(windows, 0.99),
        max_ms=_longest(windows),
        attained_within_ms=None if within_ns is None else within_ns / _NS_PER_MS,
        attainment=None
        if within_ns is None
        else figure_of(over_sessions.absolute(figures.attainment(within_ns), windows, CONFIDENCE)),
        unit=rates[0].unit if rates else "",
        throughput_items_per_s=_throughput(windows, items),
        throughput_loss=None if kept is None else loss_of(kept),
        p50_over_solo=_ratio(_P50, entry.run, solo, tenant.name, windows, runs),
        p99_over_solo=_ratio(_P99, entry.run, solo, tenant.name, windows, runs),
        throughput_over_solo=_ratio(
            figures.throughput, entry.run, solo, tenant.name, windows, runs
        ),
    )


def _work(tenant: Tenant, results: Sequence[TenantResult]) -> str:
    works = " or ".join(dict.fromkeys(result.work for result in results if result.work))
    at_once = tenant.concurrency or 1
    return f"{works}, {at_once} at once" if works and at_once > 1 else works


def _percentile(windows: Sequence[Served], quantile: float) -> WhichFigure:
    estimate = over_sessions.absolute(figures.percentile(quantile), windows, CONFIDENCE)
    if estimate.n < minimum_samples(quantile):
        return WhichFigure(n=estimate.n, sessions=estimate.sessions, reason=estimate.missing)
    return figure_of(estimate, 1 / _NS_PER_MS)


def _longest(windows: Sequence[Served]) -> WhichFigure:
    n = sum(window.issued for window in windows)
    latencies = [latency for window in windows for latency in window.latency_ns]
    if len(latencies) < n:
        return WhichFigure(n=n, reason=f"{n - len(latencies)} of {n} requests never completed")
    if not latencies:
        return WhichFigure(reason="there was no request")
    return WhichFigure(value=max(latencies) / _NS_PER_MS, n=n)


def _throughput(windows: Sequence[Served], items: Sequence[float]) -> WhichFigure:
    """Return items per second; without a completed request the number of items is unknown."""
    estimate = over_sessions.absolute(figures.throughput, windows, CONFIDENCE)
    if not items:
        return WhichFigure(value=0.0, low=0.0, n=0, reason="no request was completed in time")
    return figure_of(estimate, items[0])


def _ratio(
    estimator: Estimator,
    own: PlannedRun,
    reference: PlannedRun,
    tenant: str,
    windows: Sequence[Served],
    runs: WhichRuns,
) -> WhichFigure | None:
    if own.key == reference.key:
        return None
    what = reference.name if len(reference.tenants) == 1 else reference.scheduler
    records = _records(runs, reference)
    shared = set(runs.sessions(reference)) if records else set()
    bad = runs.unusable(own, reference) if records else None
    status, reason = _status(records if bad is None else [bad])
    if bad is not None or not records:
        return WhichFigure(reason=f"{what} was {status}: {reason}")
    if not shared.intersection(window.session for window in windows):
        return WhichFigure(sessions=0, reason=f"{what} was measured in other sessions only")
    estimate = over_sessions.ratio(estimator, windows, runs.windows(reference, tenant), CONFIDENCE)
    if estimate.missing and estimator is not figures.throughput:
        return WhichFigure(n=estimate.n, sessions=estimate.sessions, reason=estimate.missing)
    if estimate.value is None:
        reason = f"{what} has nothing to divide by"
        return WhichFigure(n=estimate.n, sessions=estimate.sessions, reason=reason)
    figure = figure_of(estimate)
    if estimator is not figures.throughput and figure.value is not None and figure.high is not None:
        too_wide = untold(figure.value, (estimate.low, estimate.high), unit="×")
        if too_wide is not None:
            return _untold(figure, too_wide)
    measured = len({window.session for window in windows})
    if estimate.sessions < measured and not figure.reason:
        reason = f"of {estimate.sessions} of {measured} sessions: the others lack {what}"
        return figure.model_copy(update={"reason": reason})
    return figure


def loss_of(ratio: WhichFigure) -> WhichFigure:
    """Turn the share kept into the share lost; refused if that tells too little."""
    if ratio.value is None:
        return ratio
    kept = (ratio.low or 0.0, math.inf if ratio.high is None else ratio.high)
    reason = untold(1 - ratio.value, (1 - kept[1], 1 - kept[0]))
    if reason is not None:
        return _untold(ratio, reason)
    return WhichFigure(
        value=1 - ratio.value,
        low=None if ratio.high is None else 1 - ratio.high,
        high=None if ratio.low is None else 1 - ratio.low,
        n=ratio.n,
        sessions=ratio.sessions,
        reason=ratio.reason,
    )


def _untold(figure: WhichFigure, reason: str) -> WhichFigure:
    return WhichFigure(n=figure.n, sessions=figure.sessions, reason=reason)


def figure_of(estimate: Estimate, factor: float = 1.0) -> WhichFigure:
    """Return an estimate as a table shows it, scaled by a factor."""
    n, sessions = estimate.n, estimate.sessions
    if estimate.value is None:
        return WhichFigure(n=n, sessions=sessions, reason=estimate.missing)
    if math.isinf(estimate.value):
        return WhichFigure(n=n, sessions=sessions, reason="so many requests never completed")
    high = None if math.isinf(estimate.high) else estimate.high * factor
    return WhichFigure(
        value=estimate.value * factor,
        low=estimate.low * factor,
        high=high,
        n=n,
        sessions=sessions,
        reason=""
        if high is not None
        else f"no upper end: {estimate.missing or 'some requests never completed'}",
    )


def _records(runs: WhichRuns, run: PlannedRun) -> list[ColocationRecord]:
    try:
        return runs.found(run)
    except PeakUnknown:
        return []
