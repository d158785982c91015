"""What a session came to, outside its terminal: Markdown, annotations, and what was stored."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pytest_hwqueue.data.document.cell_rows import figures_table, shown, status_of
from pytest_hwqueue.data.document.document import Bullets, Column, Document, Heading, Part, markdown
from pytest_hwqueue.data.document.notes import device_name
from pytest_hwqueue.data.errors import files
from pytest_hwqueue.data.metrics.numbers import counted, grouped
from pytest_hwqueue.data.records.cell import RunRecord
from pytest_hwqueue.data.records.stored import CellRuns, gather
from pytest_hwqueue.data.safe_files import write_text

if TYPE_CHECKING:
    from pytest_hwqueue.data.metrics.between_runs import RunSpread
    from pytest_hwqueue.judge.judging import Judgement
    from pytest_hwqueue.judge.stored import StoredFigure
    from pytest_hwqueue.plugin.regression import Regression


def annotation(
    level: Literal["error", "warning"], title: str, message: str, file: str = "",
    line: int | None = None,
) -> str:  # fmt: skip
    """Return what GitHub shows next to a line of a file, as a workflow command.

    Args:
        level: error if it fails, warning if someone should look.
        title: a few words.
        message: any number of lines.
        file: path from the root of the repository.
        line: from 1; None for the file as a whole.

    """
    properties = {"file": file, "line": "" if line is None else str(line), "title": title}
    given = {name: _data(value) for name, value in properties.items() if value}
    listed = ",".join(
        f"{name}={value.replace(':', '%3A').replace(',', '%2C')}" for name, value in given.items()
    )
    return f"::{level} {listed}::{_data(message)}"


def _data(text: str) -> str:
    """Escape a message as GitHub's toolkit does (actions/toolkit, core/src/command.ts)."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


_MOST_STORED = 20
# A thousand samples tell neither.
_LEFT_OUT = ("p999", "max")


def write_markdown(
    file: Path | None,
    judgements: Sequence[Judgement],
    records: Sequence[RunRecord],
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Write a session's figures and verdicts to a Markdown file and to GitHub's summary.

    Raises:
        RecordError: if the file or GitHub's summary cannot be written.

    """
    summary = environment.get("GITHUB_STEP_SUMMARY")
    if file is None and not summary:
        return
    text = render_markdown(judgements, records)
    if file is not None:
        write_text(file, text)
    if summary:
        written = files("write", f"GitHub's summary {summary}")
        with written, open(summary, "a", encoding="utf-8") as opened:
            opened.write(text)


def render_markdown(judgements: Sequence[Judgement], records: Sequence[RunRecord]) -> str:
    """Return verdicts (what regressed first), figures and failures, with a newline at the end.

    Args:
        judgements: outcomes of comparisons, one per device model; empty if nothing was compared.
        records: of the session, of any status and in the order measured.

    """
    # Sessions that write none do without the gate, and numpy.
    from pytest_hwqueue.answers.session.noise import noise_lines
    from pytest_hwqueue.judge.words import judgement_parts, spreads_of

    cells = gather(records)
    parts: list[Part] = [Heading(f"Hardware queues{_devices(records)}", 1)]
    for judgement in sorted(judgements, key=_most_severe):
        parts += judgement_parts(judgement, brief=False, fold=True)
    measured = [cell for cell in cells if cell.measured]
    if measured:
        parts += _figures(measured, spreads_of(judgements))
    if under_noise := noise_lines(records):
        parts += [Heading("Background load"), Bullets({"": under_noise})]
    return markdown(Document([*parts, *_failures(cells)]))


def _most_severe(judgement: Judgement) -> int:
    from pytest_hwqueue.judge.words import SEVERITY

    return min((SEVERITY.index(each.verdict.state) for each in judgement.verdicts), default=0)


def _devices(records: Sequence[RunRecord]) -> str:
    known = {name: record.simulated for record in records if (name := device_name(record))}
    names = [
        f"{name} (a model's figures, not measured)" if simulated else name
        for name, simulated in known.items()
    ]
    return f" on {', '.join(names)}" if names else ""


def _figures(cells: Sequence[CellRuns], spreads: Mapping[str, RunSpread]) -> list[Part]:
    records = [(shown(cell, spreads), cell.count) for cell in cells]
    named = [(r, r.cell_id, {"workload": r.cell_id, "runs": runs}) for r, runs in records]
    columns = [Column("workload", "cell"), Column("runs", "runs", right=True)]
    table = figures_table(named, columns, _LEFT_OUT, ratios_once=True)
    ids = (record.cell_id for record, _ in records)
    cell = ""
    for row in table.rows:
        cell = next(ids) if row.opens else cell
        if not row.opens:
            # Without a table's indent, a tag needs its cell's name.
            row.texts["workload"] = f"{cell} {row.texts['workload'].strip()}"
    return [Heading("Figures"), table]


def _failures(cells: Sequence[CellRuns]) -> list[Part]:
    about = grouped(
        (run.cell_id, f"run {run.run} " * (len(cell.runs) > 1) + status_of(run))
        for cell in cells
        for run in cell.bad
    )
    if not about:
        return []
    count = sum(map(len, about.values()))
    return [Heading(f"{counted(count, 'run')} without figures"), Bullets(about)]


def annotate(regression: Regression, places: Mapping[str, tuple[str, int | None]]) -> str:
    """Return GitHub annotations for whatever is not fine.

    ``places`` are file and line by test. A test that has none, such as the suite's of an installed
    package, is annotated without a file.
    """
    levels: Mapping[str, Literal["error", "warning"]] = {"fail": "error", "warn": "warning"}
    items = []
    for judgement in regression.judgements():
        for judged in judgement.verdicts:
            level = levels.get(regression.level(judged.verdict))
            file, line = places.get(regression.node_of(judged.cell_id), ("", None))
            if level is not None:
                title = f"{judged.verdict.state}: {judged.cell_id}"
                items.append(annotation(level, title, judged.verdict.sentence, file, line))
    return "\n".join(items)


def stored_lines(label: str, figures: Sequence[StoredFigure]) -> list[str]:
    """Return lines on what was stored, what each cell can detect, and warnings on its runs."""
    from pytest_hwqueue.judge.verdict import percent, sd_words

    cells = len({figure.cell_id for figure in figures})
    lines = [f"stored in {label}: {counted(cells, 'cell')}"]
    for figure in figures[:_MOST_STORED]:
        parts = [
            counted(len(figure.runs), "run"),
            "" if figure.sd is None else f"sd {sd_words(figure.sd, figure.sd_is_floor)}",
            "too few runs to find a regression"
            if figure.detectable is None
            else f"can detect {figure.quantity.label} >= {percent(figure.detectable)}",
            figure.limit,
            figure.warning,
        ]
        lines.append(f"  {figure.cell_id}: {'; '.join(filter(None, parts))}")
    if len(figures) > _MOST_STORED:
        lines.append(f"  … and {len(figures) - _MOST_STORED} more: `hwq baseline show`")
    return lines
