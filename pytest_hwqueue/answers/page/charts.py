"""Charts of a cell: how its samples are distributed, their order, and timelines of streams."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_hwqueue.answers.page.cells import PageCell
from pytest_hwqueue.data.document.cell_rows import percentiles_ns
from pytest_hwqueue.data.document.charts import (
    DOTTED,
    Curve,
    as_it_is,
    axis_of,
    computed,
    mark,
    quantity,
    survival_chart,
    tooltip,
    view,
)
from pytest_hwqueue.data.document.document import Chart
from pytest_hwqueue.data.document.drawing import Spec, colour
from pytest_hwqueue.data.errors import RecordError
from pytest_hwqueue.data.metrics.numbers import TimeUnit, time_unit
from pytest_hwqueue.data.metrics.switching import ready_delays
from pytest_hwqueue.data.records.cell import RunRecord
from pytest_hwqueue.data.records.timelines import TimelineData, TimelineFile, read_kept

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


MOST_DRAWN = 6000
"""Samples that one chart draws of all runs together; a browser draws more too slowly."""

_LEAST_OF_A_RUN = 200
_SPARK_WIDTH, _SPARK_HEIGHT, _SPARK_POINTS = 120, 28, 100
_SMALL = {"fontSize": 11}


def sample_charts(cell: PageCell) -> list[Chart]:
    """Return the distribution of a cell's samples and the samples in order; nothing without any."""
    runs, shown = cell.runs.measured, cell.shown
    if not runs:
        return []
    lines = percentiles_ns(shown)
    unit = time_unit(next(iter(lines.values()), min(runs[0].judged_ns())))
    simulated = shown.simulated
    distribution = survival_chart(_curves(cell), unit, lines, x=_series(shown), simulated=simulated)
    samples = in_order([run.judged_ns() for run in runs])
    order = order_chart(runs, samples, shown, unit, lines)
    note = "As they were taken"
    if len(cell.runs.runs) > 1:
        note = "Run after run; orange is the one whose figures stand above"
    if any(at is not None for at, _ in samples):
        note += "; of each stretch the least and the greatest"
    return [
        Chart("Distribution", distribution, "Share of samples that took at least as long; both "
              "axes logarithmic."),
        Chart("Samples in order", order, f"{note}."),
    ]  # fmt: skip


def _curves(cell: PageCell) -> list[Curve]:
    runs = cell.runs.measured
    one = len(runs) == 1
    style: dict[str, Any] = {"width": 3.0} if one else {
        "width": 1.0, "opacity": 0.65, "legend": f"each run ({len(runs)})",
    }  # fmt: skip
    curves = [
        Curve(f"run {run.run}", run.judged_ns(), colour("c0"), run.failed_requests or 0, **style)
        for run in runs
    ]
    if cell.behind is not None:
        label, samples_ns = cell.behind
        curves.insert(0, Curve(f"baseline {label}", samples_ns, colour("behind"), width=5))
    if not one:
        every = [ns for curve in curves for ns in curve.samples_ns if curve.legend]
        failed = sum(curve.failed for curve in curves)
        curves.append(Curve("all runs pooled", every, colour("c5"), failed, width=3.5))
    return curves


