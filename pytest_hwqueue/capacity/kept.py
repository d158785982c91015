"""Reuses the windows that an earlier, interrupted command has measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pytest_hwqueue.records.tenants import ColocationRecord
from pytest_hwqueue.scenarios.planned_runs import PlannedRun
from pytest_hwqueue.tenancy.spec import Colocation, Json
from pytest_hwqueue.which.runs import check_device, records_in
from pytest_hwqueue.which.session import Measurer

_Key = tuple[str, int]


class KeptWindows:
    """The ``ok`` windows in a folder, by their whole plan; goals judge and do not measure."""

    def __init__(self, folder: Path) -> None:
        """Read a folder; one that does not exist holds nothing.

        Raises:
            RecordError: if a record cannot be read, or they come from different kinds of devices.

        """
        self.folder = folder
        self._windows: dict[_Key, tuple[ColocationRecord, Path]] = {}
        first: tuple[Path, ColocationRecord] | None = None
        for path, record in records_in(folder) if folder.is_dir() else ():
            if record.status != "ok" or record.traced:
                continue
            if record.fingerprint is not None:
                first = first or (path, record)
                check_device(*first, record, path)
            self._windows[_key(record.plan, record.run)] = (record, path)

    def __len__(self) -> int:
        return len(self._windows)

    def find(self, plan: Colocation, number: int) -> tuple[ColocationRecord, Path] | None:
        """Return the record of a window, and its file, if there is one."""
        return self._windows.get(_key(plan.to_json(), number))

    def keep(self, record: ColocationRecord, path: Path) -> None:
        """Add a window that was just measured."""
        if record.status == "ok":
            self._windows[_key(record.plan, record.run)] = (record, path)


class ResumingMeasurer:
    """Measures a run's windows of one length, each only if it is not kept."""

    def __init__(self, measurer: Measurer, kept: KeptWindows, window_s: float) -> None:
        self._measurer, self._kept, self._window_s = measurer, kept, window_s

    def __call__(
        self, run: PlannedRun, peaks_per_s: Mapping[str, float], share: float, number: int
    ) -> tuple[ColocationRecord, Path]:
        """Return a window's record and file; the arguments are those of `Measurer`."""
        plan = self._measurer.plan(run, peaks_per_s, self._window_s * share, number)
        found = self._kept.find(plan, number)
        if found is None:
            found = self._measurer.window(run, peaks_per_s, self._window_s * share, number)
            self._kept.keep(*found)
        return found


def _key(plan: Json, number: int) -> _Key:
    measured = {name: value for name, value in plan.items() if name not in ("goals", "folder")}
    return json.dumps(measured, sort_keys=True), number
