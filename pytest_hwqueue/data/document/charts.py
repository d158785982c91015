"""Charts as Vega-Lite descriptions: the page embeds them, and `drawing` draws them to files.

A row of a chart's data is a curve, and its samples are columns, which the chart takes apart.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_hwqueue.data.document.drawing import Spec, colour
from pytest_hwqueue.data.metrics.numbers import TimeUnit, counted
from pytest_hwqueue.data.metrics.scaling import Scaling
from pytest_hwqueue.data.records.placement import TenantPlacement

_POINTS = 240
_QUANTILES = (1, 0.5, 0.1, 0.05, 0.01, 0.001, 0.0001)
_CROSS = "M-1,-.6L-.6,-1L0,-.4L.6,-1L1,-.6L.4,0L1,.6L.6,1L0,.4L-.6,1L-1,.6L-.4,0Z"
_DASHES = {TenantPlacement.PROCESSES: [1, 0], TenantPlacement.THREADS: [5, 3]}
_VERDICTS = {"held": "circle", "broken": _CROSS, "undecided": "circle"}
_GOALS = {
    "met": ("all goals met", "circle", "good"),
    "missed": ("a goal missed", _CROSS, "bad"),
    "undecided": ("a goal undecided", "triangle-up", "warn"),
    "none": ("no goals", "square", "soft"),
}
DOTTED = {"strokeDash": [2, 2]}
# The order in which curves take colours: neighbours differ most.
_TONES = ("c0", "c5", "c2", "c3", "c1", "c4", "c6", "sim", "good", "rest")
# What is told of numbers, by their fields; others are told as they are.
_FORMATS = {
    **dict.fromkeys(("x", "y", "percent", "p99", "loss"), ".4~g"),
    **dict.fromkeys(("start", "end"), ".3~f"),
}
# Ratios of an axis' ends: some decades, and many.
_SOME, _MANY = 10, 1000
_LEGEND_WIDTH = 44


@dataclass(frozen=True)
class Curve:
    """One distribution.

    Attributes:
        label: says what it is where somebody points.
        samples_ns: at least one, in any order.
        colour: of its line.
        failed: requests without a latency.
        width: of its line.
        placement: processes (a solid line) or threads (a dashed one).
        opacity: of its line.
        legend: its name in the legend, the label by default; curves may share it.

    """

    label: str
    samples_ns: Sequence[float]
    colour: str
    failed: int = 0
    width: float = 1.5
    placement: TenantPlacement = TenantPlacement.PROCESSES
    opacity: float = 1.0
    legend: str = ""


def survival(samples_ns: Sequence[float], failed: int = 0) -> dict[str, Any]:
    """Return a complementary distribution: ``ns`` ascending, and how many took ``as_long`` of n.

    Requests that never completed count among those that took longer. Every point is a sample; of
    many samples those are kept whose shares are evenly spaced on a logarithmic axis.

    Args:
        samples_ns: shape (n,), at least one, in any order.
        failed: requests without a latency.

    """
    import numpy as np

    ordered = np.sort(np.asarray(samples_ns, dtype=np.float64))
    n = ordered.size
    # Ranks from the slowest, 1, to the fastest, n.
    ranks = np.unique(np.rint(np.geomspace(1, n, _POINTS)).astype(np.int64))[::-1]
    return {
        "ns": [round(each) for each in ordered[n - ranks].tolist()],
        "as_long": (ranks + failed).tolist(),
        "n": n + failed,
    }


def survival_chart(
    curves: Sequence[Curve], unit: TimeUnit, lines: Mapping[str, float] | None = None, *,
    x: str = "latency", y: str = "slower than", simulated: bool = False, hover: bool = True,
) -> Spec:  # fmt: skip
    """Draw the share of samples that took at least a given time, on logarithmic axes.

    Args:
        curves: at least one; later ones lie in front.
        unit: of the times.
        lines: percentiles to mark, in ns by name.
        x: title of the times, without the unit.
        y: title of the shares.
        simulated: written across the chart.
        hover: whether somebody can point at samples.

    """
    rows = [
        {"curve": each.label, "legend": each.legend or each.label, "width": each.width,
         "opacity": each.opacity, **survival(each.samples_ns, each.failed)}
        for each in curves
    ]  # fmt: skip
    least = min(row["as_long"][-1] / row["n"] for row in rows)
    times = [row["ns"][end] / unit.ns for row in rows for end in (0, -1)]
    across = axis_of("x", f"{x}, {unit.name} (log)", log=times, padding=4)
    names = "datum.value == 1 ? 'all' : 'P' + format(100 * (1 - datum.value), '.4~g')"
    ticks = [share for share in _QUANTILES if share >= least / 2]
    up = axis_of("y", y, log=[least, 1], padding=6, values=ticks, labelExpr=names)
    colours = {row["legend"]: each.colour for row, each in zip(rows, curves, strict=True)}
    dashes = [_DASHES[each.placement] for each in curves]
    line = {
        "x": across, "y": up, "detail": {"field": "curve"}, "description": {"field": "curve"},
        "stroke": coloured_by("legend", colours), "strokeWidth": as_it_is("width"),
        "opacity": as_it_is("opacity"),
    }  # fmt: skip
    if _DASHES[TenantPlacement.THREADS] in dashes:
        scale = {"domain": list(colours), "range": dashes}
        line["strokeDash"] = {"field": "legend", "scale": scale, "title": None}
    hints = {"of": "curve", f"{x}, {unit.name}": "x", "took at least as long, %": "percent",
            "n": "n"}  # fmt: skip
    point = {"x": quantity("x"), "y": quantity("y"), "tooltip": tooltip(hints)}
    # Three quarters along the axis or more, a text stands to the left of its line.
    marks = [
        {"x": (at := ns / unit.ns), "top": 8 + 18 * row, "text": f"{name} {at:.4g} {unit.name}",
         "right": at**4 > min(times) * max(times) ** 3}
        for row, (name, ns) in enumerate((lines or {}).items())
    ]  # fmt: skip
    text = {"x": quantity("x"), "y": as_it_is("top"), "text": {"field": "text"}}
    return view(
        {
            "data": {"values": rows},
            "transform": [
                {"flatten": ["ns", "as_long"]},
                computed("x", f"datum.ns / {unit.ns}"),
                computed("y", "datum.as_long / datum.n"),
                computed("percent", "100 * datum.y"),
            ],
            "layer": [
                mark("line", line, interpolate="step-before"),
                # A line is one mark: whoever points at a sample finds this one.
                *[mark("circle", point, opacity=0, size=90, aria=False)] * hover,
            ],
        },
        *[
            mark("rule", {"x": quantity("x")}, marks, **DOTTED),
            mark("text", text, marks, **_beside(4)),
        ] * bool(marks),
        simulated=simulated, description=f"Distributions: {', '.join(colours)}",
    )  # fmt: skip


def scaling_chart(curves: Sequence[tuple[str, Scaling]], *, simulated: bool = False) -> Spec:
    """Draw throughput over streams with intervals, and where each curve saturates.

    Args:
        curves: of one unit, at least one, each with at least one point, and with what
            distinguishes it: empty if it is alone.
        simulated: written across the chart.

    """
    rows: list[Spec] = []
    spans: list[Spec] = []
    colours: dict[str, str] = {}
    for number, (label, found) in enumerate(curves):
        name = ": ".join(filter(None, (label, _saturation(found))))
        colours[name] = tone(number)
        for point in found.points:
            low, high = point.throughput.interval or (None, None)
            rows.append(
                {"curve": name, "x": point.streams, "y": point.throughput.value, "y_low": low,
                 "y_high": high, "fill": tone(number)}
            )  # fmt: skip
        if found.saturation_streams is not None and found.saturation_range is not None:
            low, high = found.saturation_range
            said = "" if label else f"saturated from {found.saturation_streams}"
            spans.append(
                {"curve": name, "x": found.saturation_streams, "low": low, "high": high,
                 "text": said}
            )  # fmt: skip
    unit = curves[0][1].unit
    counts = sorted({row["x"] for row in rows})
    across = axis_of("x", "streams", log=counts, padding=20, values=counts, format="d")
    up = axis_of("y", unit, zero=True, labelExpr="format(datum.value, '~s')")
    stroke = coloured_by("curve", colours, shown=any(label for label, _ in curves))
    tint = {"fill": coloured_by("curve", colours, shown=False)}
    band = {"x": quantity("low"), "x2": {"field": "high"}, **tint}
    line = {"x": across, "stroke": stroke, "description": {"field": "curve"}}
    text = {"x": across, "y": {"value": {"expr": "height - 4"}}, "text": {"field": "text"}}
    hints = {"curve": "curve", "streams": "x", unit: "y", "95 %": "y_interval"}
    return view(
        *[
            mark("rect", band, spans, opacity=0.08),
            mark("rule", line, spans, **DOTTED),
            mark("text", text, spans, align="left", baseline="bottom", dx=5),
        ] * bool(spans),
        _points(rows, {"x": across, "y": up, "stroke": stroke}, hints),
        simulated=simulated, description="Throughput over streams",
    )  # fmt: skip


def _saturation(found: Scaling) -> str:
    if found.saturation_streams is None or found.saturation_range is None:
        return found.refused["saturation_streams"]
    low, high = found.saturation_range
    within = "" if low == high else f" ({low} to {high})"
    return f"saturated from {counted(found.saturation_streams, 'stream')} on{within}"


def rates_chart(
    curves: Mapping[str, Sequence[Spec]], x: str, y: str, *, goal: float | None = None,
    bands: Sequence[tuple[float, float] | None] = (), front: Sequence[tuple[float, float]] = (),
    log: bool = False,
) -> Spec:  # fmt: skip
    """Draw a figure over arrival rates: filled marks held, crosses broke, hollow ones are open.

    Args:
        curves: by name in the legend: rate ``x``, value ``y``, the ends ``y_low`` and ``y_high`` of
            its interval (None where open) and ``verdict`` of each point.
        x: title of the rates.
        y: title of the figure.
        goal: a line across.
        bands: of each curve, from the greatest rate shown to hold to the least shown to break.
        front: rate and figure of what nothing beats, joined by grey steps.
        log: whether the figure's axis is logarithmic; the rates' always is.

    """
    colours = {name: tone(number) for number, name in enumerate(curves)}
    judged = ("held", "broken")
    rows = [
        {**point, "curve": name,
         "fill": colours[name] if point["verdict"] in judged else colour("card")}
        for name, points in curves.items() for point in points
    ]  # fmt: skip
    layers = [
        mark("rect", {"x": {"datum": band[0]}, "x2": {"datum": band[1]}}, [{}], opacity=0.12,
             color=tone(number))
        for number, band in enumerate(bands) if band is not None
    ]  # fmt: skip
    across = axis_of("x", x, log=[row["x"] for row in rows] or [1], padding=12)
    up = axis_of("y", y, log=[row["y"] for row in rows] * log, padding=12)
    if goal is not None:
        at = {"y": {"datum": goal}}
        layers.append(mark("rule", at, [{}], color=colour("ink"), description="the goal", **DOTTED))
    if front:
        steps = [{"x": rate, "y": value} for rate, value in front]
        grey = mark(
            "line", {"x": across, "y": up}, steps, interpolate="step-before", strokeWidth=4,
            opacity=0.5, color=colour("rest"), description="not beaten",
        )  # fmt: skip
        layers.append(grey)
    where = {"x": across, "y": up, "stroke": coloured_by("curve", colours)}
    shape = {"field": "verdict", "scale": scale_of(_VERDICTS), "legend": None}
    hints = {"case": "curve", x: "x", y: "y", "95 %": "y_interval", "verdict": "verdict"}
    layers.append(_points(rows, where, hints, shape=shape))
    return view(*layers, simulated=False, description=f"{y} over {x}")


def waits_chart(
    curves: Mapping[str, Sequence[Spec]], x: str, y: str, *, simulated: bool = False
) -> Spec:
    """Draw waits over the length of what is waited for, on logarithmic axes.

    Args:
        curves: by name in the legend: length ``x``, wait ``y``, and the ends ``y_low`` and
            ``y_high`` of its interval, None where open; all above 0.
        x: title of the lengths.
        y: title of the waits.
        simulated: whether they are a model's.

    """
    colours = {name: tone(number) for number, name in enumerate(curves)}
    rows = [
        {**point, "curve": name, "fill": colours[name]}
        for name, points in curves.items() for point in points
    ]  # fmt: skip
    lengths = [row["x"] for row in rows]
    across = axis_of("x", x, log=lengths, padding=12)
    up = axis_of("y", y, log=[*(row["y"] for row in rows), *lengths], padding=12)
    alike = [{"x": each, "y": each} for each in (min(lengths), max(lengths))]
    whole = mark("line", {"x": across, "y": up}, alike, color=colour("ink"),
                 description="a whole kernel", **DOTTED)  # fmt: skip
    where = {"x": across, "y": up, "stroke": coloured_by("curve", colours)}
    hints = {"mode": "curve", x: "x", y: "y", "95 %": "y_interval"}
    return view(whole, _points(rows, where, hints), simulated=simulated,
                description=f"{y} over {x}")  # fmt: skip


def pareto_chart(points: Sequence[Mapping[str, Any]], *, simulated: bool = False) -> Spec:
    """Draw an urgent tenant's P99 against the loss of another, a mark for each mode.

    Args:
        points: at least one, a mode each.
        simulated: written across the chart.

    """
    losses = [point["loss"] for point in points]
    right = [loss > (min(losses) + max(losses)) / 2 for loss in losses]
    rows = [
        {**point, "text": text, "goals": _GOALS[point["together"]][0], "right": end}
        for point, text, end in zip(points, _shared_labels(points), right, strict=True)
    ]
    front = sorted((row for row in rows if row["front"]), key=lambda row: float(row["loss"]))
    kinds = [_GOALS[kind] for kind in _GOALS if any(p["together"] == kind for p in points)]
    x, y = "throughput lost to native, %", "P99 of the urgent tenant, ms (log)"
    up = axis_of("p99", y, log=[point["p99"] for point in points], padding=20)
    where = {"x": axis_of("loss", x, padding=24), "y": up}
    hints = {"mode": "case", "P99, ms": "p99", "P99, 95 %": "p99_interval", "loss, %": "loss",
            "loss, 95 %": "loss_interval", "": "note"}  # fmt: skip
    shapes: Spec = {
        "color": coloured_by("goals", {name: colour(tone) for name, _, tone in kinds}),
        "shape": {"field": "goals", "title": None,
                  "scale": scale_of({name: shape for name, shape, _ in kinds})},
        "tooltip": tooltip(hints), "description": {"field": "case"},
    }  # fmt: skip
    wide = {**where, "x": quantity("loss_from"), "x2": {"field": "loss_to"}}
    high = {**where, "y": quantity("p99_from"), "y2": {"field": "p99_to"}}
    dashed: Spec = {"interpolate": "step-after", "strokeDash": [6, 4], "strokeWidth": 1}
    text = {**where, "text": {"field": "text"}}
    label: Spec = {"dy": -11, "color": colour("ink"), "lineBreak": "\n", "baseline": "line-bottom"}
    return view(
        mark("line", where, front, **dashed, color=colour("soft")),
        mark("rule", wide, color=colour("rest")),
        mark("rule", high, color=colour("rest")),
        mark("point", {**where, **shapes}, filled=True, opacity=1, size=110),
        mark("text", text, **label, **_beside(8)),
        simulated=simulated, description=f"{y}, against {x}", data={"values": rows},
        transform=[*interval("p99"), *interval("loss")],
    )  # fmt: skip


def _beside(pixels: int) -> Spec:
    """Return how a text stands next to its spot: to the left of what is on the right."""
    align, dx = "datum.right ? 'right' : 'left'", f"datum.right ? -{pixels} : {pixels}"
    return {"align": {"expr": align}, "dx": {"expr": dx}}


def _shared_labels(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a label for each; modes that lie on one spot share one, at the first of them."""
    reach = {
        key: part * (max(point[key] for point in points) - min(point[key] for point in points))
        for key, part in (("loss", 0.15), ("p99", 0.1))
    }
    labels: list[str] = []
    for point in points:
        for at, label in enumerate(labels):
            if label and all(abs(points[at][k] - point[k]) <= most for k, most in reach.items()):
                labels[at] += f"\n{point['case']}"
                labels.append("")
                break
        else:
            labels.append(point["case"])
    return labels


