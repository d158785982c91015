"""Stored baselines: ``ROOT/DEVICE/NAME/`` with one file for each cell.

Next to the cells' files are ``anchor/``, the first accepted runs, ``history.jsonl``, one line for
each deliberate move of the baseline, and ``records/``, whole records where they were asked for.
Files are replaced atomically, writers of one baseline wait for each other, and readers need no
lock.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pytest_hwqueue.data.errors import RecordError
from pytest_hwqueue.data.records.cell import RunRecord, write_record
from pytest_hwqueue.data.records.files import (
    cell_file_name,
    check_case,
    check_device,
    check_name,
    is_cell_file_name,
    is_device,
    is_name,
)
from pytest_hwqueue.data.records.timelines import copy_kept
from pytest_hwqueue.judge.baselines.cell_file import read_cell, write_cell
from pytest_hwqueue.judge.baselines.folders import (
    HISTORY_FILE,
    Move,
    add_move,
    cell_files,
    describe_move,
    entries,
    folders,
    inside,
    read_folder,
    read_history,
    sync,
    writing,
)
from pytest_hwqueue.judge.baselines.runs import (
    CellBaseline,
    add_runs,
    cell_of_record,
    condition_differences,
)

_ANCHOR = "anchor"
_RECORDS = "records"


class Store:
    """The baselines under a folder.

    Args:
        root: the folder, such as ``baselines``; made when something is stored.
        packaged: a folder of read-only baselines, such as those shipped with the plugin; one of the
            same device and name under ``root`` takes precedence.

    Every method raises RecordError, naming the file, for what is damaged or cannot be written, or
    if there is no baseline of that name, and BadInput for what cannot be a name.

    """

    def __init__(self, root: Path, packaged: Path | None = None) -> None:
        self.root = root
        self._packaged = packaged

    def devices(self) -> list[str]:
        """Return the models of devices that have a baseline, such as ``nvidia-h200``."""
        found = {device for root in self._roots() for device in folders(root)}
        return sorted(device for device in found if is_device(device) and self.names(device))

    def names(self, device: str) -> list[str]:
        """Return the names of a device's baselines."""
        check_device(device)
        return sorted({name for root in self._roots() for name in _names(root / device)})

    def devices_with(self, name: str) -> list[str]:
        """Return the models of devices that have a baseline of this name."""
        return [device for device in self.devices() if name in self.names(device)]

    def labels(self) -> list[str]:
        """Return all baselines as ``DEVICE/NAME``."""
        return [f"{device}/{name}" for device in self.devices() for name in self.names(device)]

    def read(self, name: str, device: str) -> dict[str, CellBaseline]:
        """Read a baseline: its cells by id, in the order of the ids.

        Samples stay encoded until `StoredRun.samples_ns` asks for them.
        """
        return read_folder(self._existing(name, device))

    def anchor(self, name: str, device: str) -> dict[str, CellBaseline]:
        """Read the first accepted runs; a cell that never moved is its own anchor."""
        folder = self._existing(name, device)
        cells = {**read_folder(folder), **read_folder(inside(folder / _ANCHOR, folder))}
        return dict(sorted(cells.items()))

    def history(self, name: str, device: str) -> list[Move]:
        """Return the baseline's deliberate moves, oldest first."""
        return read_history(self._existing(name, device) / HISTORY_FILE)

    def add(self, name: str, record: RunRecord, session: str) -> Path:
        """Add one run to its cell and return the cell's file; see `add_many`."""
        return self.add_many(name, [record], session)[0]

    def add_many(self, name: str, records: Sequence[RunRecord], session: str) -> list[Path]:
        """Add runs to their devices' baselines and return the cells' files, one per record.

        A run that is already there is left alone, so storing can be repeated after an
        interruption. Nothing of a device is written if one of its records is refused.

        Args:
            name: of the baseline.
            records: with status ok, fingerprint and samples, and without planted faults.
            session: id of the session that measured them.

        Raises:
            RecordError: also if a record cannot be stored, or its conditions are not those of the
                runs stored before; every field that differs is named.

        """
        measured: dict[str, dict[str, CellBaseline]] = {}
        places = []
        for record in records:
            new = cell_of_record(record, session)
            _refuse_faults(new)
            folder, cell_id = self._folder(name, new.device), record.cell.id
            cells = measured.setdefault(new.device, {})
            cells[cell_id] = add_runs(cells[cell_id], new) if cell_id in cells else new
            places.append(folder / cell_file_name(cell_id))
        for device, cells in measured.items():
            with self._writing(name, device) as folder:
                paths = {folder / cell_file_name(cell_id): new for cell_id, new in cells.items()}
                joined = {path: _join(path, new) for path, new in paths.items()}
                for path, cell in joined.items():
                    if cell is not None:
                        write_cell(path, cell)
        return places

    def prune(self, name: str, device: str, keep: int) -> int:
        """Keep the newest ``keep`` runs of each cell and return how many were removed.

        The first ``keep`` runs become the anchor of a cell that has none, because a baseline that
        follows its newest runs moves unseen.
        """
        if keep < 1:
            raise RecordError(f"keep must be at least 1 run, is {keep}")
        removed = 0
        with self._writing(name, device, existing=True) as folder:
            stored = read_folder(folder)
            longer = {key: cell for key, cell in stored.items() if len(cell.runs) > keep}
            self._keep_anchor(
                folder,
                {key: CellBaseline(cell.header, cell.runs[:keep]) for key, cell in longer.items()},
            )
            for cell_id, cell in longer.items():
                removed += len(cell.runs) - keep
                newest = CellBaseline(cell.header, cell.runs[-keep:])
                write_cell(folder / cell_file_name(cell_id), newest)
        return removed

    def accept(
        self,
        name: str,
        device: str,
        cells: Mapping[str, CellBaseline],
        reason: str,
        commit: str | None = None,
    ) -> Move:
        """Move a baseline deliberately: these cells' runs replace the stored ones.

        Cells that are not among them stay as they are. What was replaced first stays as the anchor,
        and the history gets a line.

        Args:
            name: of the baseline; it may be a new one.
            device: whose runs they are.
            cells: by cell id, of another baseline (`read`) or a session (`sources.load_source`).
            reason: why, for whoever reads the history.
            commit: of the code that is the norm from now on.

        Raises:
            RecordError: also if a cell is not this device's, has planted faults, or is not the
                same measurement as the stored cell of that id.

        """
        if not reason.strip():
            raise RecordError("moving a baseline needs a reason: it is all that history can tell")
        if not cells:
            raise RecordError(f"there is no cell to move the baseline {name!r} to")
        for cell in cells.values():
            _refuse_faults(cell)
            if cell.device != device:
                raise RecordError(
                    f"{cell.header.cell.id} was measured on {cell.device} and cannot be accepted "
                    f"for {device}"
                )
        with self._writing(name, device) as folder:
            stored = read_folder(folder)
            _refuse_other_measurements(stored, cells)
            self._keep_anchor(folder, {key: stored.get(key, cell) for key, cell in cells.items()})
            anchors = read_folder(self._inside(folder / _ANCHOR))
            move = describe_move(stored, anchors, cells, reason, commit)
            # The history first: it may tell of a move that a crash cut short, and which is then
            # repeated, but no move can go untold.
            add_move(folder / HISTORY_FILE, move)
            for cell_id, cell in cells.items():
                write_cell(folder / cell_file_name(cell_id), cell)
        return move

    def _keep_anchor(self, folder: Path, cells: Mapping[str, CellBaseline]) -> None:
        anchor = self._inside(folder / _ANCHOR)
        wanted = {anchor / cell_file_name(cell_id): cell for cell_id, cell in cells.items()}
        missing = {path: cell for path, cell in wanted.items() if not os.path.lexists(path)}
        for path, cell in missing.items():
            write_cell(path, cell)
        if missing:
            sync(anchor)

    def _folder(self, name: str, device: str) -> Path:
        check_name(name)
        check_device(device)
        folder = self.root / device / name
        check_case(device, entries(self.root))
        check_case(name, entries(folder.parent))
        return self._inside(folder)

    def _existing(self, name: str, device: str) -> Path:
        folder = self._folder(name, device)
        if not cell_files(folder) and self._packaged is not None:
            packaged = inside(self._packaged / device / name, self._packaged)
            if cell_files(packaged):
                return packaged
        if not cell_files(folder):
            there = ", ".join(self.names(device))
            raise RecordError(
                f"there is no baseline {name!r} for {device} in {self.root}: "
                + (f"there are {there}" if there else "none was stored yet for that device")
            )
        return folder

    def _roots(self) -> list[Path]:
        return [self.root] if self._packaged is None else [self.root, self._packaged]

    def _inside(self, folder: Path) -> Path:
        return inside(folder, self.root)

    @contextmanager
    def _writing(self, name: str, device: str, *, existing: bool = False) -> Iterator[Path]:
        folder = self._folder(name, device)
        if existing and self._existing(name, device) != folder:
            raise RecordError(
                f"{device}/{name} comes with the plugin and is only read: store one of your own "
                f"under that name in {self.root}, which then goes before it"
            )
        with writing(folder):
            yield folder