def in_order(runs_ns: Sequence[Sequence[int]]) -> list[tuple[list[int] | None, list[int]]]:
    """Return each run's samples in the order taken: where (from 0; None for all), and in ns.

    Of more than `MOST_DRAWN` in all, the least and the greatest of each stretch are kept.

    Args:
        runs_ns: at least one run of any length.

    """
    most = max(_LEAST_OF_A_RUN, MOST_DRAWN // len(runs_ns))
    kept = [(samples, _extremes(samples, most)) for samples in runs_ns]
    return [
        (at if len(at) < len(samples) else None, [int(samples[each]) for each in at])
        for samples, at in kept
    ]


def spark(samples_ns: Sequence[int]) -> str:
    """Return the path of an SVG of 120 by 28: samples in order, least below, greatest on top."""
    at = _extremes(samples_ns, _SPARK_POINTS)
    if not at:
        return ""
    values = [samples_ns[each] for each in at]
    low, high = min(values), max(values)
    last = max(1, len(samples_ns) - 1)
    scale = (_SPARK_HEIGHT - 4) / (high - low) if high > low else 0.0
    middle = 0.0 if high > low else _SPARK_HEIGHT / 2 - 2
    points = (
        f"{_SPARK_WIDTH * index / last:.1f} {_SPARK_HEIGHT - 2 - middle - (ns - low) * scale:.1f}"
        for index, ns in zip(at, values, strict=True)
    )
    return f"M{'L'.join(points)}"


def _extremes(samples: Sequence[int], most: int) -> list[int]:
    """Return the indices of at most ``most`` samples: each stretch's least and greatest."""
    import numpy as np

    n = len(samples)
    if n <= most:
        return list(range(n))
    values: NDArray[np.int64] = np.asarray(samples, dtype=np.int64)
    edges = np.linspace(0, n, most // 2 + 1).astype(int)
    kept = {
        int(first + chosen)
        for first, end in pairwise(edges)
        for chosen in (values[first:end].argmin(), values[first:end].argmax())
    }
    return sorted(kept)


def _series(record: RunRecord) -> str:
    return "time per iteration" if record.has_pace else "latency"


def order_chart(
    runs: Sequence[RunRecord], samples: Sequence[tuple[list[int] | None, list[int]]],
    shown: RunRecord, unit: TimeUnit, lines: Mapping[str, float],
) -> Spec:  # fmt: skip
    """Draw samples in the order taken, run after run, with what else was going on.

    Args:
        runs: with samples.
        samples: theirs that are drawn, of `in_order`.
        shown: the run whose figures stand for the cell.
        unit: of the times.
        lines: percentiles to mark, in ns by name.

    """
    starts = [0, *accumulate(len(run.judged_ns()) for run in runs)]
    rows: list[Spec] = []
    spans: list[Spec] = []
    noise = ""
    for run, first, end, (at, ns) in zip(runs, starts, starts[1:], samples, strict=False):
        rows.append(
            {"run": f"run {run.run}" + " (shown)" * (run is shown), "first": first, "ns": ns,
             "at": at or [], "colour": colour("c5" if run is shown else "c0")}
        )  # fmt: skip
        spans += _throttled(run, first, end - first)
        before = noise
        noise = "" if run.noise is None else f"{run.noise.noise} ({run.noise.status})"
        if noise:
            spans.append(
                {"x": first, "end": end, "top": 24, "opacity": 0.12, "colour": colour("c3"),
                 "text": "" if noise == before else f"noise {noise}", "ink": colour("sim")}
            )  # fmt: skip
    # To the right of the samples is room for the names of the lines.
    across = axis_of("x", "sample", domain=[0, 1.08 * starts[-1]], padding=6, format="d")
    what = f"{_series(shown)}, {unit.name}"
    up = axis_of("y", what, padding=8)
    hints = tooltip({"run": "run", what: "y", "sample": "sample"})
    span = {"x": quantity("x"), "x2": {"field": "end"}, "opacity": as_it_is("opacity")}
    text = {"x": quantity("x"), "y": as_it_is("top"), "text": {"field": "text"}}
    borders: list[Spec] = [{"x": at} for at in starts[1:-1]]
    layers = [
        *[mark("rect", {**span, "color": as_it_is("colour")}, spans)] * bool(spans),
        {
            "transform": [
                # Only of a run with more samples than are drawn it is written where they were.
                {"flatten": ["ns", "at"]},
                {"window": [{"op": "row_number", "as": "row"}], "groupby": ["first"]},
                computed("sample", "datum.at == null ? datum.row - 1 : datum.at"),
                computed("x", "datum.first + datum.sample"),
                computed("y", f"datum.ns / {unit.ns}"),
            ],
            **mark(
                "circle", {"x": across, "y": up, "color": as_it_is("colour"), "tooltip": hints},
                rows, size=14, opacity=0.7, aria=False,
            ),
        },
        *[
            mark("text", {**text, "color": as_it_is("ink")}, spans, align="left", dx=3, **_SMALL)
        ] * bool(spans),
        mark("rule", {"x": quantity("x")}, borders, color=colour("line")),
    ]  # fmt: skip
    for label, ns_of_line in lines.items():
        height = {"datum": ns_of_line / unit.ns}
        name = {"x": {"value": {"expr": "width"}}, "y": height, "text": {"value": label}}
        layers += [
            mark("rule", {"y": height}, [{}], **DOTTED),
            mark("text", name, [{}], align="right", baseline="bottom", **_SMALL),
        ]
    return view(*layers, simulated=shown.simulated, description="Latencies in the order taken")


def _throttled(run: RunRecord, first: int, samples: int) -> list[Spec]:
    """Return the spans of samples taken while throttled; telemetry counts iterations."""
    if run.telemetry is None or not run.iterations:
        return []
    each = max(1, samples // run.iterations)
    return [
        {"x": first + span.first_sample * each, "end": first + span.end_sample * each, "top": 8,
         "opacity": 0.25, "text": f"throttled: {', '.join(span.reasons)}", "colour": colour("c1"),
         "ink": colour("warn")}
        for span in run.telemetry.throttled
    ]  # fmt: skip


_WORK = re.compile(r"(?P<whose>.+) work")
_OF_A_CELL = "causes"
_TRACED = "requests while traced"
# Names of kernels that have a colour of their own.
_NAMED = 7
_SCREENFUL, _MOST_HIGH, _ROW_HIGH = 400, 800, 26


class _Bar(NamedTuple):
    row: str
    name: str
    ready_ns: int | None
    start_ns: int
    end_ns: int


def timeline_charts(folder: Path, file: TimelineFile, most: int, *, simulated: bool) -> list[Chart]:
    """Return a chart of each timeline stored next to a record; if it is damaged, the reason.

    Args:
        folder: the record's.
        file: the record's own.
        most: kernels to draw of each; of more, the first that started are drawn, and it is said.
        simulated: written across the charts.

    """
    try:
        kept = read_kept(folder, file)
        return [
            _timeline_chart(title, total, bars, most, simulated)
            for title, total, bars in _all(kept, most)
            if bars
        ]
    except (RecordError, ValueError) as error:
        return [Chart(file.file, None, str(error))]


def _all(kept: TimelineData, most: int) -> Iterable[tuple[str, int, list[_Bar]]]:
    """Return each timeline's title, number of kernels and bars, at least the first ``most``."""
    for name in kept.about:
        if f"{name} waits" in kept.tables:
            timeline = kept.timeline(name)
            assert timeline is not None
            ready = {one.kernel: one.delay_ns for one in ready_delays(timeline)}
            yield name, len(timeline.kernels), [
                _Bar(
                    f"stream {one.stream}", one.name,
                    one.start_ns - ready[index] if index in ready else None,
                    one.start_ns, one.end_ns,
                )
                for index, one in enumerate(timeline.kernels)
            ]  # fmt: skip
    traced: list[_Bar] = []
    total = 0
    for table, columns in kept.tables.items():
        found = _WORK.fullmatch(table)
        if found:
            whose = found["whose"]
            of = "" if whose == _OF_A_CELL else f"{whose.removeprefix('tenant ')}, "
            # Of several tenants' kernels, the first ones are among each tenant's first.
            traced += (
                _Bar(f"{of}stream {one.stream}", one.name, one.ready_ns, one.start_ns, one.end_ns)
                for one in kept.work(whose, of, most)
            )
            total += len(columns["name"])
    yield _TRACED, total, traced


def _timeline_chart(title: str, total: int, bars: list[_Bar], most: int, simulated: bool) -> Chart:
    """Draw a bar for each kernel; ``first`` and ``last`` are parameters that the page zooms with.

    Data are in ns from the first start, ``stream`` and ``name`` as indices; a ``ready`` that is not
    known is null.
    """
    bars = sorted(bars, key=lambda bar: bar.start_ns)[:most]
    zero = bars[0].start_ns
    streams = sorted({bar.row for bar in bars}, key=_by_number)
    names = list(dict.fromkeys(bar.name for bar in bars))
    data: dict[str, list[Any]] = {
        "row": [streams.index(bar.row) for bar in bars],
        "name": [names.index(bar.name) for bar in bars],
        "ready": [None if bar.ready_ns is None else bar.ready_ns - zero for bar in bars],
        "start": [bar.start_ns - zero for bar in bars],
        "end": [bar.end_ns - zero for bar in bars],
    }
    # A screenful first: everything at once shows no kernel.
    shown = data["end"][:_SCREENFUL][-1]
    unit = time_unit(shown)
    start = min([0, *(ns for ns in data["ready"][:_SCREENFUL] if ns is not None)])
    # The page says what the colours mean: names of kernels are too long for a legend.
    rest = [f"{len(names) - _NAMED} other names"] * (len(names) > _NAMED)
    legend = {name: colour(f"c{at}") for at, name in enumerate(names[:_NAMED])}
    legend |= dict.fromkeys(rest, colour("rest"))
    across = axis_of("start", f"time since the first start, {unit.name}", format=".6~g")
    across["scale"] |= {"domainMin": {"expr": "first"}, "domainMax": {"expr": "last"}}
    up = {
        "field": "stream", "type": "nominal", "sort": streams,
        "axis": {"title": None, "grid": False, "labelLimit": 220},
    }  # fmt: skip
    times = ("ready", "start", "end")
    hints = {"kernel": "kernel", "on": "stream", f"ready, {unit.name}": "known",
             f"start, {unit.name}": "start", f"end, {unit.name}": "end"}  # fmt: skip
    wait = {"x": {**across, "field": "ready"}, "x2": {"field": "start"}, "y": up}
    bar = {"x": across, "x2": {"field": "end"}, "y": up, "color": as_it_is("colour")}
    style: Spec = {"clip": True, "aria": False}
    values = {
        "names": names, "streams": streams, "colours": list(legend.values()),
        "first": start / unit.ns, "last": 1.02 * shown / unit.ns,
    }  # fmt: skip
    spec = view(
        mark("bar", wait, height=3, opacity=0.45, color=colour("soft"), **style),
        {
            **mark("bar", {**bar, "tooltip": tooltip(hints)}, height={"band": 0.7}, **style),
            "params": [{"name": "zoom", "select": {"type": "interval", "encodings": ["x"]}}],
        },
        simulated=simulated, description=f"{title} ({total} kernels)",
        params=[{"name": name, "value": value} for name, value in values.items()],
        data={"values": [data]},
        transform=[
            {"flatten": list(data)},
            computed("stream", "streams[datum.row]"),
            computed("kernel", "names[datum.name]"),
            computed("colour", f"colours[min(datum.name, {_NAMED})]"),
            *(computed(k, f"datum.{k} == null ? null : datum.{k} / {unit.ns}") for k in times),
            computed("known", "datum.ready == null ? 'not known' : format(datum.ready, '.3~f')"),
        ],
        usermeta={
            "start": start / unit.ns, "end": max(data["end"]) / unit.ns, "unit": unit.name,
            "legend": legend, "height": min(_MOST_HIGH, 80 + _ROW_HIGH * len(streams)),
        },
    )  # fmt: skip
    said = f"the first {len(bars)} of {total} kernels; the others are in the record's timelines"
    return Chart(title, spec, said if len(bars) < total else "")


def _by_number(stream: str) -> tuple[str, int]:
    owner, _, number = stream.rpartition(" ")
    return owner, int(number)
