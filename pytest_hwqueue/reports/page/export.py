"""A report's charts as pictures, for papers and slides."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pytest_hwqueue.records.files import write_bytes, write_text
from pytest_hwqueue.reports.charts import coloured_by, mark
from pytest_hwqueue.reports.document import Chart, Document, Heading
from pytest_hwqueue.reports.drawing import Spec, picture
from pytest_hwqueue.reports.page.render import Page

# Characters of a title's line, which is as wide as a chart, and of a file's name.
_LINE, _LONGEST_NAME = 76, 150


def export_charts(page: Page, folder: Path) -> int:
    """Write each chart of a report as SVG and PNG, in the colours of light.

    Files are named after what a chart is of (a cell, a sweep, a scenario) and its title.

    Args:
        page: what the report shows.
        folder: to write to; it is made if it is missing.

    Returns:
        The number of charts.

    Raises:
        RecordError: if a file cannot be written.
        ModuleNotFoundError: if vl-convert is not installed; the text says how to get it.

    """
    names: Counter[str] = Counter()
    # Every cell of a sweep shows the sweep's chart.
    charts = {id(chart): (about, chart) for about, chart in _charts(page)}
    for about, chart in charts.values():
        if chart.spec is None:
            continue
        # Of an answer's heading the name has the question.
        short = re.split("[?:] ", about)[0]
        name = re.sub(r"\W+", "-", f"{short}-{chart.title}", flags=re.ASCII)[:_LONGEST_NAME]
        names[name] += 1
        file = folder / (name if names[name] == 1 else f"{name}-{names[name]}")
        spec, note = _still(chart.spec, chart.note)
        lines = textwrap.wrap(note, _LINE)
        if chart.left_out:
            lines += textwrap.wrap(f"Not drawn: {', '.join(chart.left_out)}.", _LINE)
        title = "\n".join([*textwrap.wrap(about, _LINE), chart.title])
        svg, png = picture(title, spec, "\n".join(lines))
        write_text(file.with_name(f"{file.name}.svg"), svg)
        write_bytes(file.with_name(f"{file.name}.png"), png)
    return names.total()


def _charts(page: Page) -> Iterator[tuple[str, Chart]]:
    """Return every chart of a report with what it is of."""
    for answer in page.answers:
        yield from _within(answer)
    cells = Counter(view.cell.shown.cell_id for view in page.details)
    for view in page.details:
        about = view.cell.shown.cell_id
        if cells[about] > 1:
            about += f", session {view.cell.session}"
        for chart in (*view.charts, *view.timelines):
            yield about, chart
        for document in view.parts:
            yield from _within(document)


def _within(document: Document) -> Iterator[tuple[str, Chart]]:
    heading = document.parts[0]
    about = heading.text if isinstance(heading, Heading) else ""
    return ((about, part) for part in document.parts if isinstance(part, Chart))


def _still(spec: Spec, note: str) -> tuple[Spec, str]:
    """Return of a timeline its beginning, which nobody can move, with a legend; and its note."""
    if "usermeta" not in spec:
        return spec, note
    last = next(each["value"] for each in spec["params"] if each["name"] == "last")
    names: dict[str, str] = spec["usermeta"]["legend"]
    # Marks that nobody sees have a legend that everybody does.
    legend = mark("square", {"color": coloured_by("name", names)}, [{}], opacity=0)
    still = {
        **spec,
        "height": spec["usermeta"]["height"],
        "transform": [*spec["transform"], {"filter": "datum.start <= last"}],
        "layer": [*spec["layer"], legend],
    }
    return still, f"the first {last:.3g} {spec['usermeta']['unit']}"
