"""Builds a scenario's table from its runs: every tenant's figures under every scheduler."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pytest_hwqueue.answers.which.file import (
    NOT_MEASURED,
    WhichCase,
    WhichFile,
    WhichSession,
    WhichTenant,
    WhichUse,
    choices,
    proof_of,
)
from pytest_hwqueue.answers.which.runs import Entry, WhichRuns
from pytest_hwqueue.data.figures import of_requests as figures
from pytest_hwqueue.data.figures import over_sessions
from pytest_hwqueue.data.figures.of_requests import Estimator, ServedRequests, TimesOf
from pytest_hwqueue.data.figures.served import failed_for
from pytest_hwqueue.data.metrics.energy import EnergyWindow, energy_of_a_request
from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.metrics.latency import CONFIDENCE, minimum_samples
from pytest_hwqueue.data.records.origin import origin_of
from pytest_hwqueue.data.records.plan import Tenant
from pytest_hwqueue.data.records.tenants import (
    NOT_OURS,
    ColocationRecord,
    ServerOrigin,
    TenantResult,
)
from pytest_hwqueue.engine.scenarios.deciding import both_ends_by_s
from pytest_hwqueue.engine.scenarios.planned_runs import PlannedRun, native_run, solo_run, within_of
from pytest_hwqueue.engine.scenarios.runs import PeakUnknown
from pytest_hwqueue.engine.tenants import DEVICE
from pytest_hwqueue.engine.tenants.arrivals import CLIENT

_NS_PER_MS = 1e6
_P50, _P99 = figures.percentile(0.5), figures.percentile(0.99)


def table(entries: Sequence[Entry], runs: WhichRuns, *, complete: bool = True) -> WhichFile:
    """Return a scenario's table from the measurements so far.

    Args:
        entries: rows of the table, at least one.
        runs: measured, or read.
        complete: whether everything planned was measured.

    """
    scenario = entries[0].case.scenario
    cases = [_case(entry, runs) for entry in entries]
    sessions = _sessions(entries, runs)
    records = [record for entry in entries for record in records_of(runs, entry.run)]
    return WhichFile(
        **origin_of(records),
        scenario=scenario.name,
        description=scenario.description,
        complete=complete,
        cases=cases,
        choices=choices(cases, sessions=len(sessions)),
        sessions=sessions,
    )


def _sessions(entries: Sequence[Entry], runs: WhichRuns) -> list[WhichSession]:
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
            cases=[] if len(found) == 1 else _cases_of(entries, runs.within(session)),
        )
        for session, first in found.items()
    ]


def _cases_of(entries: Sequence[Entry], runs: WhichRuns) -> list[WhichCase]:
    cases = [_case(entry, runs) for entry in entries]
    return [case for case in cases if case.status != NOT_MEASURED]


def _case(entry: Entry, runs: WhichRuns) -> WhichCase:
    try:
        stored = runs.records_so_far(entry.run)
        records = [record for record, _ in stored]
        status, reason = _status(records)
    except PeakUnknown as error:
        stored, records, status, reason = [], [], "failed", str(error)
    known = WhichCase(
        id=entry.id,
        role=entry.role,
        variant=None if entry.case.variant is None else entry.case.variant.name,
        placement=entry.run.placement,
        scheduler=entry.run.scheduler,
        status=status,
        reason=reason,
        records=[path.name for _, path in stored],
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
            "tenants": [_tenant(entry, tenant, records, runs) for tenant in entry.run.tenants],
            "goals": judged,
            "device_use": _device_use(entry, runs),
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
    entry: Entry,
    tenant: Tenant,
    records: Sequence[ColocationRecord],
    runs: WhichRuns,
) -> WhichTenant:
    windows = runs.windows(entry.run, tenant.name)
    results = [record.tenant(tenant.name) for record in records]
    goals = entry.case.goals
    within_ns = within_of(entry.run, tenant.name, goals)
    native = native_run(entry.case)
    solo = solo_run(entry.case, tenant)
    rates = [result.throughput for result in results if result.throughput is not None]
    items = [rate.items_per_s / rate.requests_per_s for rate in rates if rate.requests_per_s > 0]

    def over(estimator: Estimator, reference: PlannedRun) -> Estimate | None:
        return _ratio(estimator, entry.run, reference, tenant.name, runs)

    p99 = _percentile(windows, 0.99)
    # Then no longer window gives more.
    counted = any(each.requests is not None for each in entry.run.tenants)
    kept = None if entry.role == "solo" else over(figures.throughput, native)
    attained = (
        None
        if within_ns is None
        else over_sessions.absolute(figures.attainment(within_ns), windows, CONFIDENCE)
    )
    energy = [
        EnergyWindow(each.mean_power_w, each.duration_s)
        for each in records
        if each.mean_power_w is not None
    ]
    issued = sum(result.issued or 0 for result in results)
    return WhichTenant(
        name=tenant.name,
        work=_work(tenant, results),
        priority=tenant.priority,
        origin=_origin(results),
        issued=issued,
        completed=sum(result.completed or 0 for result in results),
        failed=sum(result.failed or 0 for result in results),
        unserved=sum(result.unserved or 0 for result in results),
        failed_for=failed_for(results),
        requests_per_s=in_unit(over_sessions.absolute(figures.throughput, windows, CONFIDENCE)),
        mean_ms=in_unit(
            over_sessions.absolute(figures.mean, windows, CONFIDENCE), 1 / _NS_PER_MS, "ms"
        ),
        variation=in_unit(over_sessions.absolute(figures.variation, windows, CONFIDENCE)),
        min_ms=_shortest(windows),
        p50_ms=_percentile(windows, 0.5),
        p90_ms=_percentile(windows, 0.9),
        p95_ms=_percentile(windows, 0.95),
        p99_ms=p99,
        p99_by_s=None
        if counted or (p99.value is not None and p99.interval is not None)
        else both_ends_by_s(windows, 0.99, CONFIDENCE),
        max_ms=_longest(windows),
        attained_within_ms=None if within_ns is None else within_ns / _NS_PER_MS,
        attainment=None if attained is None else in_unit(attained),
        energy_j=None
        if attained is None or len(energy) < len(records)
        else energy_of_a_request(energy, issued, attained),
        unit=rates[0].unit if rates else "",
        throughput_items_per_s=_throughput(windows, items, f"{rates[0].unit}/s" if rates else ""),
        throughput_loss=None if kept is None else loss_of(kept),
        p50_over_solo=over(_P50, solo),
        p99_over_solo=over(_P99, solo),
        throughput_over_solo=over(figures.throughput, solo),
    )


def _device_use(entry: Entry, runs: WhichRuns) -> list[WhichUse]:
    """Return how the device was used in traced windows; nothing where none was."""
    if not runs.traced(entry.run):
        return []
    everyone = runs.use(entry.run, DEVICE)
    of_all = WhichUse(
        tenant=DEVICE,
        busy=_of_use(everyone, figures.busy),
        switches_per_s=_of_use(everyone, figures.switches, "/s"),
    )
    return [of_all, *(_tenant_use(entry, each.name, runs) for each in entry.run.tenants)]


def _tenant_use(entry: Entry, name: str, runs: WhichRuns) -> WhichUse:
    windows = runs.use(entry.run, name)
    if isinstance(windows, str):
        refused = Estimate(refused=windows)
        return WhichUse(
            tenant=name, busy=refused, wait_p99_ms=refused, throughput_over_measured=refused
        )
    measured = runs.windows(entry.run, name)
    over = over_sessions.ratio(figures.throughput, windows, measured, CONFIDENCE)
    return WhichUse(
        tenant=name,
        busy=_of_use(windows, figures.busy),
        wait_p99_ms=_percentile(windows, 0.99, "wait_ns"),
        throughput_over_measured=in_unit(over).informative(unit="×"),
    )


def _of_use(
    windows: Sequence[ServedRequests] | str, estimator: Estimator, unit: str = ""
) -> Estimate:
    """Return a figure of traced windows; refused where their text says why there are none."""
    if isinstance(windows, str):
        return Estimate(refused=windows, unit=unit)
    return in_unit(over_sessions.absolute(estimator, windows, CONFIDENCE), unit=unit)


def _work(tenant: Tenant, results: Sequence[TenantResult]) -> str:
    works = " or ".join(dict.fromkeys(result.work for result in results if result.work))
    at_once = tenant.concurrency
    parts = [works, f"{at_once} at once" if at_once > 1 else ""]
    # Alone it has nobody to start after; and when a client's first request came is no plan.
    late_ns = 0 if tenant.arrival == CLIENT else max((each.from_ns for each in results), default=0)
    late_s = late_ns / 1e9
    parts.append(f"starts {late_s:g} s later" if late_s else "")
    return ", ".join(filter(None, parts)) if works else ""


def _origin(results: Sequence[TenantResult]) -> ServerOrigin | None:
    """Return whose server a tenant's is: not ours, if it was not in any window."""
    origins = [each.server.origin for each in results if each.server is not None]
    return next((each for each in origins if each in NOT_OURS), next(iter(origins), None))


