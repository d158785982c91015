"""One test in a worker: its run and its reports.

Reports travel as JSON, which has text as keys, and no tuples, sets or bytes. Reports
of xdist's workers keep these, so plugins rely on them.
"""

from __future__ import annotations

import builtins
import os
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import pytest

from pytest_hwqueue.data.errors import BoundUndecided, NotProven
from pytest_hwqueue.data.records.cell import Cell, RunRecord, now
from pytest_hwqueue.data.records.run import Status
from pytest_hwqueue.engine.noise.neighbours import open_noise
from pytest_hwqueue.engine.noise.running import RunningNoise, running
from pytest_hwqueue.parts.devices.lease import keep
from pytest_hwqueue.parts.processes.launched import LaunchedRank, launched_rank, measured_by_ranks
from pytest_hwqueue.parts.processes.measured_process import MeasuredProcess
from pytest_hwqueue.parts.processes.remote import answer_to
from pytest_hwqueue.plugin.noise import noise_places
from pytest_hwqueue.plugin.ranks import workload_of
from pytest_hwqueue.plugin.session import MeasuringSession, attach_records, stored
from pytest_hwqueue.plugin.worker.calls import SessionCalls
from pytest_hwqueue.plugin.worker.local_ranks import LocalRanks
from pytest_hwqueue.plugin.worker.services import SchedulerServices

if TYPE_CHECKING:
    from pytest_hwqueue.data.records.noise import NoiseRound
    from pytest_hwqueue.plugin.progress import Progress


LISTED = "hwq_listed"
"""Attribute of a report with what pytest wrote to the worker's terminal, for the session's."""

# Begins the only key of an object that stands for what JSON has no type for.
_TAG = "\0hwq "
_KINDS: dict[str, type] = {"tuple": tuple, "set": set, "frozenset": frozenset}


def packed(value: Any, *, hashed: bool = False) -> Any:
    """Return a value as JSON can hold it; what is of no built-in type stays, for its text.

    Args:
        value: at any depth of a report.
        hashed: whether it is a key or in a set, so that it must not become a list.

    """
    if isinstance(value, bytes):
        return {f"{_TAG}bytes": value.hex()}
    for name, kind in _KINDS.items():
        if isinstance(value, kind):
            inside = hashed or kind is not tuple
            return {_TAG + name: [packed(each, hashed=inside) for each in value]}  # type: ignore[attr-defined]
    if hashed:
        return value if isinstance(value, (str, int, float, type(None))) else str(value)
    if isinstance(value, dict):
        # A name of a folder that is no UTF-8 is no key of JSON's.
        if all(isinstance(k, str) and k.isprintable() and not k.startswith(_TAG) for k in value):
            return {key: packed(each) for key, each in value.items()}
        pairs = [[packed(key, hashed=True), packed(each)] for key, each in value.items()]
        return {f"{_TAG}dict": pairs}
    if isinstance(value, list):
        return [packed(each) for each in value]
    return value


def unpacked(value: Any) -> Any:
    """Return what was `packed`."""
    if isinstance(value, list):
        return [unpacked(each) for each in value]
    if not isinstance(value, dict):
        return value
    tag = next(iter(value), "")
    if not tag.startswith(_TAG):
        return {key: unpacked(each) for key, each in value.items()}
    name, content = tag.removeprefix(_TAG), value[tag]
    if name == "bytes":
        return bytes.fromhex(content)
    return {**_KINDS, "dict": dict}[name](map(unpacked, content))


Worker = MeasuredProcess | LocalRanks

# How often it is looked whether what a scheduler needs still runs. A query disturbs what is being
# measured, if only a little, and the end of a cell asks in any case.
_CHECK_S = 0.5

# Of warnings, Python's own keep their meaning, and ours; another plugin's are not imported here for
# their names.
_CATEGORIES = {
    kind.__name__: kind
    for kind in (BoundUndecided, *vars(builtins).values())
    if isinstance(kind, type) and issubclass(kind, Warning)
}

# Where a test is while it measures no cell, or has not begun to.
_SET_UP = "set-up"
_OWN_CODE = "the test's own code"
_TEARDOWN = "teardown"


