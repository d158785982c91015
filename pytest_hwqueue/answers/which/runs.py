"""The runs behind ``hwq which``: every case, native, and each tenant alone, in turn.

They are measured, or read from stored records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from pytest_hwqueue.answers.which.file import Role
from pytest_hwqueue.data.errors import INTERRUPTED_BEFORE, RecordError
from pytest_hwqueue.data.figures.of_requests import Session
from pytest_hwqueue.data.records.conditions import is_of_mode
from pytest_hwqueue.data.records.files import TRACED
from pytest_hwqueue.data.records.fingerprint import Value
from pytest_hwqueue.data.records.plan import Tenant, identity_of
from pytest_hwqueue.data.records.tenants import ColocationRecord, records_in
from pytest_hwqueue.engine.scenarios.goals import NATIVE
from pytest_hwqueue.engine.scenarios.planned_runs import (
    Case,
    PlannedRun,
    SessionPlan,
    colocation,
    native_run,
    own_run,
    peak_runs,
    runs_needed,
    solo_run,
)
from pytest_hwqueue.engine.scenarios.runs import NotMeasured, ScenarioRuns, WindowRecord
from pytest_hwqueue.engine.tenants.servers import for_records
from pytest_hwqueue.parts.devices.fingerprint import NOT_KNOWN, value_of_process


@dataclass(frozen=True)
class Entry:
    """A row of the table: a case, native for comparison, or a tenant alone."""

    case: Case
    run: PlannedRun
    role: Role

    @property
    def id(self) -> str:
        """Such as ``threads-native`` or ``solo high``."""
        if self.role != "solo":
            return self.case.id
        variant = f"{self.case.variant.name}-" if self.case.variant is not None else ""
        return f"{variant}solo {self.run.tenants[0].name}"


def entries(wanted: Sequence[Case]) -> list[Entry]:
    """Return the rows of a table: per variant the tenants alone, native, and the cases."""
    found: list[Entry] = []
    for case in wanted:
        tenants = case.tenants
        if len(tenants) > 1:
            found += [Entry(case, solo_run(case, each), "solo") for each in tenants]
        native = replace(case, scheduler=NATIVE)
        found.append(Entry(native, native_run(case), "case" if native in wanted else "reference"))
        found.append(Entry(case, own_run(case), "case"))
    return list({entry.id: entry for entry in found}.values())


class WhichRuns(ScenarioRuns):
    """The runs of a scenario's table; a session is what one folder holds of one GPU."""

    def add(self, run: PlannedRun, record: ColocationRecord, path: Path) -> None:
        """Add a record measured earlier."""
        self._stored.setdefault(run.key, []).append((record, path))

    def all_sessions(self) -> dict[Session, ColocationRecord]:
        """Return the sessions that measured something, oldest first, with the first record."""
        sessions: dict[Session, ColocationRecord] = {}
        for record, path in sorted(self._all(), key=lambda each: each[0].started):
            sessions.setdefault(self._session(record, path), record)
        return sessions

    def within(self, session: Session) -> WhichRuns:
        """Return the runs of one session alone."""
        runs = WhichRuns(self._attempt)
        for key, stored in self._stored.items():
            if those := [each for each in stored if self._session(*each) == session]:
                runs._stored[key] = those
        for key, stored in self._traced.items():
            runs._traced[key] = [each for each in stored if self._session(*each) == session]
        return runs

    def _all(self) -> Iterable[WindowRecord]:
        return chain.from_iterable(self._stored.values())

    def _session(self, record: ColocationRecord, path: Path) -> Session:
        folder = path.parent.parent if record.traced else path.parent
        device = _device_uuid(record)
        if not device:
            # A run that failed early has no fingerprint: it was on its folder's first GPU.
            here = (_device_uuid(each) for each, at in self._all() if at.parent == folder)
            device = next(filter(None, here), "")
        return Session(device, str(folder))

    def records_so_far(self, run: PlannedRun) -> list[WindowRecord]:
        """Return the `window_records` of a run, which may be nothing yet."""
        try:
            return self.window_records(run)
        except NotMeasured:
            return []


def _device_uuid(record: ColocationRecord) -> str:
    soft = {} if record.fingerprint is None else record.fingerprint.soft
    return str(soft.get("device_uuid") or "")


def all_runs(wanted: Sequence[Case]) -> list[PlannedRun]:
    """Return each run that a table of these cases and its goals need, once."""
    # Of equal ones the last stays, at the place of the first: a case's own run knows its goals.
    runs = [*(entry.run for entry in entries(wanted)), *_runs_of_goals(wanted)]
    return list({run.key: run for run in runs}.values())


def _runs_of_goals(wanted: Sequence[Case]) -> list[PlannedRun]:
    """Return the runs that the goals of a table's rows need; those of native come first."""
    rows = [entry.case for entry in entries(wanted) if entry.role == "reference"]
    return [run for case in (*rows, *wanted) for run in runs_needed(case)]