def _percentile(
    windows: Sequence[ServedRequests], quantile: float, of: TimesOf = "latency_ns"
) -> Estimate:
    estimate = over_sessions.absolute(figures.percentile(quantile, of), windows, CONFIDENCE)
    found = in_unit(estimate, 1 / _NS_PER_MS, "ms")
    if estimate.n < minimum_samples(quantile):
        # What it is at least is known, and enough to miss a goal.
        refused = found.without_value(estimate.refused)
        return refused.model_copy(update={"low": found.low}) if found.low > 0 else refused
    return found


def _shortest(windows: Sequence[ServedRequests]) -> Estimate:
    """Return the shortest latency of the requests that completed; others took longer."""
    latencies = [latency for window in windows for latency in window.latency_ns]
    if not latencies:
        return Estimate(unit="ms", refused="no request was completed")
    return Estimate(value=min(latencies) / _NS_PER_MS, n=len(latencies), unit="ms")


def _longest(windows: Sequence[ServedRequests]) -> Estimate:
    """Return the longest latency, of these requests alone: without an interval."""
    found = in_unit(figures.longest(windows, CONFIDENCE), 1 / _NS_PER_MS, "ms")
    return found.model_copy(update={"low": -math.inf, "high": math.inf})


def _throughput(windows: Sequence[ServedRequests], items: Sequence[float], unit: str) -> Estimate:
    """Return items per second; without a completed request the number of items is unknown."""
    estimate = over_sessions.absolute(figures.throughput, windows, CONFIDENCE)
    if not items:
        reason = "no request was completed in time"
        return Estimate(value=0.0, low=0.0, unit=unit, refused=reason)
    return in_unit(estimate, items[0], unit)