def _points(rows: list[Spec], where: Spec, hints: Mapping[str, str], **others: Spec) -> Spec:
    """Return lines with intervals and marks."""
    bars = {**where, "y": quantity("y_from"), "y2": {"field": "y_to"}}
    marks = {**where, **others, "fill": as_it_is("fill"), "tooltip": tooltip(hints)}
    return {
        "data": {"values": rows},
        "transform": interval("y"),
        "layer": [
            mark("line", {**where, "description": {"field": "curve"}}, strokeWidth=1.3),
            mark("rule", bars),
            mark("point", marks, size=50, opacity=1),
        ],
    }


def tone(number: int) -> str:
    """Return the colour of the curve of this number."""
    return colour(_TONES[number % len(_TONES)])


def view(*layers: Spec, simulated: bool, description: str, **others: Any) -> Spec:
    """Return a chart of layers, from the back to the front."""
    middle = {"x": {"value": {"expr": "width / 2"}}, "y": {"value": {"expr": "height / 2"}}}
    style = {"text": "SIMULATED", "angle": -18, "color": colour("sim"), "opacity": 0.2}
    across = mark("text", middle, [{}], **style, fontSize={"expr": "min(44, width / 9)"})
    return {"description": description, **others, "layer": [*[across] * simulated, *layers]}


