"""Runs to compare: a stored baseline, a session's JSON file, or a folder of records."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, ValidationError

from pytest_hwqueue.data.errors import RecordError, complaint, nearest, within
from pytest_hwqueue.data.records.cell import (
    RunRecord,
    SessionFile,
    SessionInfo,
    read_record,
    require_own_figures,
)
from pytest_hwqueue.data.records.files import is_device, is_name
from pytest_hwqueue.data.records.sealed import read_sealed
from pytest_hwqueue.data.records.stored import SESSION_FILES, SessionFiles, read_files
from pytest_hwqueue.judge.baselines.folders import cell_files, read_folder
from pytest_hwqueue.judge.baselines.runs import CellBaseline, add_runs, cell_of_record

if TYPE_CHECKING:
    from pytest_hwqueue.judge.baselines.store import Store


def read_session_file(path: Path) -> tuple[SessionInfo, list[RunRecord]]:
    """Read a session and its records in the order measured.

    Args:
        path: of a file that ``--hwq-json`` wrote, or of a ``session.json``.

    Raises:
        RecordError: naming the file, or the record, that cannot be read or is damaged.

    """
    content, has_seal = _read(path)
    if isinstance(content, SessionFile):
        records = _records_within(path, content)
        with within(str(path)):
            for record in () if has_seal else records:
                require_own_figures(record)
        return content.session, records
    with within(remedy="measure again"):
        return content.session, read_files(path, content)


def read_session_id(path: Path) -> str:
    """Return the id of a session by its file; raises as `read_session_file` does."""
    return _read(path)[0].session.id


def _records_within(path: Path, content: SessionFile) -> list[RunRecord]:
    records = []
    for number, entry in enumerate(content.records):
        try:
            # The session file calls a cell by its id and puts its parts aside; see session_text.
            renamed = {**entry, "cell_id": entry["cell"], "cell": entry["setting"]}
            del renamed["setting"]
            records.append(RunRecord.model_validate(renamed))
        except (KeyError, ValidationError) as error:
            said = complaint(error) if isinstance(error, ValidationError) else f"{error} missing"
            raise RecordError(
                f"{path} is damaged: records[{number}] is not a record: {said}; measure again"
            ) from error
    return records


def _read(path: Path) -> tuple[SessionFile | SessionFiles, bool]:
    """Return a session's file, and whether its seal vouches for it."""
    model: type[SessionFile | SessionFiles] = SessionFile
    # Whatever cannot be read is none of either kind, and what is wrong is said below.
    with contextlib.suppress(OSError, ValueError):
        data = json.loads(path.read_bytes())
        if isinstance(data, dict) and str(data.get("schema")).startswith(SESSION_FILES):
            model = SessionFiles
    return read_sealed(path, model, f"a session file ({_WRITTEN_BY})")


_SESSION_FILE = "session.json"
# In whole commands: those that read such a file have a --json of their own, or none.
_WRITTEN_BY = "written by `hwq run --json FILE` or `pytest --hwq-json=FILE`"


@dataclass(frozen=True)
class UnmatchedCell:
    """A cell that only one side has, and why as far as known."""

    cell_id: Annotated[str, Field(alias="cell")]
    reason: str


@dataclass(frozen=True)
class Source:
    """Runs to compare.

    Attributes:
        label: for people: DEVICE/NAME of a baseline, else the path.
        kind: where they came from.
        cells: by id, in the order of the ids.
        left_out: cells of records without figures to compare, with their status and why it is
            not ok; they may have other records that are.

    """

    label: str
    kind: Literal["baseline", "session", "records"]
    cells: dict[str, CellBaseline]
    left_out: tuple[UnmatchedCell, ...] = ()


def load_source(text: str, store: Store, of: Source | None = None) -> Source:
    """Load what a user names: a baseline, a session's JSON file, or a folder.

    Args:
        text: ``NAME`` or ``DEVICE/NAME`` of a stored baseline; else a path to a session file
            (``--hwq-json``), to a folder of records, or to the folder of a baseline.
        store: where to look for baselines; its names take precedence over paths, so write
            ``./NAME`` for a path of the same name.
        of: the runs compared with it: a name alone is then looked up only in the folders of the
            devices that these were measured on.

    Raises:
        RecordError: if there is no such thing, or it cannot be read, or a name stands for the
            baselines of several devices, or runs of one cell differ in their conditions.

    """
    device, _, name = text.rpartition("/")
    if is_name(name) and (is_device(device) or not device):
        devices = [each for each in store.devices_with(name) if device in ("", each)]
        if devices and of is not None and not device:
            devices = _of_devices(name, devices, of)
        if len(devices) > 1:
            listed = " or ".join(f"{each}/{name}" for each in devices)
            raise RecordError(f"{name!r} is a baseline of several devices: write {listed}")
        if devices:
            cells = store.read(name, devices[0])
            return Source(f"{devices[0]}/{name}", "baseline", cells)
    path = Path(text)
    if path.is_file():
        session, records = read_session_file(path)
        return source_of(str(path), "session", [(session.id, record) for record in records])
    if text and path.is_dir():
        return _load_folder(path)
    known = nearest(text, store.labels())
    raise RecordError(
        f"{text!r} is neither a baseline nor a file nor a folder; {known} in "
        f"{store.root} or brought by the package; files of sessions are {_WRITTEN_BY}"
    )


def _of_devices(name: str, devices: Sequence[str], of: Source) -> list[str]:
    """Return the devices that a source was measured on; refuse if there are none."""
    measured = sorted({cell.device for cell in of.cells.values()})
    found = [device for device in devices if device in measured]
    if measured and not found:
        raise RecordError(
            f"there is no baseline {name!r} of {' or '.join(measured)}, on which {of.label} was "
            f"measured; name {' or '.join(f'{each}/{name}' for each in devices)} in full to "
            "compare with another device"
        )
    return found or list(devices)


def _load_folder(path: Path) -> Source:
    if cell_files(path):
        return Source(str(path), "baseline", read_folder(path))
    files = sorted(file for file in path.glob("*.json") if file.name != _SESSION_FILE)
    if not files:
        raise RecordError(f"the folder {path} has neither records (*.json) nor cells (*.jsonl)")
    session = path.resolve().name
    if (path / _SESSION_FILE).exists():
        session = read_session_id(path / _SESSION_FILE)
    with within(remedy="remove it or measure again"):
        records = [read_record(file) for file in files]
    records.sort(key=lambda record: record.started)
    return source_of(str(path), "records", [(session, record) for record in records])


def source_of(
    label: str,
    kind: Literal["session", "records"],
    records: Sequence[tuple[str, RunRecord]],
) -> Source:
    """Return records as a source.

    Args:
        label: for people, such as the path.
        kind: where they came from.
        records: at least one, each behind the id of its session, in the order measured.

    Raises:
        RecordError: if there is none, or runs of one cell differ in their conditions.

    """
    if not records:
        raise RecordError(f"{label} holds no record: that session measured nothing, or not yet")
    cells: dict[str, CellBaseline] = {}
    left_out = []
    for session, record in records:
        cell_id = record.cell.id
        if record.status != "ok":
            left_out.append(UnmatchedCell(cell_id, f"{record.status}: {record.reason}"))
            continue
        with within(label):
            new = cell_of_record(record, session)
            cells[cell_id] = add_runs(cells[cell_id], new) if cell_id in cells else new
    return Source(label, kind, dict(sorted(cells.items())), tuple(left_out))
