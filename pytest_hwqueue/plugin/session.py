"""A session that measures: its records, its reports for pytest.

Records travel with pytest's own reports (as attributes that pytest serialises), so they reach the
process that prints the summary in the same way from a worker, from xdist's workers, or from itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from copy import copy
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_hwqueue.data.errors import BadInput, HwqError, RecordError, in_utf8
from pytest_hwqueue.data.extensions import load, origin
from pytest_hwqueue.data.records.cell import (
    RunRecord,
    SessionInfo,
    SweepScaling,
    now,
    read_record,
    session_text,
    write_record,
)
from pytest_hwqueue.data.records.files import make_session_folder, session_name
from pytest_hwqueue.data.records.provenance import Provenance
from pytest_hwqueue.data.records.sealed import sealed
from pytest_hwqueue.data.records.stored import SessionFiles, StoredRecords, gather
from pytest_hwqueue.data.records.tenants import read_colocation
from pytest_hwqueue.data.redaction import redacted, redacted_command
from pytest_hwqueue.data.safe_files import write_text
from pytest_hwqueue.engine.tenants import TENANTS
from pytest_hwqueue.parts.processes.git import provenance_of
from pytest_hwqueue.plugin.keys import LEFT_OUT, PROVENANCE, SETTINGS, session_secrets
from pytest_hwqueue.plugin.reading import wrong_usage

if TYPE_CHECKING:
    from pytest_hwqueue.judge.judging import Judgement
    from pytest_hwqueue.plugin.worker.calls import SessionCalls


_GROUP = "pytest_hwqueue.reports"
_HOOK = "pytest_hwqueue_report"
_RECORDS = "--hwq-dir: cannot write records"


def add_reports(config: pytest.Config) -> None:
    """Register the reports of other packages, once each.

    Raises:
        BadInput: naming the package whose report cannot be used, and why.

    """
    manager = config.pluginmanager
    for point in entry_points(group=_GROUP):
        name = f"hwqueue-report-{point.name}"
        if manager.has_plugin(name):
            continue
        report = load(point)
        if not hasattr(report, _HOOK):
            raise BadInput(f"{origin(point)} names {report!r}, which has no {_HOOK}")
        # One that pytest has loaded by itself reports once.
        if not manager.is_registered(report):
            manager.register(report, name)


def report_session(
    config: pytest.Config, session: MeasuringSession, judgements: Sequence[Judgement]
) -> None:
    """Have a session's reports written; failures are added to its problems."""
    # A worker of xdist has a part of the session; its controller reports.
    if hasattr(config, "workerinput") or not (session.records or session.scenario_folders):
        return
    try:
        # Where the tests ran in xdist's workers, this process has not prepared to measure.
        add_reports(config)
        config.hook.pytest_hwqueue_report(
            config=config,
            folder=session.folder,
            records=session.records,
            judgements=list(judgements),
        )
    except HwqError as error:
        session.problems.append(str(error))
    # Whatever another's report raises, the session has its records and says so.
    except Exception as error:
        session.problems.append(f"a report failed: {type(error).__name__}: {error}")


# Name of the attribute of a test report that carries the records measured by the test.
REPORT_ATTRIBUTE = "hwq_records"