def _ratio(
    estimator: Estimator, own: PlannedRun, reference: PlannedRun, tenant: str, runs: WhichRuns
) -> Estimate | None:
    if own.key == reference.key:
        return None
    windows = runs.windows(own, tenant)
    what = reference.name if len(reference.tenants) == 1 else reference.scheduler
    records = records_of(runs, reference)
    shared = set(runs.sessions(reference)) if records else set()
    bad = runs.unusable(own, reference) if records else None
    status, reason = _status(records if bad is None else [bad])
    if bad is not None or not records:
        return Estimate(refused=f"{what} was {status}: {reason}")
    if not shared.intersection(window.session for window in windows):
        return Estimate(sessions=0, refused=f"{what} was measured in other sessions only")
    estimate = over_sessions.ratio(estimator, windows, runs.windows(reference, tenant), CONFIDENCE)
    if estimate.refused and estimator is not figures.throughput:
        return estimate.without_value(estimate.refused)
    if estimate.value is None:
        return estimate.without_value(f"{what} has nothing to divide by")
    figure = in_unit(estimate)
    if estimator is not figures.throughput and figure.value is not None:
        figure = figure.informative(unit="×")
        if figure.value is None:
            return figure
    measured = len({window.session for window in windows})
    if estimate.sessions < measured and not figure.refused:
        reason = f"of {estimate.sessions} of {measured} sessions: the others lack {what}"
        return figure.model_copy(update={"refused": reason})
    return figure


def loss_of(kept: Estimate) -> Estimate:
    """Turn the share kept into the share lost; refused if that tells too little."""
    if kept.value is None:
        return kept
    lost = {"value": 1 - kept.value, "low": 1 - kept.high, "high": 1 - kept.low}
    found = kept.model_copy(update=lost)
    if found.interval is None:
        return found.without_value(found.refused or "its interval has no end on one side")
    return found.informative()


def in_unit(estimate: Estimate, factor: float = 1.0, unit: str = "") -> Estimate:
    """Return an estimate in a table's unit; an infinite value is refused."""
    scaled = estimate.scaled(factor, unit)
    if scaled.value is not None and math.isinf(scaled.value):
        return scaled.without_value(scaled.refused)
    return scaled


def records_of(runs: WhichRuns, run: PlannedRun) -> list[ColocationRecord]:
    """Return the records of a run, which may be none, yet or for good."""
    try:
        return runs.records(run)
    except PeakUnknown:
        return []
