"""Latency bounds that a test asserts on its record: ``record.assert_p99("12 ms")``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from pytest_hwqueue.errors import BadInput, BoundMissed, RefusedFigure
from pytest_hwqueue.metrics.estimate import Estimate, Summary, label, named
from pytest_hwqueue.metrics.latency import CONFIDENCE
from pytest_hwqueue.metrics.numbers import TimeUnit, milliseconds

if TYPE_CHECKING:
    from pytest_hwqueue.metrics.latency import LatencySummary
    from pytest_hwqueue.records.cell import Metrics, RunRecord

_NS = {"ns": 1.0, "us": 1e3, "µs": 1e3, "μs": 1e3, "ms": 1e6, "s": 1e9}
_BOUND = re.compile(rf"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*({'|'.join(_NS)})\s*")
_NS_PER_MS = 1e6


class LatencyBounds:
    """Assertions about a record's latency."""

    def assert_p50(self, bound: str, *, tag: str | None = None) -> None:
        """Fail unless the median of latency is below ``bound``; see `assert_p99`."""
        __tracebackhide__ = True
        _assert_below(self, "p50", bound, tag)

    def assert_p95(self, bound: str, *, tag: str | None = None) -> None:
        """Fail unless P95 of latency is below ``bound``; see `assert_p99`."""
        __tracebackhide__ = True
        _assert_below(self, "p95", bound, tag)

    def assert_p99(self, bound: str, *, tag: str | None = None) -> None:
        """Fail unless P99 of latency is below ``bound``, or if it is refused; both say why.

        The percentile itself decides; a failure shows its interval, and says if that contains the
        bound.

        Args:
            bound: a time with its unit (ns, us, µs, ms, s), such as ``12 ms``.
            tag: whose latency; by default the cell's judged latency.

        Raises:
            BoundMissed: an AssertionError with the figure, its interval and the samples.
            RefusedFigure: an AssertionError with what the percentile lacks and how to get it.
            BadInput: if ``bound`` is not such a time.
            ValueError: if the cell has no such tag.

        """
        __tracebackhide__ = True
        _assert_below(self, "p99", bound, tag)

    def for_test(self) -> RunRecord:
        """Return a copy whose refused figures say whose they are, and what to do about it."""
        record = cast("RunRecord", self)
        return record.model_copy(update={"metrics": _guarded_metrics(record)})


def parse_bound(text: str) -> TimeUnit:
    """Read a time such as ``12 ms``; the unit is ``ns``, ``us``, ``µs``, ``ms`` or ``s``.

    Raises:
        BadInput: if it is not a finite time above zero with a unit.

    """
    found = _BOUND.fullmatch(text) if isinstance(text, str) else None
    ns = float(found[1]) * _NS[found[2]] if found is not None else 0.0
    if not 0 < ns < math.inf:
        raise BadInput(
            f"{text!r} is not a bound on latency; give a time above zero and its unit (ns, us, "
            'µs, ms or s), such as "12 ms"'
        )
    assert found is not None
    return TimeUnit(f"{found[1]} {found[2]}", ns)


def _assert_below(self: LatencyBounds, name: str, text: str, tag: str | None) -> None:
    """Fail unless a percentile of a record's latency is below a bound.

    The sample percentile decides, not its interval: an interval that contains the bound makes the
    outcome a matter of chance, and a failure says so.

    Args:
        self: the record of a cell that was measured.
        name: ``p50``, ``p95`` or ``p99``.
        text: the bound, such as ``12 ms``.
        tag: whose latency; None is the record's primary latency.

    Raises:
        BadInput: if the bound cannot be read.
        BoundMissed: if the percentile is not below it.
        RefusedFigure: if there is no such percentile.
        ValueError: if nothing was measured under the tag.

    """
    __tracebackhide__ = True
    bound = parse_bound(text)
    record = cast("RunRecord", self)
    latency = _latency(record, tag)
    what = _named(record, tag or _primary(record))
    figure: Estimate = getattr(named(latency, what, remedy(record)), name)
    if figure * _NS_PER_MS < bound.ns:
        return
    interval = figure.interval
    shown = milliseconds(float(figure), interval_ms=interval)
    message = f"{label(name)} of {what} is {shown} (n = {latency.n}), not below {bound.name}"
    if interval is None:
        message += f"; it has no interval: {figure.refused}"
    elif interval[0] * _NS_PER_MS < bound.ns:
        message += (
            f"; the {CONFIDENCE:.0%} interval contains the bound, so chance decides: "
            f"{remedy(record)}, or allow more"
        )
    raise BoundMissed(message)


def _guarded_metrics(record: RunRecord) -> Metrics:
    """Return a record's metrics in which refused figures say whose they are."""
    metrics, how = record.metrics, remedy(record)

    def each(summaries: Mapping[str, Summary]) -> dict[str, Summary]:
        return {
            name: named(summary, _named(record, name), how) for name, summary in summaries.items()
        }

    changed: dict[str, object] = {"tags": each(metrics.tags), "ratios": each(metrics.ratios)}
    of = {
        "latency": _primary(record),
        "pace": "pace",
        "iteration": "",
        "device_time": "device time",
    }
    for name, what in of.items():
        summary = getattr(metrics, name)
        if summary is not None:
            changed[name] = named(summary, _named(record, what), how)
    return metrics.model_copy(update=changed)


def _primary(record: RunRecord) -> str:
    """Return what a sample of the judged latency measures; empty for the whole iteration."""
    return "" if record.primary.per == "iteration" else record.primary.name


def _named(record: RunRecord, what: str) -> str:
    return f"{what} in {record.cell_id}" if what else record.cell_id


def remedy(record: RunRecord) -> str:
    """Return how to get more samples than a record has."""
    if "time cap" in record.stopped:
        return f"its {record.stopped} ended it: raise --hwq-max-time, or use a smaller --hwq-size"
    return "measure more: raise --hwq-samples, or --hwq-iterations where it is given"


def _latency(record: RunRecord, tag: str | None) -> LatencySummary:
    __tracebackhide__ = True
    if tag is not None and tag != _primary(record):
        if tag not in record.metrics.tags:
            known = ", ".join(record.metrics.tags) or "none"
            raise ValueError(f"{record.cell_id} has no latency of tag {tag!r}; its tags: {known}")
        return record.metrics.tags[tag]
    latency = record.metrics.latency
    if latency is None:
        reason = record.metrics.refused.get("latency") or record.reason or "nothing was measured"
        if record.has_pace:
            reason += "; measure with --hwq-sync-mode=per_iteration, or bound metrics.pace"
        raise RefusedFigure(f"{record.cell_id} has no latency: {reason}")
    return latency