class MeasuringSession:
    """Folder, records and session file of one pytest session."""

    def __init__(self, config: pytest.Config) -> None:
        self.settings = settings = config.stash[SETTINGS]
        self._config = config
        self.started = now()
        self.id = session_id(self.started)
        self.folder = (config.invocation_params.dir / settings.dir / self.id).resolve()
        self.provenance = provenance(config)
        self.problems: list[str] = []
        self.records = StoredRecords(self.problems)
        # Where scenarios keep their records; under xdist each worker's.
        self.scenario_folders: set[Path] = set()
        # The test that measures each cell.
        self._tests: dict[str, str] = {}
        self._shared = False
        self._left_out: list[str] = config.stash.setdefault(LEFT_OUT, [])
        self._json = settings.json and config.invocation_params.dir / settings.json

    @property
    def command(self) -> str:
        """The command that repeats the session, as `command_line` has it."""
        return command_line(self._config)

    def apart(self, folder: str) -> MeasuringSession:
        """Return a session like this one for runs that are not its own, such as traced ones.

        Args:
            folder: within this one's, for their records, which this session does not have.

        """
        other = copy(self)
        other.folder = self.folder / folder
        other.folder.mkdir(parents=True, exist_ok=True)
        other.problems = []
        other.records = StoredRecords(other.problems)
        return other

    def prepare(self) -> None:
        """Create the folders and the session file, so that nothing is measured in vain.

        Raises:
            pytest.UsageError: naming the option whose folder or file cannot be written, or the
                package whose report cannot be used.

        """
        with wrong_usage():
            add_reports(self._config)
        with wrong_usage(_RECORDS, OSError):
            make_session_folder(self.folder)
        for place, path, text in self._texts(None, False):
            with wrong_usage(place, OSError):
                write_text(path, sealed(text))

    def claim(self, cell_id: str, nodeid: str) -> None:
        """Note that a test measures a cell.

        Raises:
            BadInput: if another test of this session does.

        """
        other = self._tests.setdefault(cell_id, nodeid)
        if other != nodeid:
            raise BadInput(
                f"{other} measures it, too: two tests cannot share one cell, their runs would be "
                "taken for runs of one; keep one of them, or give them other parameters"
            )

    def collect(self, report: pytest.TestReport) -> list[RunRecord]:
        """Take a report's records and return them; the session keeps only where they are."""
        taken = []
        for kept, record in records_of(report, self.problems):
            self.records.add(kept)
            taken.append(record)
            # Tests of a scenario share runs on purpose. Elsewhere only processes of xdist, which
            # know nothing of each other, can have measured what two tests claim.
            if record.status == "ok" and record.family != TENANTS:
                try:
                    self.claim(record.cell_id, report.nodeid)
                except BadInput as error:
                    self.problems.append(f"{report.nodeid}: {record.cell_id}: {error}")
                    self._shared = True
        return taken

    def finish(self, session: pytest.Session, verdicts: Sequence[dict[str, Any]] = ()) -> None:
        """Write the session file; a failure is added to `problems`, and fails pytest's session."""
        interrupted = session.exitstatus == pytest.ExitCode.INTERRUPTED
        written = True
        for _, path, text in self._texts(now(), interrupted, self._scaled(), verdicts):
            try:
                write_text(path, sealed(text))
            except RecordError as error:
                # The other may be on another disk.
                self.problems.append(str(error))
                written = False
        failed = self.records.lost or self._shared or not written
        if session.exitstatus == pytest.ExitCode.OK and failed:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _scaled(self) -> list[SweepScaling]:
        from pytest_hwqueue.data.figures.of_cell import find_sweeps, scaling_of

        scaled = []
        for sweep in find_sweeps([cell.middle for cell in gather(self.records)]):
            cells = [record.cell_id for record in sweep]
            try:
                scaled.append(SweepScaling(cells=cells, scaling=scaling_of(sweep)))
            except ValueError as error:
                self.problems.append(f"scaling of {cells[0]}: {error}")
        return scaled

    def _texts(
        self, finished: str | None, interrupted: bool, scaled: Sequence[SweepScaling] = (),
        verdicts: Sequence[dict[str, Any]] = (),
    ) -> Iterator[tuple[str, Path, str]]:  # fmt: skip
        """Yield the session's files: the option that says where, the file, its text."""
        settings = {
            name: redacted(str(value)) if isinstance(value, (Path, str)) else value
            for name, value in self.settings.as_dict().items()
        }
        info = SessionInfo(
            id=self.id,
            started=self.started,
            finished=finished,
            command=self.command,
            **self.provenance.fields(),
            interrupted=interrupted,
            settings=settings,
            left_out=self._left_out,
        )
        yield _RECORDS, self.folder / "session.json", self._files(info, scaled, verdicts)
        if self._json is not None:
            colocations = self._colocations()
            text = session_text(info, self.records, list(scaled), colocations, verdicts)
            yield "--hwq-json", self._json, text

    def _files(
        self, info: SessionInfo, scaled: Sequence[SweepScaling], verdicts: Sequence[dict[str, Any]]
    ) -> str:
        """Return the text of ``session.json``."""
        return SessionFiles(
            session=info,
            files=[os.path.relpath(path, self.folder) for path in self.records.files()],
            records=[record.model_dump(mode="json") for record in self.records.without_file()],
            scaling=list(scaled),
            colocations=[os.path.relpath(path, self.folder) for path in self._colocation_files()],
            judgements=list(verdicts),
        ).model_dump_json(by_alias=True)

    def _colocation_files(self) -> list[Path]:
        return sorted(path for folder in self.scenario_folders for path in folder.glob("*.json"))

    def _colocations(self) -> list[dict[str, Any]]:
        """Read the scenarios' records from their folders, oldest first."""
        found = []
        for path in self._colocation_files():
            try:
                found.append(read_colocation(path))
            except RecordError as error:
                self.problems.append(str(error))
        found.sort(key=lambda record: record.started)
        return [record.model_dump(mode="json") for record in found]


