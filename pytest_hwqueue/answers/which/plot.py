"""The plot of latencies that ``hwq which`` writes."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_hwqueue.answers.which.file import WhichFile
from pytest_hwqueue.answers.which.runs import Entry, WhichRuns
from pytest_hwqueue.answers.which.words import title
from pytest_hwqueue.data.document.charts import Curve, survival_chart, tone
from pytest_hwqueue.data.document.drawing import Spec, colour, stacked_svg
from pytest_hwqueue.data.document.notes import SIMULATED
from pytest_hwqueue.data.metrics.numbers import TimeUnit
from pytest_hwqueue.engine.tenants.arrivals import is_closed

_MS = TimeUnit("ms", 1e6)
_LATENCY = "latency from the scheduled arrival"
_SHARE = "share of requests that took at least this long"


def which_svg(found: WhichFile, entries: Sequence[Entry], runs: WhichRuns) -> str | None:
    """Plot the latencies of each tenant that has arrivals or is the most urgent, per variant.

    Others run as fast as they can, so their latency says no more than their throughput; they are
    drawn if there are no others. None if none of their requests was completed.

    Raises:
        ModuleNotFoundError: if vl-convert is not installed.

    """
    measured = {case.id for case in found.cases if case.status == "ok"}
    shown = [entry for entry in entries if entry.id in measured]
    charts: list[tuple[str, Spec]] = []
    for variant in dict.fromkeys(entry.case.variant for entry in shown):
        name = "" if variant is None else f", variant {variant.name}"
        those = [entry for entry in shown if entry.case.variant == variant]
        for tenant in _drawn(those):
            curves = _curves(tenant, those, runs)
            if curves:
                chart = survival_chart(curves, _MS, x=_LATENCY, y=_SHARE, hover=False)
                charts.append((f"tenant {tenant}{name}", chart))
    if not charts:
        return None
    heading = title(found)
    if len(found.sessions) > 1:
        heading += f"\n{len(found.sessions)} sessions on {len(found.device_uuids)} GPUs, together"
    return stacked_svg(f"{heading}\n{SIMULATED}" if found.simulated else heading, charts)


def _drawn(entries: Sequence[Entry]) -> list[str]:
    tenants = {tenant.name: tenant for entry in entries for tenant in entry.run.tenants}
    most = max(tenant.priority for tenant in tenants.values())
    alike = all(tenant.priority == most for tenant in tenants.values())
    urgent = [
        tenant.name
        for tenant in tenants.values()
        if not is_closed(tenant.arrival) or (tenant.priority == most and not alike)
    ]
    return urgent or list(tenants)


def _curves(tenant: str, entries: Sequence[Entry], runs: WhichRuns) -> list[Curve]:
    curves = []
    coloured = 0
    for entry in entries:
        if all(each.name != tenant for each in entry.run.tenants):
            continue
        results = [record.tenant(tenant) for record in runs.records(entry.run)]
        latency_ns = [each for result in results for each in result.latency_ns]
        if latency_ns:
            issued = sum(result.issued or 0 for result in results)
            alone = entry.role == "solo"
            hue = colour("ink") if alone else tone(coloured)
            coloured += not alone
            name, failed = f"{entry.id}, n = {issued}", issued - len(latency_ns)
            curves.append(Curve(name, latency_ns, hue, failed, placement=entry.run.placement))
    return curves
