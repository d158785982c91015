"""The page as one file, and each of its charts as pictures, for papers and slides."""

from __future__ import annotations

import base64
import gzip
import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_hwqueue.answers.page.cells import PageCell, PageRecords, page_cells
from pytest_hwqueue.answers.page.details import DetailsView, details_of
from pytest_hwqueue.answers.page.results import (
    Result,
    place_of,
    result_document,
    results_headline,
)
from pytest_hwqueue.answers.session.noise import noise_lines
from pytest_hwqueue.data.document.charts import coloured_by, mark
from pytest_hwqueue.data.document.document import (
    Chart,
    Column,
    Document,
    Heading,
    Headline,
    Level,
    Part,
)
from pytest_hwqueue.data.document.drawing import (
    Spec,
    config,
    missing_packages,
    picture,
    style_sheet,
)
from pytest_hwqueue.data.document.notes import device_name
from pytest_hwqueue.data.document.scaling import scaling_parts
from pytest_hwqueue.data.figures.of_cell import find_sweeps
from pytest_hwqueue.data.metrics.numbers import counted, grouped
from pytest_hwqueue.data.safe_files import write_bytes, write_text
from pytest_hwqueue.judge.words import SEVERITY, by_severity, change_of, judgement_parts

if TYPE_CHECKING:
    from markupsafe import Markup

    from pytest_hwqueue.data.records.cell import RunRecord
    from pytest_hwqueue.judge.baselines.runs import CellBaseline
    from pytest_hwqueue.judge.judging import Judgement


_WORST: tuple[Level, ...] = ("bad", "warn", "good", "plain")


def headline_of(
    judgements: Sequence[Judgement], results: Sequence[Result], cells: Sequence[PageCell]
) -> Headline:
    """Return the headline: of the comparison, else an answer, else what was measured."""
    if judgements:
        found = [_of_judgement(judgement) for judgement in judgements]
        found.sort(key=lambda each: _WORST.index(each.level))
        return Headline(found[0].level, "; ".join(each.sentence for each in found))
    if results:
        return results_headline(results)
    every, bad = counted(len(cells), "cell"), sum(not cell.runs.measured for cell in cells)
    sentence = f"{bad} of {every} came to no figures" if bad else f"{every} measured"
    return Headline("bad" if bad else "plain", f"{sentence}; nothing was compared with a baseline.")


def _of_judgement(judgement: Judgement) -> Headline:
    worse = [each for each in judgement.verdicts if each.verdict.state == "regression"]
    if worse:
        first = by_severity(worse)[0]
        change = change_of(first.verdict)
        # Failed requests or slower iterations can be one without a ratio of the figure itself.
        by = f" {change}" if first.verdict.main is not None else ""
        figure = f"{first.verdict.quantity.label} of {first.cell_id}{by}"
        among = f"{figure} among others" if len(worse) > 1 else figure
        return Headline("bad", f"Worse than {judgement.baseline}: {among}.")
    if not judgement.judged:
        return Headline("bad", f"Nothing could be compared with {judgement.baseline}.")
    open_ = judgement.count("inconclusive") + judgement.count("incomparable")
    against = f"against {judgement.baseline}"
    if open_ or judgement.missing:
        return Headline("warn", f"No regression shown {against}, but not all is decided.")
    return Headline("good", f"No regression {against}.")


_ASSETS = "assets"
_SCRIPTS = ("page.js", "charts.js")
# Kernels of one timeline, and of all timelines of a page: they are most of its size.
_MOST_KERNELS, _ALL_KERNELS, _LEAST_KERNELS = 5_000, 200_000, 200


@dataclass(frozen=True)
class Page:
    """Everything that a report shows, as words and numbers."""

    headline: Headline
    devices: list[str]
    simulated: bool
    details: list[DetailsView]
    answers: list[Document]
    comparisons: list[Document] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    noise: list[str] = field(default_factory=list)

    @property
    def columns(self) -> list[tuple[str, str]]:
        """The figures in the table of cells, with their headings."""
        compared = any(each.cell.verdicts for each in self.details)
        change = [("change", "Change")] * compared
        return [("p50", "P50"), ("p99", "P99"), *change, ("throughput", "Throughput")]

    @property
    def states(self) -> list[str]:
        """The states of its rows, those first that need a reader."""
        found = {each.cell.state for each in self.details}
        known = [state for state in SEVERITY if state in found]
        return sorted(found.difference(known)) + known


