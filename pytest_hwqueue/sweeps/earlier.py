"""Finds the last sweep with the same settings, and its cells that need not be measured again.

A sweep writes ``sweep/sweep.json`` next to its records: everything its figures depend on that is
known before a device is opened. Two sweeps are the same if all of that is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pytest_hwqueue.errors import RecordError
from pytest_hwqueue.records.cell import RunRecord, read_record, write_record, write_text

FOLDER = "sweep"
_FILE = "sweep.json"
_SESSION_FILE = "session.json"
_ORIGIN = "measured in session "


class NothingToResume(ValueError):
    """There is no sweep to resume; the text says why."""


class SweepFile(BaseModel):
    """What a sweep's figures depend on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_: Literal["pytest-hwqueue/sweep/1"] = Field("pytest-hwqueue/sweep/1", alias="schema")
    started: str = Field(description="UTC, ISO 8601")
    depends_on: dict[str, str] = Field(
        description="by name: options, commit, code, versions, host, settings of the runtimes"
    )


@dataclass(frozen=True)
class EarlierSweep:
    """The results of an earlier sweep.

    Attributes:
        session: its session's id.
        measured: records of the tests that need not be measured again, by node id.
        unreadable: what is wrong with records that could not be read; their tests are measured
            again.

    """

    session: str
    measured: dict[str, list[RunRecord]]
    unreadable: list[str] = field(default_factory=list)


def begin_sweep(folder: Path, started: str, depends_on: Mapping[str, str]) -> None:
    """Mark a session's folder as a sweep's; RecordError if it cannot be written."""
    file = SweepFile(started=started, depends_on=dict(depends_on))
    write_text(folder / FOLDER / _FILE, file.model_dump_json(by_alias=True))


def last_sweep(folder: Path, depends_on: Mapping[str, str], commit: str | None) -> EarlierSweep:
    """Find the last sweep with the same dependencies as this one.

    A test is measured if all of its records are ok and of this commit (a commit made during a sweep
    shows in its records only).

    Args:
        folder: parent of the sessions' folders (--hwq-dir).
        depends_on: as for `begin_sweep`.
        commit: checked out now.

    Raises:
        NothingToResume: if there is none, naming how the last one differs.
        RecordError: if the file of one is damaged.

    """
    sweeps = [(_read(path), path.parents[1]) for path in folder.glob(f"*/{FOLDER}/{_FILE}")]
    if not sweeps:
        raise NothingToResume(f"there is no sweep in {folder}")
    sweeps.sort(key=lambda sweep: sweep[0].started)
    same = [place for sweep, place in sweeps if sweep.depends_on == dict(depends_on)]
    if not same:
        last, place = sweeps[-1]
        differing = "; ".join(_differences(last.depends_on, depends_on))
        raise NothingToResume(
            f"no sweep in {folder} is the same as this one; the last, {place.name}, differs: "
            f"{differing}"
        )
    return _measured(same[-1], commit)


def take_over(folder: Path, records: list[RunRecord], session: str) -> list[Path]:
    """Copy another session's records into a session's folder; return their paths in order.

    Each has a note naming the session that measured it. RecordError if one cannot be written.
    """
    paths = []
    for record in records:
        # Of one that was taken over before, the first session is said.
        notes = [] if origin(record) is not None else [f"{_ORIGIN}{session}"]
        copy = record.model_copy(update={"notes": [*record.notes, *notes]})
        paths.append(write_record(folder, copy))
    return paths


def origin(record: RunRecord) -> str | None:
    """Return the id of the session that measured a record taken over; None for others."""
    for note in record.notes:
        if note.startswith(_ORIGIN):
            return note.removeprefix(_ORIGIN)
    return None


def _read(path: Path) -> SweepFile:
    try:
        return SweepFile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror or error}") from error
    except ValidationError as error:
        first = error.errors()[0]["msg"]
        raise RecordError(
            f"{path} is damaged ({first}): remove it to leave that sweep out"
        ) from error


def _measured(folder: Path, commit: str | None) -> EarlierSweep:
    found = EarlierSweep(folder.name, {})
    unfit = set()
    for path in sorted(folder.glob("*.json")):
        if path.name == _SESSION_FILE:
            continue
        try:
            record = read_record(path)
        except RecordError as error:
            found.unreadable.append(str(error))
            continue
        found.measured.setdefault(record.nodeid, []).append(record)
        if record.status != "ok" or record.git_commit != commit:
            unfit.add(record.nodeid)
    for nodeid in unfit:
        del found.measured[nodeid]
    return found


def _differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return [
        f"{name} was {before.get(name) or 'not set'}, now {now.get(name) or 'not set'}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]
