"""Separate runs of failing cells that find the causes of their tails; never stored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_hwqueue.errors import RecordError
from pytest_hwqueue.plugin.session import REPORT_ATTRIBUTE, ApartSession
from pytest_hwqueue.plugin.state import is_scenario
from pytest_hwqueue.plugin.worker.isolation import Isolation
from pytest_hwqueue.plugin.worker.scheduler_services import grouped
from pytest_hwqueue.records.causes import causes_line
from pytest_hwqueue.records.cell import RunRecord, read_record

if TYPE_CHECKING:
    from pytest_hwqueue.plugin.session import MeasuringSession
    from pytest_hwqueue.reports.progress import Progress

FOLDER = "causes"
"""Within the session's folder: the records of these runs, and the logs of their workers."""

_UNKNOWN = "causes of the slowest requests are not known: "
_INTERRUPTED = "interrupted before they were found"


class TracedRuns:
    """Runs tests once more, each only for its traced pass.

    Attributes:
        interrupted: whether Ctrl-C ended the runs; causes not found by then stay unknown.

    """

    def __init__(
        self,
        config: pytest.Config,
        session: MeasuringSession,
        items: Mapping[str, pytest.Item],
        progress: Progress,
    ) -> None:
        self._config = config
        self._session = session
        self._items = items
        self._progress = progress
        self.interrupted = False

    def causes_of(self, cells: Mapping[str, str]) -> dict[str, str]:
        """Return for each cell a line on the causes of its tail, or on why there are none.

        Args:
            cells: ids of cells, with the node ids of their tests.

        """
        lines = dict.fromkeys(cells, _UNKNOWN + _INTERRUPTED)
        items = []
        for nodeid in dict.fromkeys(cells.values()):
            item = self._items[nodeid]
            if is_scenario(item):
                lines |= {
                    cell: _UNKNOWN + "tenants are not traced for a comparison"
                    for cell, of in cells.items()
                    if of == nodeid
                }
            else:
                items.append(item)
        if not items:
            return lines
        apart = ApartSession(self._session, FOLDER)
        items = grouped(items)
        isolation = Isolation(self._config, apart, items, self._progress, only_traced=True)
        try:
            for item in items:
                reports: list[pytest.TestReport] = []
                isolation.run(item, reports.append)
                wanted = [cell for cell, nodeid in cells.items() if nodeid == item.nodeid]
                lines |= lines_of(wanted, reports)
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            isolation.close()
        return lines


def lines_of(cells: list[str], reports: list[pytest.TestReport]) -> dict[str, str]:
    """Return one line for each of a test's cells, from the reports of its traced run."""
    records: dict[str, RunRecord] = {}
    problem = "the traced run measured another cell"
    for report in reports:
        if report.failed:
            problem = f"the traced run failed: {report.longreprtext.splitlines()[-1]}"
        for entry in getattr(report, REPORT_ATTRIBUTE, []):
            try:
                record = _read(entry)
            except (RecordError, ValueError) as error:
                problem = str(error)
            else:
                records[record.cell_id] = record
    lines = {}
    for cell in cells:
        found = records.get(cell)
        if found is None:
            lines[cell] = _UNKNOWN + problem
        elif found.causes is None:
            lines[cell] = _UNKNOWN + (found.reason or found.metrics.refused.get("causes", problem))
        else:
            lines[cell] = causes_line(found.causes)
    return lines


def _read(entry: Mapping[str, object]) -> RunRecord:
    if "path" in entry:
        return read_record(Path(str(entry["path"])))
    return RunRecord.model_validate(entry["record"])
