"""Builds the rows of one cell: its figures, those of its tags, and the lines below them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pytest_hwqueue.data.document.document import Column, Line, Row, Table
from pytest_hwqueue.data.document.notes import NO_REASON, Notes
from pytest_hwqueue.data.document.servers import failures
from pytest_hwqueue.data.metrics.between_runs import RunSpread
from pytest_hwqueue.data.metrics.contention import Contention
from pytest_hwqueue.data.metrics.estimate import Estimate, Interval
from pytest_hwqueue.data.metrics.interference import LatencyRatioResult
from pytest_hwqueue.data.metrics.latency import LatencySummary
from pytest_hwqueue.data.metrics.launching import LaunchingCalls
from pytest_hwqueue.data.metrics.limits import LimitShare
from pytest_hwqueue.data.metrics.numbers import (
    NO_INTERVAL,
    PrintedFigure,
    counted,
    figure,
    memory,
    microseconds,
    milliseconds,
    percent,
    printed,
    rate,
    time_unit,
    times,
)
from pytest_hwqueue.data.metrics.overlap import Bandwidth, OverlapEfficiency
from pytest_hwqueue.data.records.bounds import cpu_contention
from pytest_hwqueue.data.records.cell import RanksSummary, RunRecord
from pytest_hwqueue.data.records.stored import CellRuns

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
    Column("allocated", "allocated", "at the end", unit_in_header=False, rank=6),
    Column("reserved", "reserved", "at the end", unit_in_header=False, rank=6),
    Column("process_peak", "peak", "of process", unit_in_header=False, rank=5),
)
"""Of a cell's figures; narrow tables leave P95, P99.9 and the maximum to the records."""
_NS_PER_MS = 1e6
# Of memory: an accelerator's, from torch's allocator, or else the process's.
_MEMORY = ("peak_allocated", "allocated", "reserved", "process_peak")
# Of an iteration's time; from here on what a device could do besides is not known.
_LAUNCHING_SHARE = 0.9
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