def records_of(
    report: pytest.TestReport, problems: list[str]
) -> Iterator[tuple[Path | RunRecord, RunRecord]]:
    """Read the records that a report carries: each by its file if it has one, and itself.

    One that cannot be read is added to ``problems``: it must not cost the session the others.
    """
    for entry in getattr(report, REPORT_ATTRIBUTE, []):
        try:
            if "path" in entry:
                path = Path(entry["path"])
                yield path, read_record(path)
            else:
                record = RunRecord.model_validate(entry["record"])
                yield record, record
        except (RecordError, ValueError) as error:
            problems.append(f"{report.nodeid}: {error}")


class RecordSink:
    """Keeps the running test's records on disk, and attaches them to its report.

    Attributes:
        folder: of the records.
        command: repeats the session.
        session: of the test.
        key: names the running test, the same on all ranks that run it.
        retire_process: whether the process has become unfit to measure again.

    """

    def __init__(self, folder: Path, command: str, session: SessionCalls) -> None:
        self.folder = folder
        self.command = command
        self.session = session
        self.key = ""
        self._entries: list[dict[str, Any]] = []
        self.retire_process = False

    def keep_ranks(self, records: Sequence[RunRecord]) -> None:
        """Write each rank's own record into the cell's folder for ranks.

        Raises:
            RecordError: if one could not be written.

        """
        for rank, own in enumerate(records):
            # Rank 0's timelines are the cell's, and next to its record.
            record = own.model_copy(update={"timelines": None})
            write_record(self.folder / "ranks" / f"rank-{rank}", record)

    def record(self, record: RunRecord) -> None:
        """Write the record; if that fails, it travels whole with the report, so it is not lost.

        The session has it at once: whatever the test does next, the record is the session's.

        Raises:
            RecordError: if it could not be written.

        """
        entry, error = stored(self.folder, record)
        self._entries.append(entry)
        self.session.measured(entry)
        if error is not None:
            raise error

    def take(self) -> list[dict[str, Any]]:
        """Return the records kept since the last call."""
        entries, self._entries = self._entries, []
        return entries


def stored(folder: Path, record: RunRecord) -> tuple[dict[str, Any], RecordError | None]:
    """Write a record; return what a report carries: its file, or itself and why it has none."""
    try:
        return {"path": str(write_record(folder, record))}, None
    except RecordError as error:
        return {"record": record.model_dump(mode="json")}, error


def attach_records(report: pytest.TestReport, entries: list[dict[str, Any]]) -> None:
    """Attach records to a report."""
    if entries:
        setattr(report, REPORT_ATTRIBUTE, entries)


# Random, and the same in all processes of xdist's session.
_XDIST_RUN = "PYTEST_XDIST_TESTRUNUID"


def keep_devices(config: pytest.Config) -> None:
    """Have this session keep each device that it measures on, until it ends."""
    from pytest_hwqueue.parts.devices.lease import session_leases
    from pytest_hwqueue.plugin.progress import Progress

    kept = ExitStack()
    run = os.environ.get(_XDIST_RUN)
    leases = session_leases(
        Progress(config).announce, config.stash[SETTINGS].lease_timeout, identity=run or ""
    )
    kept.enter_context(leases)
    config.add_cleanup(kept.close)


def session_id(started: str) -> str:
    """Return a session's name, shared by the processes of one xdist run."""
    run = os.environ.get(_XDIST_RUN)
    return f"xdist-{run}" if run else session_name(started)


def provenance(config: pytest.Config) -> Provenance:
    """Return what the session's records come from; determined once, when it is first asked for.

    Raises:
        pytest.UsageError: if the commit that the user states is not the one checked out.

    """
    if PROVENANCE not in config.stash:
        with wrong_usage("--hwq-commit"):
            config.stash[PROVENANCE] = provenance_of(config.rootpath, config.stash[SETTINGS].commit)
    return config.stash[PROVENANCE]


def command_line(config: pytest.Config) -> str:
    """Return the command that repeats this session."""
    arguments = [in_utf8(str(argument)) for argument in config.invocation_params.args]
    line = [Path(sys.executable).name, "-m", "pytest", *arguments]
    return redacted_command(line, session_secrets(config))