def keep_record(folder: Path, record: RunRecord, source: Path) -> Path:
    """Keep a whole record and its timelines with a baseline; return its path.

    Args:
        folder: of the baseline that has the record's run.
        record: the record.
        source: the session's folder, in which its timelines are.

    Raises:
        RecordError: if it cannot be written, or its timelines cannot be read.

    """
    target = folder / _RECORDS / source.name
    if record.timelines is not None:
        copy_kept(source, target, record.timelines)
    return write_record(target, record)


def _names(folder: Path) -> list[str]:
    """Return the names of the baselines in a device's folder."""
    return [
        name
        for name in folders(folder)
        if is_name(name) and any(map(is_cell_file_name, entries(folder / name)))
    ]


def _join(path: Path, new: CellBaseline) -> CellBaseline | None:
    """Return a cell's new file content, or None if it is up to date."""
    if not os.path.lexists(path):
        return new
    stored = read_cell(path)
    joined = add_runs(stored, new)
    return joined if len(joined.runs) > len(stored.runs) else None


def _refuse_faults(cell: CellBaseline) -> None:
    if cell.faults:
        raise RecordError(
            f"{cell.header.cell.id} was measured with planted faults ({', '.join(cell.faults)}), "
            "which say nothing of the device; measure it again without them"
        )


def _refuse_other_measurements(
    stored: Mapping[str, CellBaseline], cells: Mapping[str, CellBaseline]
) -> None:
    for cell_id in stored.keys() & cells.keys():
        differ = condition_differences(stored[cell_id].header, cells[cell_id].header)
        identity = [str(each) for each in differ if each.kind == "identity"]
        if identity:
            raise RecordError(
                f"{cell_id} is not what was measured for the baseline: {'; '.join(identity)}. "
                "Accept it under another name; or, to begin this cell anew, remove the files "
                f"{cell_file_name(cell_id)} there and in {_ANCHOR}/"
            )