def page_of(
    found: PageRecords,
    page: Path,
    *,
    judgements: Sequence[Judgement] = (),
    baseline: Mapping[str, CellBaseline] | None = None,
    baseline_label: str = "",
) -> Page:
    """Return what a report shows.

    Args:
        found: the records.
        page: where the report will be; traces are linked relative to it.
        judgements: what the records were compared with.
        baseline: cells whose samples are drawn behind, by id.
        baseline_label: of that baseline.

    """
    cells = page_cells(found, judgements, baseline or {}, baseline_label)
    scaling: dict[int, list[Part]] = {}
    folders = grouped((cell.folder, cell.shown) for cell in cells)
    sessions = grouped((cell.session, run) for cell in cells for run in cell.runs.runs)
    for sweep in (sweep for records in folders.values() for sweep in find_sweeps(records)):
        scaling |= dict.fromkeys(map(id, sweep), scaling_parts(sweep, set()))
    with_timelines = sum(cell.timelines is not None for cell in cells)
    kernels = min(_MOST_KERNELS, max(_LEAST_KERNELS, _ALL_KERNELS // max(1, with_timelines)))
    details = [details_of(cell, scaling.get(id(cell.shown), []), kernels, page) for cell in cells]
    answers = []
    results = sorted(found.results, key=lambda each: place_of(each.record))
    for stored in results:
        keys = {
            (name, cell.shown.cell.name.rpartition(".")[2]): cell.key
            for cell in cells
            for name in cell.record_files
            if cell.folder == stored.path.parent
        }
        answers.append(result_document(stored.record, keys))
    judged = {cell.shown.cell_id: cell.key for cell in cells if cell.verdicts}
    records = [cell.shown for cell in cells]
    given = [stored.record for stored in results]
    every: list[RunRecord | Result] = [*records, *given]
    return Page(
        headline=headline_of(judgements, given, cells),
        devices=list(dict.fromkeys(device_name(each) or each.cell.device for each in records)),
        simulated=any(each.simulated for each in every),
        details=details,
        answers=answers,
        comparisons=[
            Document(judgement_parts(each, brief=False, fold=True, details=judged))
            for each in judgements
        ],
        damaged=list(found.damaged),
        noise=[line for those in sessions.values() for line in noise_lines(those)],
    )


def render_page(page: Page) -> str:
    """Return a report as HTML: text, styles, scripts and data in one.

    Raises:
        ModuleNotFoundError: if a package is missing; the text says how to get it.

    """
    needed = missing_packages()
    if needed is not None:
        raise ModuleNotFoundError(needed)
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        loader=PackageLoader(__package__ or "", _ASSETS),
    )  # fmt: skip
    environment.filters["json"] = _json
    environment.tests["of"] = lambda part, kind: type(part).__name__ == kind
    environment.tests["filled"] = Column.is_filled
    environment.tests["number_of"] = lambda column, rows: (
        column.right or any(column.key in row.figures for row in rows)
    )
    assets = files(__package__ or "") / _ASSETS
    template = environment.get_template("page.html.j2")
    return template.render(
        page=page,
        # Our own files, which are no data.
        css=Markup(style_sheet()),
        scripts=[Markup((assets / name).read_text(encoding="utf-8")) for name in _SCRIPTS],
        vega=_vega(),
        chart_config=config(),
    )


def write_page(path: Path, page: Page) -> None:
    """Write a report.

    Raises:
        RecordError: if it cannot be written.
        ModuleNotFoundError: if a package is missing; the text says how to get it.

    """
    write_text(path, render_page(page))


@cache
def _vega() -> str:
    """Return Vega's scripts, packed to a third: the browser unpacks them when it draws a chart."""
    from vl_convert import javascript_bundle

    scripts = javascript_bundle("window.vegaEmbed = vegaEmbed;").encode()
    packed = gzip.compress(scripts, compresslevel=6, mtime=0)
    return base64.b64encode(packed).decode("ascii")


def _json(value: Any) -> Markup:
    """Return JSON that no text in it can end the element of."""
    from markupsafe import Markup

    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))


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
