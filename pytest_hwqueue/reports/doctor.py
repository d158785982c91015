"""What `hwq doctor` and `hwq info` print. Every row with a number says where it came from."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from pytest_hwqueue.doctor import Diagnosis
    from pytest_hwqueue.doctor.checks import Check
    from pytest_hwqueue.doctor.information import Section
    from pytest_hwqueue.doctor.limits import Dispatch, Limit, Limits, QueuesAtOnce
    from pytest_hwqueue.doctor.overhead import Overhead

_STYLES = {
    "ok": "green", "warning": "yellow", "problem": "bold red", "unknown": "cyan",
    "within": "green", "not within": "bold red", "undecided": "yellow",
}  # fmt: skip
_FILE_WIDTH = 140
_Interval = Optional[tuple[float, float]]


def make_console() -> Console:
    """Return a console on standard output; a file or pipe gets wide lines, for rows to stay whole.

    There, the environment variable COLUMNS sets another width.
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
    """Print checks, limits and overhead."""
    console = console or make_console()
    console.print(check_table(diagnosis.checks))
    if diagnosis.limits is not None:
        console.print(limit_tables(diagnosis.limits))
    if diagnosis.overhead:
        console.print(overhead_table(diagnosis.overhead))
        console.print(
            "Latency by the harness over a loop written by hand, tiny_kernel_stress, blocks in the "
            "order A B B A. Within: the whole interval is at most the target."
        )
    if diagnosis.quick:
        console.print("Taken with --quick: fewer samples, so wider intervals.")


def check_table(checks: Sequence[Check]) -> Table:
    """One row a check; advice only where there is something to do."""
    table = _table("Checks", "Check", "Status", "Found", "Advice")
    for check in checks:
        status = _styled(check.status)
        table.add_row(check.name, status, escape(check.found), escape(check.advice))
    return table


def limit_tables(limits: Limits) -> RenderableType:
    """Tables of launching, streams, queues at once and dispatch."""
    tables: list[RenderableType] = [_launching_table([*limits.launching, *limits.streams])]
    if limits.queues:
        tables.append(_queue_table(limits.queues))
        most = limits.most_at_once
        if most is not None:
            tables.append(f"At most {most.effective:.1f} at once, on {most.streams} streams.")
    for name, reason in limits.refused.items():
        tables.append(f"{name}: not available: {escape(reason)}")
    tables.append(_dispatch_table(limits.dispatch))
    return Group(*tables)


def overhead_table(rows: Sequence[Overhead]) -> Table:
    """Ratio, difference and verdict at P50 and P99, and the ratio of rates."""
    table = _table(
        "Overhead of the harness", "Dispatch", "Streams", "n", "By hand, P50 µs", "Of", "Ratio",
        "95 % interval", "Difference µs", "Target", "Verdict",
    )  # fmt: skip
    for row in rows:
        start = [row.dispatch, str(row.streams)]
        if row.refused:
            table.add_row(*start, "", "", "", f"not available: {escape(row.refused)}")
            continue
        start += [str(min(row.n, row.bare_n)), _number(row.bare_p50_us)]
        for ratio in row.ratios:
            table.add_row(
                *start,
                ratio.quantile.upper(),
                _or_refused(ratio.value, ratio.refused, "value", digits=4),
                _interval(ratio.interval, digits=4),
                _number(ratio.difference_us),
                f"≤ {ratio.target:g}",
                _styled(ratio.verdict),
            )
            start = ["", "", "", ""]
        if row.rate is not None:
            interval = f"{_interval(row.rate.interval, digits=4)} ({row.rate.confidence:.0%})"
            table.add_row(*start, "kernels/s", _number(row.rate.value, digits=4), interval)
    return table


def _launching_table(rows: Sequence[Limit]) -> Table:
    table = _table("Limits", "What", "Median", "Unit", "95 % interval", "n")
    for row in rows:
        value = _or_refused(row.value, row.refused, "value")
        n = str(row.n) if row.n else ""
        table.add_row(row.name, value, row.unit, _interval(row.interval), n)
    return table


def _queue_table(rows: Sequence[QueuesAtOnce]) -> Table:
    table = _table(
        "Queues that run at once (a kernel of 2 ms and one block on each stream)",
        "Streams", "Time ms", "At once", "95 % interval", "n",
    )  # fmt: skip
    for row in rows:
        table.add_row(
            str(row.streams), _number(row.time_ms), _number(row.effective),
            _interval(row.interval), str(row.n),
        )  # fmt: skip
    return table


def _dispatch_table(rows: Sequence[Dispatch]) -> Table:
    table = _table(
        "Dispatch by the hardware alone (kernels of 50 µs, all held until enqueued)",
        "Streams", "Ready to start µs", "95 % interval", "Same on one stream µs",
        "Overhead µs", "95 % interval",
    )  # fmt: skip
    for row in rows:
        table.add_row(
            str(row.streams),
            _or_refused(row.median, row.refused, "median"),
            _interval(row.interval),
            _number(row.on_one_stream),
            _number(row.overhead),
            _interval(row.overhead_interval),
        )
    return table


def _table(title: str, *columns: str) -> Table:
    return Table(*columns, title=title, title_justify="left", title_style="bold")


def _styled(word: str) -> Text:
    return Text(word, style=_STYLES[word])


def _number(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:#.{digits}g}".rstrip(".")


def _interval(interval: _Interval, digits: int = 3) -> str:
    if interval is None:
        return ""
    return f"{_number(interval[0], digits)} to {_number(interval[1], digits)}"


def _or_refused(value: float | None, refused: Mapping[str, str], name: str, digits: int = 3) -> str:
    if value is not None:
        return _number(value, digits)
    return f"not available: {escape(refused.get(name, 'no reason was given'))}"
