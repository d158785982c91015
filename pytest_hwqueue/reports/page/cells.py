"""Gathers records into the cells of a report: runs, baseline, verdicts, causes, timelines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_hwqueue.baselines.runs import CellBaseline
from pytest_hwqueue.records.causes import Causes
from pytest_hwqueue.records.cell import RunRecord
from pytest_hwqueue.records.cell_runs import CellRuns, gather
from pytest_hwqueue.records.tenants import ColocationRecord
from pytest_hwqueue.records.timelines import TimelineFile
from pytest_hwqueue.reports.page.found import Found, Stored
from pytest_hwqueue.reports.verdict_words import SEVERITY
from pytest_hwqueue.tenancy.cells import tenant_records
from pytest_hwqueue.verdicts.judging import CellVerdict, Judgement


@dataclass(frozen=True)
class Behind:
    """Samples that a cell's are drawn in front of, such as a baseline's; ns, in any order."""

    label: str
    samples_ns: Sequence[float]


@dataclass
class PageCell:
    """A cell, or a tenant of a co-location, with everything that a report shows of it.

    Attributes:
        key: of its details, unique in the page.
        folder: of its records.
        runs: its runs.
        verdicts: what became of its figures, with the label of what they were compared with.
        behind: the baseline's samples; None without one.
        causes: of the shown run's slow requests; None if they were not asked for.
        timelines: folder and file of the shown run's; None if there are none.
        record_files: names of the files it was read from.

    """

    key: str
    folder: Path
    runs: CellRuns
    verdicts: list[tuple[str, CellVerdict]] = field(default_factory=list)
    behind: Behind | None = None
    causes: Causes | None = None
    timelines: tuple[Path, TimelineFile] | None = None
    record_files: list[str] = field(default_factory=list)

    @property
    def session(self) -> str:
        """Name of the folder of its records, which is its session's id."""
        return self.folder.resolve().name

    @property
    def shown(self) -> RunRecord:
        """The run whose figures stand for the cell."""
        return self.runs.middle

    @property
    def worst(self) -> CellVerdict | None:
        """The verdict that most needs a reader; None if nothing was compared."""
        found = [judged for _, judged in self.verdicts]
        return min(found, key=lambda one: SEVERITY.index(one.verdict.state), default=None)


def page_cells(
    found: Found,
    judgements: Sequence[Judgement],
    baseline: Mapping[str, CellBaseline],
    baseline_label: str,
) -> list[PageCell]:
    """Return the cells of a report, session by session, each in the order measured.

    Args:
        found: the records.
        judgements: what they were compared with.
        baseline: cells to draw behind these, by id.
        baseline_label: of that baseline.

    """
    cells = [*_of_cells(found), *_of_tenants(found)]
    for number, cell in enumerate(cells):
        cell.key = str(number)
        cell_id = cell.shown.cell_id
        cell.verdicts = [
            (judgement.baseline, judged)
            for judgement in judgements
            for judged in judgement.verdicts
            if judged.cell_id == cell_id
        ]
        if cell_id in baseline:
            # A session that compares and stores has put its own runs there, too.
            others = [run for run in baseline[cell_id].runs if run.session != cell.session]
            samples = [ns for run in others for ns in run.samples_ns()]
            cell.behind = Behind(baseline_label, samples) if samples else None
    return cells


def _of_cells(found: Found) -> list[PageCell]:
    folders: dict[Path, list[Stored[RunRecord]]] = {}
    for stored in found.cells:
        folders.setdefault(stored.path.parent, []).append(stored)
    traced = {stored.record.cell_id: stored for stored in found.traced}
    cells = []
    for folder, those in folders.items():
        those.sort(key=lambda stored: stored.record.started)
        names = {id(stored.record): stored.path.name for stored in those}
        for runs in gather([stored.record for stored in those]):
            cell = PageCell("", folder, runs, record_files=[names[id(run)] for run in runs.runs])
            shown = runs.middle
            cell.causes = shown.causes
            if shown.timelines is not None:
                cell.timelines = (folder, shown.timelines)
            again = traced.get(shown.cell_id)
            if again is not None and cell.causes is None:
                cell.causes = again.record.causes
                if again.record.timelines is not None:
                    cell.timelines = (again.path.parent, again.record.timelines)
            cells.append(cell)
    return cells


def _of_tenants(found: Found) -> list[PageCell]:
    """Return the tenants of co-locations that are not recorded as cells, too."""
    known = {stored.record.cell_id for stored in found.cells}
    traced = {
        _what_ran(stored.record): stored for stored in found.colocations if stored.record.traced
    }
    folders: dict[Path, list[Stored[ColocationRecord]]] = {}
    for stored in found.colocations:
        if not stored.record.traced:
            folders.setdefault(stored.path.parent, []).append(stored)
    cells = []
    for folder, those in folders.items():
        those.sort(key=lambda stored: stored.record.started)
        records: list[RunRecord] = []
        origins: dict[int, Stored[ColocationRecord]] = {}
        for stored in those:
            for record in tenant_records(stored.record, "", {}):
                if record.cell_id not in known:
                    records.append(record)
                    origins[id(record)] = stored
        for runs in gather(records):
            cell = PageCell("", folder, runs)
            cell.record_files = [origins[id(run)].path.name for run in runs.runs]
            again = traced.get(_what_ran(origins[id(runs.middle)].record))
            if again is not None:
                tenant = runs.middle.cell.name.rpartition(".")[2]
                cell.causes = again.record.tenant(tenant).causes
                if again.record.timelines is not None:
                    cell.timelines = (again.path.parent, again.record.timelines)
            cells.append(cell)
    return cells


def _what_ran(record: ColocationRecord) -> tuple[str, str, str, str]:
    return str(record.plan["name"]), record.device, record.scheduler, record.placement