def mark(kind: str, encoding: Spec, values: list[Spec] | None = None, **style: Any) -> Spec:
    """Return a layer; without values it shows what its view has."""
    data = {} if values is None else {"data": {"values": values}}
    return {**data, "mark": {"type": kind, **style}, "encoding": encoding}


def axis_of(
    name: str, title: str, *, log: Iterable[float] = (), padding: int = 0, domain: object = None,
    zero: bool = False, **axis: Any,
) -> Spec:  # fmt: skip
    """Return a field on an axis, which is logarithmic if ``log`` has the values to show."""
    spread = list(log)
    scale: Spec = {"type": "log"} if spread else {"zero": zero}
    if padding:
        scale |= {"nice": False, "padding": padding}
    if domain is not None:
        scale["domain"] = domain
    if spread and "values" not in axis:
        axis |= {"labelExpr": "format(datum.value, '.4~g')", **_ticks(min(spread), max(spread))}
    return {**quantity(name), "scale": scale, "axis": {"title": title, "grid": True, **axis}}


def _ticks(low: float, high: float) -> Spec:
    """Return few round numbers for several decades; for less Vega finds better ones."""
    if not high > _SOME * low > 0:
        return {"tickCount": 6}
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = (1, 2, 5) if high < _MANY * low else (1,)
    ticks = [digit * 10.0**decade for decade in decades for digit in digits]
    return {"values": [each for each in ticks if low <= each <= high]}


