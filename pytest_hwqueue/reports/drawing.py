"""Draws Vega-Lite descriptions to files, and holds what the descriptions of `charts` consist of.

Colours are names of the page's style sheet, ``var(--c0)``: who draws puts in light's or dark's.
vl-convert is imported late.
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from typing import Any

INSTALL = (
    "the plot needs vl-convert-python, which is not installed: pip install 'pytest-hwqueue[report]'"
)

Spec = dict[str, Any]

# The order in which curves take colours: neighbours differ most.
_TONES = ("c0", "c5", "c2", "c3", "c1", "c4", "c6", "sim", "good", "rest")
# What is told of numbers, by their fields; others are told as they are.
_FORMATS = {
    **dict.fromkeys(("x", "y", "percent", "p99", "loss"), ".4~g"),
    **dict.fromkeys(("start", "end"), ".3~f"),
}
# Ratios of an axis' ends: some decades, and many.
_SOME, _MANY = 10, 1000
_LEGEND_WIDTH, _FILE_WIDTH, _FILE_HEIGHT = 44, 560, 320


def colour(name: str) -> str:
    """Return a colour of the page's style sheet."""
    return f"var(--{name})"


def tone(number: int) -> str:
    """Return the colour of the curve of this number."""
    return colour(_TONES[number % len(_TONES)])


def config(legend: str = "top") -> Spec:
    """Return what all charts have in common; the legend stands at the top, or to the right."""
    ink, soft, line = colour("ink"), colour("soft"), colour("line")
    axis = {"domainColor": line, "tickColor": line, "gridColor": colour("grid")}
    titles = {"titleColor": ink, "titleFontWeight": "normal", "titleFontSize": 13}
    labels = {"labelColor": ink, "labelFontSize": 12}
    room = {"labelOverlap": "greedy", "labelSeparation": 4}
    return {
        "font": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif",
        "background": None,
        "view": {"stroke": None},
        "title": {"color": ink, "subtitleColor": soft, "anchor": "start", "fontSize": 14},
        "axis": {**axis, **titles, **labels, **room, "tickCount": 8},
        "legend": {"orient": legend, **labels, "labelLimit": 0, "symbolStrokeWidth": 3},
        "text": {"fontSize": 12, "color": soft},
        "rule": {"color": soft},
    }


def can_plot() -> bool:
    """Whether vl-convert is installed."""
    return find_spec("vl_convert") is not None


def stacked_svg(title: str, charts: Sequence[tuple[str, Spec]], note: str = "") -> str:
    """Return charts one below another as SVG, in the colours of light.

    Args:
        title: of the whole, in lines.
        charts: each with its title.
        note: below the title.

    Raises:
        ModuleNotFoundError: if vl-convert is not installed; the text says how to get it.

    """
    if not can_plot():
        raise ModuleNotFoundError(INSTALL)
    import vl_convert

    size = {"width": _FILE_WIDTH, "height": _FILE_HEIGHT}
    spec = {
        "title": {"text": title.split("\n"), "subtitle": note, "offset": 14},
        "vconcat": [{"title": name, **size, **chart} for name, chart in charts],
        "resolve": {"scale": {"stroke": "independent", "strokeDash": "independent"}},
        "config": {**config("right"), "background": colour("card"), "padding": 12},
    }
    light = _light()
    text = re.sub(
        r"var\(--([\w-]+)\)", lambda found: light.get(found[1], found[0]), json.dumps(spec)
    )
    return vl_convert.vegalite_to_svg(text)


@cache
def _light() -> dict[str, str]:
    """Return the colours of the page when it is light."""
    css = (files("pytest_hwqueue.reports.page") / "assets" / "page.css").read_text(encoding="utf-8")
    return dict(re.findall(r"--([\w-]+): (#\w+)", css.partition(":root.dark")[0]))


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


def told(fields: Mapping[str, str]) -> list[Spec]:
    """Return what is told where somebody points: fields by title."""
    return [
        {"title": title, "field": name, "type": "nominal"}
        | ({"type": "quantitative", "format": _FORMATS[name]} if name in _FORMATS else {})
        for title, name in fields.items()
    ]
