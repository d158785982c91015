"""Builds the rows of one cell: its figures, those of its tags, and the lines below them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from pytest_hwqueue.metrics.interference import LatencyRatioResult
from pytest_hwqueue.metrics.latency import LatencySummary, interval_of
from pytest_hwqueue.metrics.numbers import (
    NO_INTERVAL,
    REFUSED,
    Interval,
    PrintedFigure,
    counted,
    figure,
    memory,
    microseconds,
    milliseconds,
    percent,
    rate,
    time_unit,
    times,
    untold,
)
from pytest_hwqueue.metrics.overlap import Bandwidth, OverlapEfficiency
from pytest_hwqueue.metrics.overlap import Figure as Measured
from pytest_hwqueue.records.cell import RanksSummary, RunRecord
from pytest_hwqueue.reports.document import Column, Line, Row, Table
from pytest_hwqueue.reports.notes import Notes
from pytest_hwqueue.reports.servers import failures

PERCENTILES = {"p50": "P50", "p95": "P95", "p99": "P99", "p999": "P99.9"}
_WITH_INTERVAL = ("p50", "p99")
_AFTER = {"after_other": "after other", "after_same": "after same"}
_TIMES = (*PERCENTILES, "max")
COLUMNS = (
    Column("n", "n", right=True),
    Column("p50", "P50", shares=_TIMES),
    Column("p95", "P95", shares=_TIMES, rank=2, kept=False),
    Column("p99", "P99", shares=_TIMES),
    Column("p999", "P99.9", shares=_TIMES, rank=4, kept=False),
    Column("max", "max", shares=_TIMES, rank=4, kept=False),
    Column("throughput", "throughput", unit_in_header=False, rank=3),
    Column("after_other", "ready→start", _AFTER["after_other"], rank=5),
    Column("after_same", "ready→start", _AFTER["after_same"], rank=5),
    Column("in_flight", "kernels", "in flight", rank=5),
    Column("overlap", "overlap", rank=5),
    Column("peak_allocated", "peak", "memory", unit_in_header=False, rank=5),
    Column("process_peak", "peak", "of process", unit_in_header=False, rank=5),
)
"""Of a cell's figures; narrow tables leave P95, P99.9 and the maximum to the records."""
_NS_PER_MS = 1e6
# Of memory, the best first: a device offers one of them.
_MEMORY = ("peak_allocated", "process_peak")
NO_REASON = "no reason was recorded"
# Of its pass; a machine that is left alone stays far below.
_WAITED_SHARE = 0.01
# From here on a tail says more of the CPU than of the device.
_CONTENDED_SHARE = 0.1
Show = Callable[[float, Interval | None], PrintedFigure]
"""Prints a value and its interval."""


def figures_table(
    cells: Sequence[tuple[RunRecord, str, dict[str, str]]], columns: Sequence[Column],
    left_out: Collection[str] = (), *, ratios_once: bool = False,
) -> Table:  # fmt: skip
    """Return a table with every figure of cells.

    Args:
        cells: each a record, its name in notes, and text by column that identifies it.
        columns: of those texts; the first is ``workload``.
        left_out: keys of `COLUMNS` that are not shown.
        ratios_once: whether ratios are explained in the notes, once for several cells.

    """
    notes = Notes()
    rows = [
        row
        for record, name, texts in cells
        for row in CellRows(record, name, notes, left_out).rows(texts, ratios_once)
    ]
    return Table([*columns, *COLUMNS], rows, notes.lines(len(cells)))