@dataclass(frozen=True)
class CellRows:
    """Turns one record into rows for a table with certain columns.

    Attributes:
        record: any record, measured or not.
        name: the cell as notes call it.
        notes: collects refusals, explanations and footnotes.
        left_out: keys of `COLUMNS` that the table does not show.

    """

    record: RunRecord
    name: str
    notes: Notes
    left_out: Collection[str] = ()

    def rows(self, identity: dict[str, str], ratios_once: bool) -> list[Row]:
        """Return the cell's row and those of its tags; it has a style if it came to nothing.

        Args:
            identity: text by column that identifies the cell.
            ratios_once: whether ratios are explained in the notes, once for several cells.

        """
        record, metrics = self.record, self.record.metrics
        launching = None if record.samples is None else record.samples.launching
        head = Row(texts=dict(identity), opens=True)
        marks = "".join(self.notes.footnote(text) + " " for text in record_remarks(record))
        if marks:
            head.texts["workload"] += f" {marks.rstrip()}"
        if record.primary.per != "iteration" or record.primary.name != "iteration":
            head.texts["workload"] += f" · {record.primary.name}"
        if record.launch_bound:
            head.texts["workload"] += " (launch-bound)"
        if record.status != "ok":
            head.style = "yellow" if record.status == "skipped" else "red"
            head.below.append(status_of(record))
        elif metrics.judged is None and launching is not None:
            head.style = "yellow"
            head.below.append(launching.refused)
        elif metrics.judged is None:
            head.style = "red"
            head.below.append("no latency was recorded")
        if metrics.judged is None and launching is None:
            return [head]
        if metrics.judged is not None:
            self._put_times(head, metrics.judged, None)
        head.figures["throughput"] = [
            self._figure("throughput", each, partial(_rate, each.unit))
            for each in metrics.throughput
        ]
        head.figures |= self._device_figures()
        rows = [head]
        for tag, summary in other_series(record).items():
            rows.append(Row(texts={"workload": f"  {tag}"}))
            self._put_times(rows[-1], summary, tag)
        for refused, reason in metrics.refused.items():
            # The cell's own note says that it has a pace in place of a latency, or why it has none.
            if not (refused == "latency" and (record.has_pace or launching is not None)):
                self.notes.refuse(refused, reason, self.name)
        below: list[Line] = rows[-1].below
        below += [self._ratio(*item, ratios_once) for item in metrics.ratios.items()]
        if metrics.overlap is not None:
            below.append(self._hidden(metrics.overlap))
        if metrics.bandwidth is not None:
            below.append(self._bandwidth(metrics.bandwidth))
        if record.samples is not None and record.samples.contended is not None:
            below.append(_contended(record.samples.contended))
        if launching is not None:
            below.append(_launching(launching))
        if record.samples is not None and (found := record.samples.back_to_back_shares()):
            below.append(_back_to_back(*found))
        if metrics.limits:
            below.append([*map(self._share, metrics.limits)])
        if record.ranks is not None:
            below.append(_ranks(record.ranks))
        if metrics.apart:
            below.append([f"{name} {value:.3g}" for name, value in metrics.apart.items()])
        return rows

    def _figure(
        self, what: str, given: Estimate, show: Show, tag: str | None = None, *, told: bool = True
    ) -> PrintedFigure:
        """Return a figure, with its interval if ``told``; note why either is refused."""
        self.notes.note(given, what, self.name, tag, interval=told)
        return printed(given, show if told else lambda value, _: show(value, None))

    def _put_times(self, row: Row, summary: LatencySummary, tag: str | None) -> None:
        """Put in the percentiles and the maximum, in one unit."""
        given: dict[str, Estimate] = {key: getattr(summary, key) for key in PERCENTILES}
        values = [each * _NS_PER_MS for each in given.values() if each.value is not None]
        most = summary.max * _NS_PER_MS
        unit = time_unit((values or [summary.mean * _NS_PER_MS])[0], [*values, most])
        row.texts["n"] = str(summary.n)
        if "max" not in self.left_out:
            row.figures["max"] = [milliseconds(summary.max, unit)]
        for key, each in given.items():
            if key not in self.left_out:
                told = key in _WITH_INTERVAL
                shown = self._figure(
                    PERCENTILES[key], each, lambda ms, ends: milliseconds(ms, unit, ends), tag,
                    told=told,
                )  # fmt: skip
                if each.value is None:
                    row.reasons[key] = each.refused or NO_REASON
                elif told and not shown.interval:
                    shown = replace(shown, interval=NO_INTERVAL)
                row.figures[key] = [shown]

    def _device_figures(self) -> dict[str, list[PrintedFigure]]:
        """Return the timeline's and the memory's figures; a refused one is noted once."""
        metrics, found = self.record.metrics, dict[str, list[PrintedFigure]]()
        if metrics.ready_to_start is not None:
            split = metrics.ready_to_start.other_stream_before
            for key, side in (("after_other", split.first), ("after_same", split.second)):
                # Where streams take turns no kernel comes behind one of its own stream.
                if side.n:
                    what = f"ready→start {_AFTER[key]}"
                    found[key] = [self._figure(what, side.median, microseconds)]
        if metrics.timeline is not None:
            mean, share = metrics.timeline.in_flight_mean, metrics.timeline.overlap_efficiency
            found["in_flight"] = [self._figure("kernels in flight", mean, figure, told=False)]
            found["overlap"] = [self._figure("overlap", share, percent, told=False)]
        known = metrics.memory_bytes
        return found | {key: [memory(known[key])] for key in _MEMORY if key in known}

    def _ratio(self, name: str, ratio: LatencyRatioResult, once: bool) -> list[str]:
        parts = []
        for key in _WITH_INTERVAL:
            # What is too wide to be printed the gate, which compares runs, still has.
            given: Estimate = getattr(ratio, key).informative(unit="×")
            at = f"at {PERCENTILES[key]}"
            parts.append(f"{self._figure(f'{name} {at}', given, times)} {at}")
        parts[0] = f"{name} {parts[0]}"
        if once:
            self.notes.explain(name, ratio.description)
        else:
            parts.append(f"({ratio.description})")
        return parts

    def _hidden(self, overlap: OverlapEfficiency) -> list[str]:
        parts = [
            f"{name} {milliseconds(float(given))}"
            for name, given in (("compute alone", overlap.compute_ms),
                                ("comms alone", overlap.comms_ms), ("both", overlap.both_ms))
            if given.value is not None
        ]  # fmt: skip
        shown = self._figure("overlap efficiency", overlap.efficiency, percent)
        return [f"overlap efficiency {shown}", *parts]

    def _share(self, found: LimitShare) -> str:
        share = self._figure(f"share of {found.limit}", found.share, percent)
        if found.most.value is None:
            return f"{share} of {found.limit}"
        return f"{share} of {found.limit} ({rate(found.most.value, found.most.unit)})"

    def _bandwidth(self, found: Bandwidth) -> list[str]:
        show = partial(_rate, "GB/s")
        alone = self._figure("algorithm bandwidth", found.algorithm, show)
        bus = self._figure("bus bandwidth", found.bus, show)
        return [f"comms alone {alone} algorithm bandwidth", f"{bus} bus bandwidth of one rank"]


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
    judged = record.metrics.judged
    given = {} if judged is None else {key: getattr(judged, key) for key in _WITH_INTERVAL}
    return {PERCENTILES[k]: v * _NS_PER_MS for k, v in given.items() if v.value is not None}