def read_runs(wanted: Sequence[Case], folders: Iterable[Path]) -> WhichRuns:
    """Read the runs of a table from folders of records; other files in them are left alone.

    Each folder is a separate session, and so is each GPU in it: `data.figures.over_sessions`
    combines them.
    Records of traced windows are in a folder of its own below it.

    Raises:
        RecordError: if a folder has no records of the scenario, a record does not fit the scenario
            file any more, or records come from different devices.

    """
    runs = WhichRuns(_refuse_to_measure)
    planned = _by_place(wanted)
    same_device = SameDevice()
    for folder in folders:
        taken = 0
        traced = records_in(folder / TRACED) if (folder / TRACED).is_dir() else []
        for path, record in [*_without_repeated(records_in(folder)), *traced]:
            run = planned.get((record.plan.name, record.placement, record.scheduler))
            # Runs with background noise are not in this table, and one that was interrupted was
            # not measured.
            if run is None or record.plan.noise is not None:
                continue
            if record.reason == INTERRUPTED_BEFORE:
                continue
            _check_fits(run, record, path)
            same_device.check(record, path)
            if record.traced:
                runs.add_traced(run, record, path)
                continue
            runs.add(run, record, path)
            taken += 1
        if not taken:
            raise RecordError(f"{folder} has no record of the cases of {wanted[0].scenario.name}")
    return runs


def _without_repeated(
    found: Sequence[tuple[Path, ColocationRecord]],
) -> list[tuple[Path, ColocationRecord]]:
    """Leave out invalid windows that were measured again."""
    last = {_window(record): path for path, record in found}
    return [
        (path, record)
        for path, record in found
        if record.status != "invalid" or last[_window(record)] == path
    ]


def _window(record: ColocationRecord) -> tuple[object, ...]:
    """Return what a window and its repetition have in common, and no other window has."""
    plan = record.plan.name, record.plan.noise, record.placement, record.scheduler
    return *plan, record.run, _device_uuid(record)


def _by_place(wanted: Sequence[Case]) -> dict[tuple[str, str, str], PlannedRun]:
    """Return the runs by every name under which they may have been measured."""
    runs = [*_runs_of_goals(wanted), *(entry.run for entry in entries(wanted))]
    runs += [peak for run in list(runs) for peak in peak_runs(run).values()]
    return {(run.name, run.placement, run.scheduler): run for run in runs}


# What a tenant is whatever its load, and wherever it is measured.
_OF_FILE = (
    "name", "model", "workload", "parameters", "batch", "priority", "share", "streams", "function",
    "concurrency", "start_s", "requests", "trace_sha256",
)  # fmt: skip


def _check_fits(run: PlannedRun, record: ColocationRecord, path: Path) -> None:
    """Raise RecordError unless the tenants are those of the scenario file as it is now."""
    session = SessionPlan(record.device, "auto", Path())
    expected = for_records(colocation(run, session, record.plan.duration_s)).tenants
    for each, measured in zip(expected, record.plan.tenants, strict=False):
        now, then = _of_file(each), _of_file(measured)
        for name in dict.fromkeys((*now, *then)):
            if now.get(name) != then.get(name) and not _is_told_by_one(name, now, then):
                raise RecordError(
                    f"{path}: tenant {measured.name} was measured with {name} {then.get(name)!r}, "
                    f"and the scenario file says {now.get(name)!r}: measure again, or give the "
                    "file of then"
                )
    if len(expected) != len(record.plan.tenants):
        raise RecordError(f"{path}: was measured with other tenants than the scenario file has")


def _of_file(tenant: Tenant) -> dict[str, Any]:
    """Return what a tenant is by the scenario file, a server field by field."""
    stated = to_jsonable_python(tenant)
    found: dict[str, Any] = {name: stated[name] for name in _OF_FILE}
    if tenant.server is not None:
        own = identity_of(tenant.server)
        found |= {f"{_DIGEST}{name}": value for name, value in own.pop("digests").items()}
        found |= {f"server.{name}": value for name, value in own.items()}
    return found


_DIGEST = "digest of "


def _is_told_by_one(name: str, now: Mapping[str, Any], then: Mapping[str, Any]) -> bool:
    """Whether only one side knows: of a variable that is set only where a server is started."""
    known = (now.get(name) is not None, then.get(name) is not None)
    return known != (True, True) and (name.startswith(_DIGEST) or name == "trace_sha256")


class SameDevice:
    """What records of one table must have in common.

    Two modes differ in what they do to tenants' processes: an MPS client's variables, the
    multiprocessors of its partition, a preloaded library. So records of one mode are compared in
    all conditions of each tenant, those of two in the conditions that no process can change. What
    is not known, as of a server of the user's, fits.
    """

    def __init__(self) -> None:
        # By mode and tenant, or for all, by name: where a condition was known first, and its value.
        self._known: dict[tuple[object, ...], tuple[Path, Value]] = {}

    def check(self, record: ColocationRecord, path: Path) -> None:
        """Raise RecordError if the record differs from an earlier one; one without conditions fits.

        Runs that failed before any tenant was there have no conditions.
        """
        if record.fingerprint is None:
            return
        names = [each.name for each in record.plan.tenants]
        for name, value in sorted(record.fingerprint.hard.items()):
            if not is_of_mode(name):
                self._compare((name,), value, path)
                continue
            for tenant in names:
                own = value_of_process(value, tenant, names)
                self._compare((name, record.placement, record.scheduler, tenant), own, path)

    def _compare(self, key: tuple[object, ...], value: Value, path: Path) -> None:
        if value == NOT_KNOWN:
            return
        first_path, first = self._known.setdefault(key, (path, value))
        if value != first:
            raise RecordError(
                f"{first_path} and {path} cannot stand in one table: {key[0]} was {first!r} "
                f"and {value!r}"
            )


def _refuse_to_measure(*_: object) -> WindowRecord:
    raise AssertionError("records that were read are not measured again")