def quantity(name: str) -> Spec:
    """Return a field with numbers."""
    return {"field": name, "type": "quantitative"}


def as_it_is(name: str) -> Spec:
    """Return a field whose values are colours, widths or pixels, which no scale changes."""
    kind = "quantitative" if name in ("top", "opacity", "width") else "nominal"
    return {"field": name, "type": kind, "scale": None}


def computed(name: str, expression: str) -> Spec:
    """Return a field that is computed."""
    return {"calculate": expression, "as": name}


def interval(name: str) -> list[Spec]:
    """Return the ends to draw, and the interval in words; an open end is drawn at the value."""
    low, high = f"datum.{name}_low", f"datum.{name}_high"
    words = [
        f"({end} == null ? '{open_}' : format({end}, '.4~g'))"
        for end, open_ in ((low, "-∞"), (high, "∞"))
    ]
    return [
        computed(f"{name}_from", f"{low} == null ? datum.{name} : {low}"),
        computed(f"{name}_to", f"{high} == null ? datum.{name} : {high}"),
        computed(f"{name}_interval", f"'[' + {words[0]} + ', ' + {words[1]} + ']'"),
    ]


def scale_of(by: Mapping[str, str]) -> Spec:
    """Return a scale that has a value for each name."""
    return {"domain": list(by), "range": list(by.values())}


def coloured_by(name: str, colours: Mapping[str, str], *, shown: bool = True) -> Spec:
    """Return colours by name, with their legend; a long name is broken into lines."""
    symbol = {"symbolType": "stroke"} if name == "curve" else {}
    legend: Spec | None = {"title": None, **symbol} if shown else None
    wrapped = {each: textwrap.wrap(each, _LEGEND_WIDTH) for each in colours}
    if legend and any(len(lines) > 1 for lines in wrapped.values()):
        legend["labelExpr"] = f"{json.dumps(wrapped)}[datum.label]"
    return {"field": name, "type": "nominal", "scale": scale_of(colours), "legend": legend}


def tooltip(fields: Mapping[str, str]) -> list[Spec]:
    """Return what is shown where somebody points: fields by title."""
    return [
        {"title": title, "field": name, "type": "nominal"}
        | ({"type": "quantitative", "format": _FORMATS[name]} if name in _FORMATS else {})
        for title, name in fields.items()
    ]
