"""What the page is made from: records found, and their cells."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Generic, TypeVar

from pytest_hwqueue.answers.page.results import Result, read_result
from pytest_hwqueue.data.document.cell_rows import shown as shown_run
from pytest_hwqueue.data.errors import RecordError, files, translated
from pytest_hwqueue.data.metrics.numbers import grouped
from pytest_hwqueue.data.records.cell import Json, RunRecord, read_record
from pytest_hwqueue.data.records.files import TRACED, TRACED_AGAIN
from pytest_hwqueue.data.records.noise import Causes
from pytest_hwqueue.data.records.sealed import read_sealed
from pytest_hwqueue.data.records.stored import SESSION_FILES, CellRuns, SessionFiles, gather
from pytest_hwqueue.data.records.tenants import ColocationRecord, read_colocation
from pytest_hwqueue.data.records.timelines import TimelineFile
from pytest_hwqueue.engine.tenants.tenant_cells import tenant_records
from pytest_hwqueue.judge.baselines.runs import CellBaseline
from pytest_hwqueue.judge.file import judgement_of
from pytest_hwqueue.judge.judging import CellVerdict, Judgement
from pytest_hwqueue.judge.words import by_severity

Record = TypeVar("Record", RunRecord, ColocationRecord, Result)

_SESSION = "session.json"
# Folders within a session's: each rank's part of a cell, and cells run again to find causes.
_RANKS, _CAUSES = "ranks", "causes"


@dataclass(frozen=True)
class RecordFile(Generic[Record]):
    """A record, and the file it was read from; its timelines and traces lie next to it."""

    path: Path
    record: Record


@dataclass
class PageRecords:
    """What there is to show, by the file's name within each folder.

    Attributes:
        cells: records of cells.
        traced: of cells that were run again to find causes; they have no figures of their own.
        colocations: records of tenants; traced ones explain the others, and have no figures.
        results: of ``hwq which``, ``hwq capacity``, ``hwq preempt`` and ``hwq certify``.
        judgements: what sessions' own comparisons found, as their files have it, by file.
        damaged: files that could not be read, and why.

    """

    cells: list[RecordFile[RunRecord]] = field(default_factory=list)
    traced: list[RecordFile[RunRecord]] = field(default_factory=list)
    colocations: list[RecordFile[ColocationRecord]] = field(default_factory=list)
    results: list[RecordFile[Result]] = field(default_factory=list)
    judgements: dict[Path, list[Json]] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)

    @property
    def nothing(self) -> bool:
        """Whether no record was found."""
        return not (self.cells or self.colocations or self.results)


def find_records(paths: Sequence[Path]) -> PageRecords:
    """Read the records in files and folders.

    Args:
        paths: of records, and of folders with records in them or further down.

    Raises:
        RecordError: if a path is no record, or a folder holds none.

    """
    found = PageRecords()
    for given in paths:
        before = found.nothing
        for path in _files(given):
            _read(path, found, named=path == given)
        if given.is_dir() and before and found.nothing and not found.damaged:
            raise RecordError(f"{given} holds no records{_stored_instead(given)}")
    return found


def _files(path: Path) -> Iterable[Path]:
    if not path.is_dir():
        return [path]
    return sorted(each for each in path.rglob("*.json") if not _within(each, _RANKS))


def _within(path: Path, name: str) -> bool:
    """Whether a file is further down in this folder of a session."""
    folders = (folder for folder in path.parents if folder.name == name)
    return any((folder.parent / _SESSION).exists() for folder in folders)


def session_folder(folder: Path) -> Path:
    """Return the folder of the session that a folder of records belongs to.

    Windows of scenarios, and what was run again for causes, lie in folders within a session's.
    """
    whole = (each for each in (folder, *folder.parents[:2]) if (each / _SESSION).exists())
    return next(whole, folder.parent if folder.name in (TRACED, TRACED_AGAIN) else folder)


def own_judgements(found: PageRecords) -> list[Judgement]:
    """Return what a session's own comparison found; nothing if cells are of several sessions.

    Of one that cannot be read, ``found`` has the reason.
    """
    folders = {session_folder(stored.path.parent) for stored in found.cells}
    if len(folders) != 1:
        return []
    file = folders.pop() / _SESSION
    try:
        return [judgement_of(each, file) for each in found.judgements.get(file, [])]
    except RecordError as error:
        found.damaged.append(str(error))
        return []


def _stored_instead(folder: Path) -> str:
    if next(folder.rglob("*.jsonl"), None) is None:
        return ""
    return (
        ", but a stored baseline, of which only samples are kept: name the folder of a session, "
        "and compare with --baseline"
    )


def _read(path: Path, found: PageRecords, *, named: bool) -> None:
    with files("read", path):
        content = path.read_bytes()
    try:
        with translated(RecordError, f"{path} is damaged", ValueError):
            data = json.loads(content)
        parts = data.keys() if isinstance(data, dict) else set()
        schema = str(data["schema"]) if "schema" in parts else ""
        if "schema_version" in parts and "plan" in parts:
            found.colocations.append(RecordFile(path, read_colocation(path)))
        elif schema.startswith(SESSION_FILES):
            file, _ = read_sealed(path, SessionFiles, "a session's file")
            found.judgements[path] = file.judgements
        elif "schema_version" in parts and "cell_id" in parts:
            cells = found.traced if _within(path, _CAUSES) else found.cells
            cells.append(RecordFile(path, read_record(path)))
        elif (result := read_result(schema, path)) is not None:
            found.results.append(RecordFile(path, result))
        elif named:
            raise RecordError(
                f"{path} is neither a record nor a result of `hwq which`, `hwq capacity`, "
                "`hwq preempt` or `hwq certify`; of a session name its folder"
            )
    except RecordError as error:
        if named:
            raise
        found.damaged.append(str(error))


@dataclass
class PageCell:
    """A cell, or a tenant of a co-location, with everything that a report shows of it.

    Attributes:
        key: of its details, unique in the page.
        folder: of its records.
        runs: its runs.
        verdicts: what became of its figures, with the label of what they were compared with.
        behind: a baseline, by its label, and its samples in ns; None without one.
        causes: of the shown run's slow requests; None if they were not asked for.
        timelines: folder and file of the shown run's; None if there are none.
        record_files: names of the files it was read from.

    """

    key: str
    folder: Path
    runs: CellRuns
    verdicts: list[tuple[str, CellVerdict]] = field(default_factory=list)
    behind: tuple[str, list[float]] | None = None
    causes: Causes | None = None
    timelines: tuple[Path, TimelineFile] | None = None
    record_files: list[str] = field(default_factory=list)

    @property
    def session(self) -> str:
        """Name of its session's folder, which is the session's id."""
        return session_folder(self.folder.resolve()).name

    @property
    def shown(self) -> RunRecord:
        """The run whose figures stand for the cell."""
        return self.runs.middle

    @cached_property
    def summary(self) -> RunRecord:
        """That run as tables have it, whose P99 may have its interval by several runs."""
        return shown_run(self.runs, {})

    @property
    def state(self) -> str:
        """The state of its verdict, or its status if nothing was compared."""
        return self.shown.status if self.worst is None else self.worst.verdict.state

    def explain(self, folder: Path, causes: Causes | None, timelines: TimelineFile | None) -> None:
        """Set the causes, and the timelines in a folder if there are any."""
        self.causes = causes
        if timelines is not None:
            self.timelines = (folder, timelines)

    @property
    def worst(self) -> CellVerdict | None:
        """The verdict that most needs a reader; None if nothing was compared."""
        return next(iter(by_severity(judged for _, judged in self.verdicts)), None)


def page_cells(
    found: PageRecords,
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
            cell.behind = (baseline_label, samples) if samples else None
    return cells


def _gathered(records: Iterable[tuple[Path, RunRecord]]) -> Iterator[tuple[PageCell, Path]]:
    """Return the cells of each folder, each with the file of the run shown."""
    for folder, those in grouped((each[0].parent, each) for each in records).items():
        those.sort(key=lambda each: each[1].started)
        paths = {id(record): path for path, record in those}
        for runs in gather([record for _, record in those]):
            files = [paths[id(run)].name for run in runs.runs]
            yield PageCell("", folder, runs, record_files=files), paths[id(runs.middle)]


def _of_cells(found: PageRecords) -> Iterator[PageCell]:
    traced = {
        (session_folder(stored.path.parent), stored.record.cell_id): stored
        for stored in found.traced
    }
    for cell, _ in _gathered((stored.path, stored.record) for stored in found.cells):
        shown = cell.shown
        cell.explain(cell.folder, shown.causes, shown.timelines)
        again = traced.get((session_folder(cell.folder), shown.cell_id))
        if again is not None and cell.causes is None:
            cell.explain(again.path.parent, again.record.causes, again.record.timelines)
        yield cell


def _of_tenants(found: PageRecords) -> Iterator[PageCell]:
    """Return the tenants of co-locations that are not recorded as cells, too."""
    known = {(session_folder(stored.path.parent), stored.record.cell_id) for stored in found.cells}
    origins = {stored.path: stored for stored in found.colocations}
    traced = {_what_ran(stored): stored for stored in found.colocations if stored.record.traced}
    tenants = (
        (stored.path, record)
        for stored in found.colocations
        if not stored.record.traced
        for record in tenant_records(stored.record, "", {})
        if (session_folder(stored.path.parent), record.cell_id) not in known
    )
    for cell, path in _gathered(tenants):
        again = traced.get(_what_ran(origins[path]))
        if again is not None:
            tenant = cell.shown.cell.name.rpartition(".")[2]
            causes = again.record.tenant(tenant).causes
            cell.explain(again.path.parent, causes, again.record.timelines)
        yield cell


def _what_ran(stored: RecordFile[ColocationRecord]) -> tuple[Path, str, str, str, str]:
    record, session = stored.record, session_folder(stored.path.parent)
    return session, record.plan.name, record.device, record.scheduler, record.placement
