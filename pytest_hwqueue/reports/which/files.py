"""What ``hwq which`` writes to files: GitHub-flavoured Markdown, and the plot of latencies."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_hwqueue.metrics.numbers import TimeUnit
from pytest_hwqueue.reports.charts import Curve, survival_chart
from pytest_hwqueue.reports.drawing import Spec, colour, stacked_svg, tone
from pytest_hwqueue.reports.markdown import code, markdown_table, plain
from pytest_hwqueue.reports.notes import Notes
from pytest_hwqueue.reports.page.charts import survival
from pytest_hwqueue.reports.which.words import (
    LABELS,
    SIMULATED,
    answers,
    commands,
    effective,
    failed_lines,
    failure,
    figures,
    goal_counts,
    goal_lines,
    incomplete,
    last_outputs,
    printed,
    proof_line,
    session_title,
    settings,
    several_sessions,
    tenant_lines,
    title,
    trend_title,
)
from pytest_hwqueue.which.file import Trend, WhichCase, WhichFile, trends
from pytest_hwqueue.which.runs import Entry, WhichRuns

_MS = TimeUnit("ms", 1e6)
_LATENCY = "latency from the scheduled arrival"
_SHARE = "share of requests that took at least this long"


def which_markdown(found: WhichFile) -> str:
    """Return everything the terminal shows, with a final newline."""
    blocks = [f"## {plain(title(found))}"]
    if found.simulated:
        blocks.append(f"**{plain(SIMULATED)}**")
    described = (
        found.description,
        "; ".join(settings(found)),
        several_sessions(found),
        *tenant_lines(found),
    )
    blocks += [plain(line) for line in described if line]
    blocks += _table(found, found.cases)
    for trend in trends(found):
        blocks += [f"### {plain(trend_title(trend))}", _trend(trend)]
    for session in found.sessions:
        if session.cases:
            blocks.append(f"### {plain(session_title(found, session))}")
            blocks += _table(found, session.cases)
    blocks += [
        f"{code(case.id)}\n\n```text\n{text}\n```"
        for case in found.cases
        for text in last_outputs(case)
    ]
    blocks += [f"```text\n{line}\n```" for line in failed_lines(found)]
    goals = [
        f"- {code(case.id)} {plain(line)}" for case in found.cases for line in goal_lines(case)
    ]
    if goals:
        blocks += ["### Goals", "\n".join(goals)]
    proofs = [
        f"- {code(case.id)} {plain(proof_line(found, case))}"
        for case in found.cases
        if case.proof is not None
    ]
    if proofs:
        blocks += ["### Proof", "\n".join(proofs)]
    blocks += [f"**{plain(line)}**" for line in (incomplete(found), *answers(found)) if line]
    blocks += [f"Command: {code(command)}" for command in commands(found)]
    return "\n\n".join(blocks) + "\n"


def _table(found: WhichFile, cases: Sequence[WhichCase]) -> list[str]:
    """Return a table of these cases, and what was refused in it."""
    several = len(found.sessions) > 1
    names = ("scheduler", "tenant", *["sessions"] * several, "n")
    searched = any(each.capacity_per_s for case in cases for each in case.tenants)
    keys = [key for key in LABELS if key != "capacity" or searched]
    head = (*names, *(LABELS[key] for key in keys), "goals", "proof")
    notes = Notes()
    rows = []
    for case in cases:
        if case.status != "ok":
            rows.append([code(case.id), f"**{plain(failure(case))}**", *[""] * (len(head) - 2)])
        for index, tenant in enumerate(case.tenants):
            shown = figures(case, tenant, notes)
            cells = [plain(str(shown[key])) if key in shown else "" for key in keys]
            first = index == 0
            rows.append(
                [
                    code(case.id) if first else "",
                    plain(tenant.name),
                    *[str(case.sessions) if first else ""] * several,
                    str(tenant.issued),
                    *cells,
                    goal_counts(case) if first else "",
                    effective(found, case) if first else "",
                ]
            )
    blocks = [markdown_table(head, rows)]
    blocks.append("Brackets are 95 % intervals; latency counts from the scheduled arrival.")
    refused = [f"- {plain(line)}" for line in notes.lines(sum(c.status == "ok" for c in cases))]
    return blocks + ["\n".join(refused)] * bool(refused)


def _trend(trend: Trend) -> str:
    rows = [
        [code(name), *(plain(str(printed(row[each], "ms"))) if each in row else ""
                       for each in trend.variants)]
        for name, row in trend.rows.items()
    ]  # fmt: skip
    return markdown_table(["scheduler", *map(plain, trend.variants)], rows)


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
        if tenant.arrival.text != "closed" or (tenant.priority == most and not alike)
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
            samples = survival(latency_ns, issued - len(latency_ns))
            hue = colour("ink") if alone else tone(coloured)
            coloured += not alone
            style = entry.run.placement
            curves.append(Curve(f"{entry.id}, n = {issued}", samples, hue, placement=style))
    return curves