class CellRows:
    """Turns one record into rows for a table with certain columns.

    Args:
        record: any record, measured or not.
        name: the cell as notes call it.
        notes: collects refusals, explanations and footnotes.
        left_out: keys of `COLUMNS` that the table does not show.

    """

    def __init__(
        self, record: RunRecord, name: str, notes: Notes, left_out: Collection[str] = ()
    ) -> None:
        self._record = record
        self._name = name
        self._notes = notes
        self._left_out = left_out

    def rows(self, identity: dict[str, str], ratios_once: bool) -> list[Row]:
        """Return the cell's row and those of its tags; it has a style if it came to nothing.

        Args:
            identity: text by column that identifies the cell.
            ratios_once: whether ratios are explained in the notes, once for several cells.

        """
        record, metrics = self._record, self._record.metrics
        head = Row(texts=dict(identity), opens=True)
        marks = "".join(self._notes.footnote(text) + " " for text in remarks_of(record))
        if marks:
            head.texts["workload"] += f" {marks.rstrip()}"
        if record.primary.per != "iteration" or record.primary.name != "iteration":
            head.texts["workload"] += f" · {record.primary.name}"
        if record.launch_bound:
            head.texts["workload"] += " (launch-bound)"
        if record.status != "ok":
            head.style = "yellow" if record.status == "skipped" else "red"
            head.below.append(status_of(record))
        elif metrics.latency is None:
            head.style = "red"
            head.below.append("no latency was recorded")
        if metrics.latency is None:
            return [head]
        self._put_latency(head, metrics.latency, None)
        head.figures["throughput"] = [
            self._figure("throughput", item.value, item.interval, partial(_rate, item.unit),
                         item.refused, "", "interval")
            for item in metrics.throughput
        ]  # fmt: skip
        head.figures |= self._device_figures()
        rows = [head]
        for tag, summary in other_series(record).items():
            rows.append(Row(texts={"workload": f"  {tag}"}))
            self._put_latency(rows[-1], summary, tag)
        for refused, reason in metrics.refused.items():
            self._notes.refuse(refused, reason, self._name)
        below: list[Line] = rows[-1].below
        below += [self._ratio(*item, ratios_once) for item in metrics.ratios.items()]
        if metrics.overlap is not None:
            below.append(self._hidden(metrics.overlap))
        if metrics.bandwidth is not None:
            below.append(self._bandwidth(metrics.bandwidth))
        if record.ranks is not None:
            below.append(_ranks(record.ranks))
        if metrics.apart:
            below.append([f"{name} {value:.3g}" for name, value in metrics.apart.items()])
        return rows

    def _figure(
        self, what: str, value: float | None, interval: Interval | None,
        show: Show, refused: Mapping[str, str],
        key: str, interval_key: str = "", tag: str | None = None,
    ) -> PrintedFigure:  # fmt: skip
        """Return a figure; if it or an interval with a key is refused, note under its key why."""
        if value is None:
            self._notes.refuse(what, refused.get(key, NO_REASON), self._name, tag)
            return REFUSED
        if interval is None and interval_key:
            reason = refused.get(interval_key, NO_REASON)
            self._notes.refuse(f"interval of {what}", reason, self._name, tag)
        return show(value, interval)

    def _put_latency(self, row: Row, summary: LatencySummary, tag: str | None) -> None:
        """Put in the percentiles and the maximum, in one unit."""
        given = {key: getattr(summary, key) for key in PERCENTILES}
        values = [value * _NS_PER_MS for value in given.values() if value is not None]
        most = summary.max * _NS_PER_MS
        unit = time_unit((values or [summary.mean * _NS_PER_MS])[0], [*values, most])
        row.texts["n"] = str(summary.n)
        if "max" not in self._left_out:
            row.figures["max"] = [milliseconds(summary.max, unit)]
        for key, value in given.items():
            if key not in self._left_out:
                told = key in _WITH_INTERVAL
                shown = self._figure(
                    PERCENTILES[key], value, summary.intervals.get(key) if told else None,
                    lambda ms, ends: milliseconds(ms, unit, ends),
                    summary.refused, key, interval_of(key) if told else "", tag,
                )  # fmt: skip
                if shown == REFUSED:
                    row.reasons[key] = summary.refused.get(key, NO_REASON)
                elif told and not shown.interval:
                    shown = replace(shown, interval=NO_INTERVAL)
                row.figures[key] = [shown]

    def _device_figures(self) -> dict[str, list[PrintedFigure]]:
        """Return the timeline's and the memory's figures; a refused one is noted once."""
        metrics, found = self._record.metrics, dict[str, list[PrintedFigure]]()
        if metrics.ready_to_start is not None:
            split = metrics.ready_to_start.other_stream_before
            for key, side in (("after_other", split.first), ("after_same", split.second)):
                # Where streams take turns no kernel comes behind one of its own stream.
                if side.n:
                    what, interval = f"ready→start {_AFTER[key]}", side.median_interval
                    found[key] = [
                        self._figure(
                            what, side.median, interval, microseconds, side.refused, "median"
                        )
                    ]
        if metrics.timeline is not None:
            mean, share = metrics.timeline.in_flight_mean, metrics.timeline.overlap_efficiency
            refused = metrics.timeline.refused
            found["in_flight"] = [
                self._figure("kernels in flight", mean, None, figure, refused, "in_flight_mean")
            ]
            found["overlap"] = [
                self._figure("overlap", share, None, percent, refused, "overlap_efficiency")
            ]
        peak = next((key for key in _MEMORY if key in metrics.memory_bytes), None)
        if peak is not None:
            found[peak] = [memory(metrics.memory_bytes[peak])]
        return found

    def _ratio(self, name: str, ratio: LatencyRatioResult, once: bool) -> list[str]:
        parts = []
        for key, value in (("p50", ratio.p50), ("p99", ratio.p99)):
            interval = ratio.intervals.get(key)
            # Too wide to be printed; the gate, which compares runs, still has it.
            wide = None if value is None else untold(value, interval, unit="×")
            refused = {**ratio.refused, key: wide} if wide else ratio.refused
            shown = self._figure(
                f"{name} at {PERCENTILES[key]}", None if wide else value, interval, times, refused,
                key, interval_of(key),
            )  # fmt: skip
            parts.append(f"{shown} at {PERCENTILES[key]}")
        parts[0] = f"{name} {parts[0]}"
        if once:
            self._notes.explain(name, ratio.description)
        else:
            parts.append(f"({ratio.description})")
        return parts

    def _hidden(self, overlap: OverlapEfficiency) -> list[str]:
        times = {
            "compute alone": overlap.compute_ms,
            "comms alone": overlap.comms_ms,
            "both": overlap.both_ms,
        }
        parts = [
            f"{name} {milliseconds(given.value, time_unit(given.value * _NS_PER_MS))}"
            for name, given in times.items()
            if given is not None
        ]
        shown = self._measured("overlap efficiency", overlap, "efficiency", percent)
        return [f"overlap efficiency {shown}", *parts]

    def _bandwidth(self, found: Bandwidth) -> list[str]:
        alone, bus = (
            self._measured(f"{key} bandwidth", found, key, partial(_rate, "GB/s"))
            for key in ("algorithm", "bus")
        )
        return [
            f"comms alone {alone} algorithm bandwidth",
            f"{bus} bus bandwidth of one rank",
        ]

    def _measured(
        self, what: str, of: OverlapEfficiency | Bandwidth, key: str, show: Show
    ) -> PrintedFigure:
        found: Measured | None = getattr(of, key)
        value, interval = (None, None) if found is None else (found.value, found.interval)
        return self._figure(what, value, interval, show, of.refused, key, f"{key} interval")


