"""The answer of ``hwq which --wide``: a row for each scheduler, with each change to native."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_hwqueue.answers.which import words
from pytest_hwqueue.answers.which.file import WhichCase, WhichFile, WhichTenant, natives
from pytest_hwqueue.data.document.document import (
    Column,
    Command,
    Document,
    Heading,
    Line,
    Paragraph,
    Part,
    Row,
    Table,
    Verbatim,
)
from pytest_hwqueue.data.document.notes import SIMULATED, Notes, on_device
from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.metrics.numbers import PrintedFigure, in_unit
from pytest_hwqueue.parts.schedulers.declaration import NATIVE

_LATENCY = (
    Column("mean_ms", "mean", rank=9),
    Column("p50_ms", "P50", rank=4),
    Column("p90_ms", "P90", rank=10),
    Column("p95_ms", "P95", rank=7),
    Column("p99_ms", "P99"),
    Column("max_ms", "max", rank=6),
)
_UNSURE = "~ "
_CHANGES = (
    "The second line of a cell is the change to native of the same placement: the ratio of the two "
    f"figures in one session. {_UNSURE.strip()}: their intervals overlap or lack an end, so it may "
    "be chance."
)


def wide_document(found: WhichFile) -> Document:
    """Return one table with a row for each scheduler, and for each urgent tenant alone."""
    title = f"All schedulers for {found.scenario}.{on_device(found)}"
    parts: list[Part] = [Heading(title, 1)]
    if found.simulated:
        parts.append(Paragraph(SIMULATED, "bold"))
    if missing := words.incomplete(found):
        parts.append(Paragraph(missing, "bold red"))
    several = len(found.sessions) > 1
    parts += _table(found.cases, within_a_session=not several)
    for session in found.sessions:
        if session.cases:
            parts.append(Heading(f"Session {session.folder}"))
            parts += _table(session.cases, within_a_session=True)
    parts.append(Paragraph(words.BRACKETS))
    if any(case.scheduler != NATIVE.name for case in found.cases):
        parts.append(Paragraph(_CHANGES))
    parts += [Verbatim(line, "red") for line in words.failed_lines(found)]
    described = [" · ".join(words.settings(found)), *words.tenant_lines(found)]
    parts += map(Paragraph, filter(None, [*described, words.several_sessions(found)]))
    commands = [session.command for session in found.sessions] or [found.command]
    return Document([*parts, *map(Command, filter(None, dict.fromkeys(commands)))])


def _table(cases: Sequence[WhichCase], *, within_a_session: bool) -> list[Part]:
    """Return the table, and the last output of tenants of cases that failed.

    Args:
        cases: its rows.
        within_a_session: whether latencies may be divided by each other.

    """
    together = [case for case in cases if case.role != "solo" and case.tenants]
    urgent = {tenant.name for case in together for tenant in case.by_urgency()[0]}
    others = dict.fromkeys(tenant.name for case in together for tenant in case.by_urgency()[1])
    notes = Notes()
    rows = []
    for case in cases:
        if case.status != "ok":
            style = words.STYLES.get(case.status, "red")
            reason: list[Line] = [words.failure(case)]
            texts = {"case": case.id, "p99_ms": case.status.upper()}
            rows.append(Row(texts, style=style, opens=True, below=reason))
        elif case.role != "solo" or case.tenants[0].name in urgent:
            native = _native(case, cases) if within_a_session else None
            rows += _rows(case, native, notes)
    # Of traced windows, which are there where a goal or --causes asked for them.
    traced = any(case.device_use for case in cases)
    # One urgent tenant is named once, above its figures.
    of = f" of {next(iter(urgent))}" if len(urgent) == 1 else ""
    columns = [
        Column("case", "scheduler"),
        *[Column("tenant", "tenant")] * (not of),
        Column("n", f"n{of}", right=True, rank=5),
        Column("requests_per_s", "rate", rank=8),
        *_LATENCY,
        *[Column("busy", f"busy{of}", rank=2)] * traced,
    ]
    for name in others:
        columns.append(Column(f"{name}.items", name, "throughput"))
        columns.append(Column(f"{name}.requests", name, rank=3))
        columns += [Column(f"{name}.busy", name, "busy", rank=2)] * traced
    said = [*words.placements(cases), *notes.lines(sum(case.status == "ok" for case in cases))]
    outputs = [text for case in cases for text in words.last_outputs(case)]
    return [Table(columns, rows, said), *map(Verbatim, outputs)]


def _native(case: WhichCase, cases: Sequence[WhichCase]) -> WhichCase | None:
    """Return the row that a row's changes are to; None for native itself, and alone."""
    if case.scheduler == NATIVE.name:
        return None
    found = natives(cases, case.variant)
    return next((each for each in found if each.placement == case.placement), None)


