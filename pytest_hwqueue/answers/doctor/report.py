"""`hwq doctor` as documents; every number says how it was obtained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_hwqueue.data.document.document import (
    Column,
    Document,
    Heading,
    Paragraph,
    Part,
    Row,
    Table,
)
from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.metrics.numbers import PrintedFigure, counted, figure, printed, rate_of

if TYPE_CHECKING:
    from pytest_hwqueue.answers.doctor.diagnosis import Diagnosis
    from pytest_hwqueue.answers.doctor.limits import (
        DeviceLimits,
        DispatchDelay,
        Limit,
        QueuesAtOnce,
    )

_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red", "unknown": "cyan"}


def machine_document(sections: Mapping[str, Mapping[str, str]]) -> Document:
    """Return values by name under their headings."""
    parts: list[Part] = []
    for title, said in sections.items():
        rows = [Row({"name": name, "value": value}) for name, value in said.items()]
        parts += [Heading(title), Table((Column("name", ""), Column("value", "")), rows)]
    return Document(parts)


def diagnosis_document(diagnosis: Diagnosis) -> Document:
    """Return checks, with advice where there is something to do, and limits."""
    columns = (Column("name", "check"), Column("status", "status"))
    rows = [
        Row(
            {"name": check.name, "status": check.status}, style=_STYLES[check.status], opens=True,
            below=[line for line in (check.found, check.advice) if line],
        )
        for check in diagnosis.checks
    ]  # fmt: skip
    parts: list[Part] = [Heading("Checks"), Table(columns, rows)]
    if diagnosis.limits is not None:
        parts += _limits(diagnosis.limits)
    if diagnosis.quick:
        said = "fewer samples (of shorter kernels on the CPU), so wider intervals"
        parts.append(Paragraph(f"Taken with --quick: {said}."))
    return Document(parts)


def _limits(limits: DeviceLimits) -> list[Part]:
    """Return the tables of launching, streams, queues and dispatch, and what is missing."""
    single = [*limits.launching, *limits.streams]
    parts: list[Part] = []
    if limits.rates:
        parts += [Heading("The device's own limits"), _single_table(limits.rates, "most", rate_of)]
        parts += _missing((row.name, row.figure) for row in limits.rates)
    parts += [Heading("Limits"), _single_table(single, "median", _printed)]
    parts += _missing((row.name, row.figure) for row in single)
    if limits.queues:
        parts += [Heading("Queues that run at once"), _queue_table(limits.queues)]
    if limits.most_at_once is not None:
        most = limits.most_at_once
        parts.append(
            Paragraph(f"At most {most.effective:.1f} at once, on {most.streams} streams.", "")
        )
    parts += _missing((name, Estimate(refused=reason)) for name, reason in limits.refused.items())
    parts += [Heading(_DISPATCH), _dispatch_table(limits.dispatch)]
    parts += _missing((counted(row.streams, "stream"), row.delay) for row in limits.dispatch)
    return parts


_DISPATCH = "Dispatch by the device alone (kernels of 50 µs, held until all are enqueued)"


def _single_table(
    rows: Sequence[Limit], what: str, show: Callable[[Estimate], PrintedFigure]
) -> Table:
    """Return a table of single figures, under the heading ``what``."""
    columns = (
        Column("name", "what"), Column("figure", what, unit_in_header=False),
        Column("n", "n", right=True, rank=1),
    )  # fmt: skip
    return Table(columns, [
        Row({"name": row.name, "n": str(row.figure.n or "")}, {"figure": [show(row.figure)]})
        for row in rows
    ])  # fmt: skip


def _queue_table(rows: Sequence[QueuesAtOnce]) -> Table:
    columns = (
        Column("streams", "streams", "one kernel each", right=True), Column("time", "time"),
        Column("at_once", "at once"),
        Column("events", "with an event", "behind each", rank=1), Column("n", "n", right=True),
    )  # fmt: skip
    return Table(columns, [
        Row({"streams": str(row.streams), "n": str(row.effective.n)}, {
            "time": [figure(row.time_ms, unit="ms")],
            "at_once": [_printed(row.effective)],
            "events": [figure(row.effective_with_events)],
        })
        for row in rows
    ])  # fmt: skip


def _dispatch_table(rows: Sequence[DispatchDelay]) -> Table:
    columns = (
        Column("streams", "streams", right=True), Column("ready", "ready to start"),
        Column("one", "same on", "one stream", rank=1), Column("overhead", "overhead"),
    )  # fmt: skip
    return Table(columns, [
        Row({"streams": str(row.streams)}, {
            "ready": [_printed(row.delay)],
            "one": [replace(_printed(row.on_one_stream), interval="")],
            "overhead": [_printed(row.overhead)],
        })
        for row in rows
    ])  # fmt: skip


def _missing(rows: Iterable[tuple[str, Estimate]]) -> list[Part]:
    """Return the reason for each missing number."""
    return [
        Paragraph(f"{name}: not available: {given.refused or 'no reason was given'}", "")
        for name, given in rows
        if given.value is None
    ]


def _printed(given: Estimate) -> PrintedFigure:
    # Streams are counted, not sampled.
    unit, finest = given.unit.replace("us", "µs"), 0 if given.unit == "distinct" else None
    return printed(given, lambda value, ends: figure(value, ends, unit, finest))
