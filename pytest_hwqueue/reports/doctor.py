"""Prints `hwq doctor`; every number says how it was obtained."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from pytest_hwqueue.metrics.numbers import REFUSED, Interval, decimals, fixed

if TYPE_CHECKING:
    from pytest_hwqueue.doctor import Diagnosis
    from pytest_hwqueue.doctor.checks import Check, Section
    from pytest_hwqueue.doctor.limits import DeviceLimits, DispatchDelay, Limit, QueuesAtOnce

_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red", "unknown": "cyan"}
_FILE_WIDTH = 140


def make_console() -> Console:
    """Return a console on standard output; files and pipes get wide lines, so rows stay whole.

    The environment variable COLUMNS sets another width there.
    """
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _FILE_WIDTH
    return Console(width=wide, highlight=False)


def print_machine(sections: Sequence[Section], console: Console | None = None) -> None:
    """Print names and values under their headings."""
    console = console or make_console()
    for section in sections:
        table = _table(section.title, "", "")
        table.show_header = False
        for name, value in section.rows:
            table.add_row(name, escape(value))
        console.print(table)


def print_diagnosis(diagnosis: Diagnosis, console: Console | None = None) -> None:
    """Print checks and limits."""
    console = console or make_console()
    console.print(check_table(diagnosis.checks))
    if diagnosis.limits is not None:
        console.print(limit_tables(diagnosis.limits))
    if diagnosis.quick:
        console.print("Taken with --quick: fewer samples, so wider intervals.")


def check_table(checks: Sequence[Check]) -> Table:
    """Return a row per check, with advice where there is something to do."""
    table = _table("Checks", "Check", "Status", "Found", "Advice")
    for check in checks:
        status = Text(check.status, style=_STYLES[check.status])
        table.add_row(check.name, status, escape(check.found), escape(check.advice))
    return table


def limit_tables(limits: DeviceLimits) -> RenderableType:
    """Return the tables of launching, streams, queues and dispatch, and what is missing."""
    single = [*limits.launching, *limits.streams]
    parts: list[RenderableType] = [_single_table(single)]
    parts += _missing((row.name, row.value, row.refused.get("value")) for row in single)
    if limits.queues:
        parts.append(_queue_table(limits.queues))
    if limits.most_at_once is not None:
        most = limits.most_at_once
        parts.append(f"At most {most.effective:.1f} at once, on {most.streams} streams.")
    parts += _missing((name, None, reason) for name, reason in limits.refused.items())
    parts.append(_dispatch_table(limits.dispatch))
    parts += _missing(
        (f"{row.streams} streams", row.median, row.refused.get("median")) for row in limits.dispatch
    )
    return Group(*parts)


def _single_table(rows: Sequence[Limit]) -> Table:
    table = _table("Limits", "What", "Median", "Unit", "95 % interval", "n")
    for row in rows:
        n = str(row.n) if row.n else ""
        table.add_row(row.name, _number(row.value), row.unit, _interval(row.interval), n)
    return table


def _queue_table(rows: Sequence[QueuesAtOnce]) -> Table:
    table = _table(
        "Queues that run at once", "Streams, one kernel each", "Time ms", "At once",
        "95 % interval", "With an event behind each", "n",
    )  # fmt: skip
    for row in rows:
        table.add_row(
            str(row.streams), _number(row.time_ms), _number(row.effective),
            _interval(row.interval), _number(row.effective_with_events), str(row.n),
        )  # fmt: skip
    return table


def _dispatch_table(rows: Sequence[DispatchDelay]) -> Table:
    table = _table(
        "Dispatch by the device alone (kernels of 50 µs, held until all are enqueued)",
        "Streams", "Ready to start µs", "95 % interval", "Same on one stream µs",
        "Overhead µs", "95 % interval",
    )  # fmt: skip
    for row in rows:
        table.add_row(
            str(row.streams),
            _number(row.median),
            _interval(row.interval),
            _number(row.on_one_stream),
            _number(row.overhead),
            _interval(row.overhead_interval),
        )
    return table


def _missing(rows: Iterable[tuple[str, float | None, str | None]]) -> list[RenderableType]:
    """Return the reason for each missing number."""
    return [
        Text(f"{name}: not available: {reason or 'no reason was given'}")
        for name, value, reason in rows
        if value is None
    ]


def _table(title: str, *columns: str) -> Table:
    return Table(*columns, title=title, title_justify="left", title_style="bold")


def _number(value: float | None) -> str:
    return str(REFUSED) if value is None else fixed(value, decimals(value))


def _interval(interval: Interval | None) -> str:
    return "" if interval is None else f"[{_number(interval[0])}, {_number(interval[1])}]"