@dataclass
class ItemRun(SessionCalls):
    """Follows one test from its start to its end in the worker.

    Args:
        _item: the test.
        _session: keeps its records.
        _progress: receives its progress.
        _run: number of the run.
        _emit: called with each of its reports.
        _failed: called if it fails, with the reason and the worker's last output.

    """

    _item: pytest.Item
    _session: MeasuringSession
    _progress: Progress
    _run: int
    _emit: Callable[[pytest.TestReport], None]
    _failed: Callable[[str, str], None]
    cut_short: bool = False
    scheduler_ended: bool = False
    # Of the noise that runs, and within it of a cell.
    _rounds: list[RunningNoise] = field(default_factory=list)
    _noises: ExitStack = field(default_factory=ExitStack)
    _launched: LaunchedRank | None = field(default_factory=lambda: launched_rank(os.environ))
    _noises_begun: int = 0
    # The cell that is being measured; none before and after.
    _cell: Cell | None = None
    _stage: str = _SET_UP
    # Records that the session has not received with a report yet.
    _measured: list[dict[str, Any]] = field(default_factory=list)
    _reported: set[str] = field(default_factory=set)
    _began: float = field(default_factory=time.monotonic)
    _deadline: float | None = None
    _exit: BaseException | None = None

    def follow(self, child: Worker, services: SchedulerServices) -> bool:
        """Pass on reports until the test ends; return True if the worker must be ended.

        Raises:
            ProcessEnded: if the worker ended by itself.
            NotProven: if a service that its scheduler needs has ended.
            pytest.exit.Exception: if the test ends the session.

        """
        self._child, self._services = child, services
        self._restart_clock()
        check_at = time.monotonic()
        with self._noises:
            while not self.cut_short:
                if services.text is not None and time.monotonic() >= check_at:
                    services.check()
                    check_at = time.monotonic() + _CHECK_S
                until = self._deadline
                if services.text is not None:
                    until = check_at if until is None else min(check_at, until)
                message = child.receive(until)
                if message is None:
                    if self._deadline is not None and time.monotonic() >= self._deadline:
                        self._time_out()
                elif message["kind"] == "call":
                    answer = answer_to(message, SessionCalls, self)
                    if answer is not None:
                        child.send("answer", **answer)
                    if self._exit is not None:
                        raise self._exit
                elif message["kind"] == "missing":
                    why = "the worker process did not collect this test; see its log"
                    self._emit(self._failed_report(why, ""))
                    return False
                else:
                    return bool(message["retire"])
            return True

    def ended(self, status: Status, reason: str, detail: str, *, failed_test: bool) -> None:
        """Record a cell that did not end by itself, and report its test as failed.

        What its test had measured before stays as it is: the test's own code, or its teardown, is
        what failed.
        """
        self._failed(reason, detail)
        entries = self._measured
        if self._cell is not None:
            record = self._record(self._cell, status, reason)
            entry, error = stored(self._session.folder, record)
            entries.append(entry)
            if error is not None:
                warnings.warn(str(error), stacklevel=2)
        elif self._where() != _SET_UP and self._where() not in reason:
            reason = f"{reason} in {self._where()}"
        report = self._failed_report(f"{reason}: {self._name()}", detail)
        attach_records(report, entries)
        if failed_test:
            self._emit(report)
        else:
            self._session.collect(report)

    def cell_begins(self, cell: Cell, nodeid: str) -> None:
        """Count the time from here, and name this cell if the worker ends; raises BadInput."""
        # Node ids of a worker may begin at another folder.
        self._session.claim(cell.id, self._item.nodeid)
        self._cell = cell
        self._stage = _SET_UP
        self._restart_clock()

    def measured(self, entry: dict[str, Any]) -> None:
        """Keep the entry until a report brings it."""
        self._measured.append(entry)
        self._cell, self._stage = None, _OWN_CODE
        self._restart_clock()

    def progress(self, stage: str, done: int, planned: int) -> None:
        """Show it."""
        self._stage = stage
        self._progress.update(self._name(), stage, done, planned)

    def waits_for_device(self, text: str) -> None:
        """Stop the clock, or start it again."""
        self._restart_clock()
        if text:
            # Waiting for another session is nobody's hang.
            self._deadline = None
            self._progress.show(text)

    def rank_failed(self, reason: str, detail: str) -> None:
        """End the worker, and report the test as failed."""
        self.cut_short = True
        self._child.kill("another rank has failed")
        self.ended("failed", reason, detail, failed_test=True)

    def report(self, data: dict[str, Any]) -> None:
        """Report it as if the test had run here."""
        report = self._item.config.hook.pytest_report_from_serializable(
            config=self._item.config, data=unpacked(data)
        )
        report.nodeid = self._item.nodeid
        _show(report, self._item.config)
        if report.failed:
            self._failed(report.longreprtext, "")
        # A report brings all that was measured before it.
        self._measured = []
        self._reported.add(report.when)
        self._emit(report)

    def exits(self, reason: str, returncode: int | None) -> None:
        """End the session, as if the test had run here."""
        self._exit = pytest.exit.Exception(reason, returncode)

    def warning(
        self, text: str, category: str, file: str, line: int, nodeid: str,
        location: tuple[str, int, str] | None,
    ) -> None:  # fmt: skip
        """Record it as pytest does a warning of a test that ran here."""
        kind = _CATEGORIES.get(category, UserWarning)
        recorded = warnings.WarningMessage(text, kind, file, line)
        self._item.ihook.pytest_warning_recorded.call_historic(
            kwargs={
                "warning_message": recorded, "when": "runtest", "nodeid": nodeid,
                "location": location,
            }
        )  # fmt: skip

    def keep_device(self, key: str) -> None:
        """Take it for this session; raises LeaseError."""
        keep(key)
        self._restart_clock()

    def confirm_scheduler(self) -> None:
        """Look at the services now; raises NotProven."""
        problem = self._services.problem(self._child.pid)
        self.scheduler_ended = bool(problem)
        if problem:
            raise NotProven(problem)

    def begin_noise(self, name: str, seconds: int) -> None:
        """Start it for the worker, or a round of its own with the same load; raises NotProven."""
        if self._rounds:
            self._rounds.append(self._rounds[0].another_round())
            return
        config = self._item.config
        if hasattr(config, "workerinput"):
            # Other processes of the session would be disturbed as well, and measure.
            raise NotProven(f"noise {name} runs with one worker process only: leave out xdist's -n")
        # Of several ranks the first one's session starts it; the others wait in the first barrier
        # of what is measured. Of ranks that a session starts itself the first alone calls.
        pids = self._child.pids
        if self._launched is not None:
            self._noises_begun += 1
            what = f"noise {self._noises_begun} of run {self._run} of {self._item.nodeid}"
            pids = measured_by_ranks(self._launched, what, self._child.pid)
            if self._launched.rank > 0:
                return
        logs = mkdtemp(prefix=f"noise-{PurePath(name).stem}-", dir=self._session.folder)
        noise = open_noise(name, noise_places(config))
        run = running(noise, pids, Path(logs), seconds)
        self._rounds.append(self._noises.enter_context(run))
        self._restart_clock()

    def end_noise(self) -> NoiseRound | None:
        """End the round, and with the last one the noise."""
        if not self._rounds:
            return None
        found = self._rounds.pop().end_round()
        if not self._rounds:
            self._noises.close()
        return found

    def _restart_clock(self) -> None:
        self._began = time.monotonic()
        self._deadline = self._began + self._session.settings.timeout

    def _time_out(self) -> None:
        self.cut_short = True
        stacks = self._child.dump_stacks()
        self._child.kill("timed out")
        seconds = self._session.settings.timeout
        reason = f"not finished within {seconds:g} s (--hwq-timeout), in stage {self._where()}"
        self.ended("timeout", reason, stacks, failed_test=True)

    def _name(self) -> str:
        return self._cell.id if self._cell is not None else self._item.name

    def _where(self) -> str:
        return _TEARDOWN if self._cell is None and "call" in self._reported else self._stage

    def _record(self, cell: Cell, status: Status, reason: str) -> RunRecord:
        # So that its record stands in the family's table.
        workload = workload_of(self._item)
        return RunRecord(
            cell=cell,
            cell_id=cell.id,
            nodeid=self._item.nodeid,
            family=workload.family if workload is not None else None,
            mark=workload.mark if workload is not None else None,
            status=status,
            reason=reason,
            stage=self._stage,
            started=now(),
            duration_s=round(time.monotonic() - self._began, 3),
            run=self._run,
            faults=[*self._session.settings.fault],
            seed=self._session.settings.seed,
            command=self._session.command,
            **self._session.provenance.fields(),
        )

    def _failed_report(self, text: str, detail: str) -> pytest.TestReport:
        return pytest.TestReport(
            nodeid=self._item.nodeid,
            location=self._item.location,
            keywords=dict.fromkeys(self._item.keywords, 1),
            outcome="failed",
            longrepr=text,
            # Once a test's own outcome is known, pytest counts what follows as an error.
            when="teardown" if "call" in self._reported else "call",
            sections=[("worker", detail)] if detail else [],
            duration=time.monotonic() - self._began,
        )


def _show(report: pytest.TestReport, config: pytest.Config) -> None:
    """Write what a test would have written to the terminal if it had run here.

    That is what pytest lists of its fixtures and of its log, and with ``-s`` all its output.
    """
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    listed = vars(report).pop(LISTED, "")
    if reporter is None:
        return
    if listed:
        reporter.write(listed, flush=True)
    how = config.getoption("capture")
    if how not in ("no", "tee-sys"):
        return
    for stream in ("stdout", "stderr"):
        # Those of a part that ended earlier were written with its report.
        title = f"Captured {stream} {report.when}"
        for text in (text for name, text in report.sections if name == title):
            if how == "no" and stream == "stderr":
                sys.stderr.write(text)
            else:
                reporter.write(text, flush=True)
    if how == "no":
        captured = ("Captured stdout", "Captured stderr")
        report.sections = [each for each in report.sections if not each[0].startswith(captured)]
