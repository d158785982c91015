"""Latency bounds that a test asserts on its record: ``record.assert_p99("12 ms")``."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, cast

from pytest_hwqueue.data.errors import BadInput, BoundMissed, BoundUndecided, RefusedFigure
from pytest_hwqueue.data.metrics.estimate import Estimate, Summary, label, named
from pytest_hwqueue.data.metrics.latency import CONFIDENCE
from pytest_hwqueue.data.metrics.numbers import TimeUnit, milliseconds, percent

if TYPE_CHECKING:
    from pytest_hwqueue.data.metrics.latency import LatencySummary
    from pytest_hwqueue.data.records.cell import Metrics, RunRecord

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

        The percentile itself decides. If its interval contains the bound, or has no upper end and
        a sample reached the bound, a failure says so, and what passes warns (`BoundUndecided`). A
        failure of a tail says that the CPU was contended, if it was.

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

    The sample percentile decides, not its interval: whoever bounds a latency wants an answer from
    one run. What casts doubt on it in the summary does so here.

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
    is_below = figure * _NS_PER_MS < bound.ns
    shown = milliseconds(float(figure), interval_ms=figure.interval)
    parts = [
        f"{label(name)} of {what} is {shown} (n = {latency.n}), {'' if is_below else 'not '}below "
        f"{bound.name}",
        *_doubts(record, latency, figure, bound),
        *([] if is_below or name == "p50" else _contention(record)),
    ]
    if not is_below:
        raise BoundMissed("; ".join(parts))
    if len(parts) > 1:
        warnings.warn("; ".join(parts), BoundUndecided, stacklevel=3)


def _doubts(
    record: RunRecord, latency: LatencySummary, figure: Estimate, bound: TimeUnit
) -> Iterator[str]:
    """Return why another run might decide otherwise."""
    low, high = figure.low * _NS_PER_MS, figure.high * _NS_PER_MS
    is_below = figure * _NS_PER_MS < bound.ns
    # Of a bound that no sample came near, a missing end says nothing.
    reached = latency.max * _NS_PER_MS >= bound.ns
    if figure.interval is None:
        if not (reached if is_below else low < bound.ns):
            return
        yield f"it has no interval: {figure.refused}"
    elif low < bound.ns <= high:
        allow = "" if is_below else ", or allow more"
        yield (
            f"the {CONFIDENCE:.0%} interval contains the bound, so it could go either way: "
            f"{remedy(record)}{allow}"
        )


def _contention(record: RunRecord) -> list[str]:
    """Return that the CPU may have made a tail slow; what passes has passed all the same."""
    contended = cpu_contention(record)
    return [str(contended)] if contended is not None and contended.distorts_tails else []


# Of its pass; a machine that is left alone stays far below.
_WAITED_SHARE = 0.01
# From here on a tail says more of the CPU than of the device.
_CONTENDED_SHARE = 0.1


class CpuContention(NamedTuple):
    """How long a cell's most delayed thread waited for a core, as a share of the pass."""

    thread: str
    share: float

    @property
    def distorts_tails(self) -> bool:
        """Whether tails say more of the CPU than of the device."""
        return self.share > _CONTENDED_SHARE

    def __str__(self) -> str:
        trust = ": do not trust these tails" if self.distorts_tails else ""
        of = f"{percent(self.share)} of its time waiting, thread {self.thread}"
        return f"the CPU was contended ({of}){trust}"


def cpu_contention(record: RunRecord) -> CpuContention | None:
    """Return how long a cell waited for cores; None if that is unknown, or as ever."""
    waited = record.counters.waited_most() if record.counters is not None else None
    return CpuContention(*waited) if waited is not None and waited[1] > _WAITED_SHARE else None


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
