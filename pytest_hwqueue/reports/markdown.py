"""The session in GitHub-flavoured Markdown, for the summary of a job in GitHub Actions."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_hwqueue.metrics.numbers import counted
from pytest_hwqueue.records.cell import RunRecord
from pytest_hwqueue.records.stored import CellRuns, gather
from pytest_hwqueue.reports.cell_rows import COLUMNS, CellRows, status_of
from pytest_hwqueue.reports.document import (
    Bullets,
    Column,
    Document,
    Heading,
    Part,
    Table,
    markdown,
)
from pytest_hwqueue.reports.noise_losses import noise_lines
from pytest_hwqueue.reports.notes import Notes
from pytest_hwqueue.reports.terminal import shown
from pytest_hwqueue.reports.verdict_words import SEVERITY
from pytest_hwqueue.reports.verdicts import judgement_parts
from pytest_hwqueue.verdicts.judging import Judgement

# A thousand samples tell neither.
_LEFT_OUT = ("p999", "max")


def render_markdown(judgements: Sequence[Judgement], records: Sequence[RunRecord]) -> str:
    """Return verdicts (what regressed first), figures and failures, with a newline at the end.

    Args:
        judgements: outcomes of comparisons, one per device model; empty if nothing was compared.
        records: of the session, of any status and in the order measured.

    """
    cells = gather(records)
    parts: list[Part] = [Heading(f"Hardware queues{_devices(records)}", 1)]
    for judgement in sorted(judgements, key=_most_severe):
        parts += judgement_parts(judgement, brief=False, fold=True)
    measured = [cell for cell in cells if cell.measured]
    if measured:
        parts += _figures(measured)
    if under_noise := noise_lines(records):
        parts += [Heading("Background load"), Bullets({"": under_noise})]
    return markdown(Document([*parts, *_failures(cells)]))


def _most_severe(judgement: Judgement) -> int:
    return min((SEVERITY.index(each.verdict.state) for each in judgement.verdicts), default=0)


def _devices(records: Sequence[RunRecord]) -> str:
    names: dict[str, None] = {}
    for record in records:
        if record.fingerprint is not None and "device_name" in record.fingerprint.hard:
            hard = record.fingerprint.hard
            name = str(hard["device_name"])
            names[f"{name} (a model's figures, not measured)" if record.simulated else name] = None
    return f" on {', '.join(names)}" if names else ""


def _figures(cells: Sequence[CellRuns]) -> list[Part]:
    notes = Notes()
    rows = []
    for cell in cells:
        found = CellRows(shown(cell), cell.middle.cell_id, notes, _LEFT_OUT).rows(
            {"workload": cell.middle.cell_id, "runs": cell.count}, ratios_once=True
        )
        # Without a table's indent, a tag needs its cell's name.
        for row in found[1:]:
            row.texts["workload"] = f"{cell.middle.cell_id} {row.texts['workload'].strip()}"
        rows += found
    columns = [Column("workload", "cell"), Column("runs", "runs", right=True), *COLUMNS]
    return [Heading("Figures"), Table(columns, rows, notes.lines(len(cells)))]


def _failures(cells: Sequence[CellRuns]) -> list[Part]:
    about: dict[str, list[str]] = {}
    for cell in cells:
        for run in cell.bad:
            which = f"run {run.run} " if len(cell.runs) > 1 else ""
            about.setdefault(run.cell_id, []).append(which + status_of(run))
    if not about:
        return []
    count = sum(map(len, about.values()))
    return [Heading(f"{counted(count, 'run')} without figures"), Bullets(about)]
