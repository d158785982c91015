"""Draws the Vega-Lite descriptions of `charts` to files, in the page's style.

Colours are names of the page's style sheet, ``var(--c0)``: who draws puts in light's or dark's.
vl-convert is imported late.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

REMEDY = "pip install 'pytest-hwqueue[report]'"
INSTALL = f"the plot needs vl-convert-python, which is not installed: {REMEDY}"

Spec = dict[str, Any]

_FILE_WIDTH, _FILE_HEIGHT = 560, 320
# At the 72 of a point it would be as sharp as a screen.
_DOTS_PER_INCH = 300


def colour(name: str) -> str:
    """Return a colour of the page's style sheet."""
    return f"var(--{name})"


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
    size = {"width": _FILE_WIDTH, "height": _FILE_HEIGHT}
    spec = {
        "vconcat": [{"title": name, **size, **chart} for name, chart in charts],
        "resolve": {"scale": {"stroke": "independent", "strokeDash": "independent"}},
    }
    text = _in_light(spec, title, note, "right")
    import vl_convert

    return vl_convert.vegalite_to_svg(text)


def picture(title: str, chart: Spec, note: str = "") -> tuple[str, bytes]:
    """Return a chart as SVG and as PNG, in the colours of light.

    Args:
        title: in lines.
        chart: with a width and height of its own, or those of all pictures.
        note: below the title, in lines.

    Raises:
        ModuleNotFoundError: if vl-convert is not installed; the text says how to get it.

    """
    sized = {"width": _FILE_WIDTH, "height": _FILE_HEIGHT, **chart}
    text = _in_light(sized, title, note.split("\n"), "bottom")
    import vl_convert

    return vl_convert.vegalite_to_svg(text), vl_convert.vegalite_to_png(text, ppi=_DOTS_PER_INCH)


def _in_light(chart: Spec, title: str, note: str | list[str], legend: str) -> str:
    """Return a picture's description as JSON, with colours in place of their names."""
    if not can_plot():
        raise ModuleNotFoundError(INSTALL)
    light = _light()
    spec = {
        "title": {"text": title.split("\n"), "subtitle": note, "offset": 14},
        **chart,
        "config": {**config(legend), "background": colour("card"), "padding": 12},
    }
    return re.sub(
        r"var\(--([\w-]+)\)", lambda found: light.get(found[1], found[0]), json.dumps(spec)
    )


@cache
def style_sheet() -> str:
    """Return the page's style sheet, from which pictures have their colours."""
    return (files(__package__ or "") / "page.css").read_text(encoding="utf-8")


@cache
def _light() -> dict[str, str]:
    """Return the colours of the page when it is light."""
    light = style_sheet().partition(":root.dark")[0]
    return dict(re.findall(r"--([\w-]+): (#\w+)", light))


def missing_packages() -> str | None:
    """Return how to install what a report needs; None if it is installed."""
    needed = {"jinja2": "jinja2", "vl_convert": "vl-convert-python"}
    missing = [package for name, package in needed.items() if find_spec(name) is None]
    return f"the report needs {' and '.join(missing)}: {REMEDY}" if missing else None


def cannot_write(file: Path) -> str | None:
    """Return why no report can be written to a file; None if nothing is known against it."""
    if file.is_dir():
        return f"{file} is a folder: name a file, such as {file / 'report.html'}"
    return missing_packages()