def status_of(record: RunRecord) -> str:
    """Return why a record that is not ok is not, such as ``FAILED in stage set-up: …``."""
    stage = f" in stage {record.stage}" if record.stage else ""
    return f"{record.status.upper()}{stage}: {record.reason or NO_REASON}"


def other_series(record: RunRecord) -> dict[str, LatencySummary]:
    """Return the other series with a latency: tags, and the whole iteration."""
    metrics = record.metrics
    series = dict(metrics.tags)
    if record.primary.per != "iteration" and metrics.iteration is not None:
        series["iteration"] = metrics.iteration
    return series


def percentiles_ns(record: RunRecord) -> dict[str, float]:
    """Return a record's P50 and P99 in ns, by their names; refused ones are left out."""
    latency = record.metrics.latency
    given = {key: getattr(latency, key, None) for key in _WITH_INTERVAL}
    return {PERCENTILES[k]: value * _NS_PER_MS for k, value in given.items() if value is not None}


def _rate(unit: str, value: float, interval: Interval | None) -> PrintedFigure:
    return rate(value, unit, interval)


def remarks_of(record: RunRecord) -> list[str]:
    """Return what a reader should know before trusting the record's numbers."""
    remarks = []
    if record.warm_up is not None and not record.warm_up.stable:
        remarks.append(f"warm-up did not become stable: {record.warm_up.reason}")
    if record.stopped and not re.fullmatch(r"\d+ iterations", record.stopped):
        remarks.append(f"measuring ended early: {record.stopped}")
    telemetry = record.telemetry
    noted = any("throttled" in note for note in record.notes)
    if telemetry is not None and telemetry.throttled and not noted:
        remarks.append(f"{counted(telemetry.throttled_samples, 'sample')} taken while throttled")
    waited = record.counters.waited_most() if record.counters is not None else None
    if waited is not None and waited[1] > _WAITED_SHARE:
        of = f"{percent(waited[1])} of its time waiting, thread {waited[0]}"
        trust = ": do not trust these tails" if waited[1] > _CONTENDED_SHARE else ""
        remarks.append(f"the CPU was contended ({of}){trust}")
    if record.failed_for:
        came = failures(record.failed_requests or 0, record.failed_for)
        remarks.append(f"of its requests {came}")
    return remarks + record.notes


def _ranks(ranks: RanksSummary) -> list[str]:
    """Return how many processes ran the cell, and how much they differed."""
    if ranks.skew is None:
        return [f"one rank, over {ranks.backend}"]
    shown = [value for value in (ranks.skew.p50, ranks.skew.p99) if value is not None]
    unit = time_unit(shown[0] * _NS_PER_MS if shown else 0, [v * _NS_PER_MS for v in shown])
    apart = [
        f"{milliseconds(value, unit, ranks.skew.intervals.get(key))} at {PERCENTILES[key]}"
        for key, value in (("p50", ranks.skew.p50), ("p99", ranks.skew.p99))
        if value is not None
    ]
    parts = [f"{ranks.world_size} ranks over {ranks.backend}"]
    if apart:
        parts.append(f"last behind first {', '.join(apart)}")
    if ranks.straggler is not None:
        late = ranks.parts[ranks.straggler]
        parts.append(f"straggler: rank {late.rank}, last in {percent(late.slowest_share)}")
    return parts