def _rate(unit: str, value: float, interval: Interval | None) -> PrintedFigure:
    return rate(value, unit, interval)


def record_remarks(record: RunRecord) -> list[str]:
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
    contended = cpu_contention(record)
    if contended is not None:
        remarks.append(str(contended))
    if record.failed_for:
        came = failures(record.failed_requests or 0, record.failed_for)
        remarks.append(f"of its requests {came}")
    return remarks + record.notes


def _back_to_back(launching: float, idle: float) -> list[str]:
    """Return what bounds a throughput with full queues, and what waiting would cost."""
    bound = "launching" if launching >= _LAUNCHING_SHARE else "the device"
    return [
        f"throughput back to back, bounded by {bound} (launching takes {percent(launching)})",
        f"waiting for each iteration leaves the device idle for {percent(idle)}",
    ]


def _contended(found: Contention) -> list[str]:
    """Return how many streams were in flight while launches were timed, and by what."""
    parts = [str(found), f"{counted(found.windows, 'window')} of {found.launches} launches each"]
    if found.timed_by == "activity":
        return parts
    by = f"timed by {found.timed_by}"
    if found.instrument_ns is not None:
        by += f", of which {milliseconds(found.instrument_ns / _NS_PER_MS)} each are taken off"
    cost = found.mark_cost
    if cost is not None:
        low, high = (percent(each / cost.launch_ns) for each in (cost.low_ns, cost.high_ns))
        by += f" (against windows without: {low} to {high} longer)"
    return [*parts, by]


def _launching(found: LaunchingCalls) -> list[str]:
    """Return how launching calls were timed, and what of them is not the driver's."""
    parts = [str(found), f"{counted(found.windows, 'window')} of {found.launches} launches"]
    parts.append(f"alone {milliseconds(found.alone_ns / _NS_PER_MS)}")
    if found.explained is not None:
        parts.append(f"{percent(found.explained)} of P99 without the driver, too")
    if found.clock_ns is not None:
        parts.append(f"reading the clock takes {found.clock_ns} ns of each")
    return parts


def _ranks(ranks: RanksSummary) -> list[str]:
    """Return how many processes ran the cell, and how much they differed."""
    if ranks.world_size == 1:
        return [f"one rank, over {ranks.backend}"]
    parts = [f"{ranks.world_size} ranks over {ranks.backend}"]
    for what, series in (("last behind first", ranks.skew), ("began within", ranks.apart)):
        if shown := _p50_and_p99(series):
            parts.append(f"{what} {shown}")
    if ranks.straggler is not None:
        late = ranks.parts[ranks.straggler]
        parts.append(f"straggler: rank {late.rank}, last in {percent(late.slowest_share)}")
    return parts


def _p50_and_p99(series: LatencySummary | None) -> str:
    """Return both with their intervals, in one unit; empty where neither is known."""
    given = ((key, getattr(series, key)) for key in _WITH_INTERVAL if series is not None)
    known = {key: each for key, each in given if each.value is not None}
    in_ns = [each * _NS_PER_MS for each in known.values()]
    unit = time_unit(in_ns[0] if in_ns else 0, in_ns)
    return ", ".join(
        f"{milliseconds(each.value, unit, each.interval)} at {PERCENTILES[key]}"
        for key, each in known.items()
    )


def shown(cell: CellRuns, spreads: Mapping[str, RunSpread]) -> RunRecord:
    """Return the middle run, with a note if there are others, or its interval is from elsewhere.

    Args:
        cell: its runs.
        spreads: how far a baseline's runs differ within a session, by cell id.

    """
    record, by = cell.shown(spreads)
    notes = [*record.notes]
    if by:
        notes.append(f"P99's interval is of this session's median run, by {by}")
    if len(cell.runs) == 1 or not cell.measured:
        return record.model_copy(update={"notes": notes})
    count = counted(len(cell.measured), "run")
    if cell.percentile is None:
        note = f"the first of {count}"
    else:
        label = PERCENTILES[cell.percentile]
        which = "median" if len(cell.measured) % 2 else "lower middle"
        note = f"of {count} the one with the {which} {label}"
    if cell.bad:
        note += f"; {len(cell.bad)} more came to nothing"
    return record.model_copy(update={"notes": [*notes, f"{note}: see Runs"]})