def _rows(case: WhichCase, native: WhichCase | None, notes: Notes) -> list[Row]:
    """Return a row for each urgent tenant of a case; the first has the others' throughput."""
    urgent, others = case.by_urgency()
    busy = {each.tenant: each.busy for each in case.device_use}
    rows = []
    for tenant in urgent:
        row = Row({"case": case.id, "tenant": tenant.name, "n": str(tenant.issued)}, opens=True)
        was = {} if native is None else {each.name: each for each in native.tenants}
        rate = tenant.requests_per_s
        row.figures["requests_per_s"] = [_noted("rate", rate, "/s", case, tenant, notes)]
        for column in _LATENCY:
            figure: Estimate = getattr(tenant, column.key)
            shown = [_noted(column.name, figure, "ms", case, tenant, notes)]
            row.figures[column.key] = shown + _change(figure, column.key, was.get(tenant.name))
        if tenant.name in busy:
            row.figures["busy"] = [_noted("busy", busy[tenant.name], "%", case, tenant, notes)]
        rows.append(row)
    for other in others:
        rows[0].figures.update(_throughput(case, other, notes))
        if other.name in busy:
            share = _noted("busy", busy[other.name], "%", case, other, notes)
            rows[0].figures[f"{other.name}.busy"] = [share]
    return rows


def _throughput(
    case: WhichCase, tenant: WhichTenant, notes: Notes
) -> Mapping[str, list[PrintedFigure]]:
    """Return work and requests per second; of the work also the change to native."""
    unit = f"{tenant.unit}/s"
    items = [_noted("throughput", tenant.throughput_items_per_s, unit, case, tenant, notes)]
    loss = tenant.throughput_loss
    if loss is not None and loss.value is not None:
        change = Estimate(value=-loss.value, low=-loss.high, high=-loss.low)
        items.append(_signed(in_unit(change, "%")))
    elif loss is not None:
        notes.refuse("change to native of throughput", loss.refused, case.id, tenant.name)
    requests = _noted("rate", tenant.requests_per_s, "requests/s", case, tenant, notes)
    return {f"{tenant.name}.items": items, f"{tenant.name}.requests": [requests]}


def _noted(
    what: str, figure: Estimate, unit: str, case: WhichCase, tenant: WhichTenant, notes: Notes
) -> PrintedFigure:
    """Return a formatted figure; why it was refused goes to the notes."""
    if figure.value is None:
        notes.refuse(what, figure.refused, case.id, tenant.name)
    return in_unit(figure, unit)


def _change(figure: Estimate, field: str, native: WhichTenant | None) -> list[PrintedFigure]:
    """Return by how much a latency differs from native's; nothing if one was refused."""
    if native is None or figure.value is None:
        return []
    before: Estimate = getattr(native, field)
    if not before.value:
        return []
    shown = _signed(in_unit(Estimate(value=figure.value / before.value - 1), "%"))
    apart = figure.low > before.high or figure.high < before.low
    return [shown if apart else PrintedFigure(_UNSURE + shown.number, shown.unit)]


def _signed(shown: PrintedFigure) -> PrintedFigure:
    sign = "+" if float(shown.number) > 0 else ""
    return PrintedFigure(sign + shown.number, shown.unit, shown.interval)
