"""Traced runs of tests whose verdicts fail: why the slowest requests of their cells are slow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest

from pytest_hwqueue.data.records.cell import RunRecord
from pytest_hwqueue.data.records.noise import causes_line
from pytest_hwqueue.plugin.keys import is_scenario
from pytest_hwqueue.plugin.session import MeasuringSession, records_of
from pytest_hwqueue.plugin.worker.isolation import Isolation
from pytest_hwqueue.plugin.worker.services import by_worker

if TYPE_CHECKING:
    from pytest_hwqueue.plugin.progress import Progress


FOLDER = "causes"
"""Within the session's folder: the records of these runs, and the logs of their workers."""

_UNKNOWN = "causes of the slowest requests are not known: "
_NOT_FOUND = "interrupted before they were found"
# Each takes a process of its own, and what slows many tests down seldom has many causes.
_MOST_EXPLAINED = 3
_NOT_SOUGHT = (
    f"causes: sought in the {_MOST_EXPLAINED} tests that got worst (in all with "
    "--hwq-causes=always)"
)


def causes_of(
    cells: Mapping[str, str], config: pytest.Config, session: MeasuringSession,
    tests: Mapping[str, pytest.Item], progress: Progress,
) -> tuple[dict[str, str], bool]:  # fmt: skip
    """Run tests once more, each only for its traced pass, to see why cells' tails are long.

    Args:
        cells: ids of cells, with the node ids of their tests; only the first few are run.
        config: of the session.
        session: that of the cells; these runs are none of its own.
        tests: by node id.
        progress: shows how far they are.

    Returns:
        for each cell a line on the causes of its tail, or on why there are none; and whether
        Ctrl-C ended the runs: causes not found by then stay unknown.

    """
    lines = dict.fromkeys(cells, _UNKNOWN + _NOT_FOUND)
    items: list[pytest.Item] = []
    for nodeid in dict.fromkeys(cells.values()):
        if is_scenario(tests[nodeid]):
            why = _UNKNOWN + "tenants are not traced for a comparison"
        elif len(items) < _MOST_EXPLAINED:
            items.append(tests[nodeid])
            continue
        else:
            why = _NOT_SOUGHT
        lines |= {cell: why for cell, of in cells.items() if of == nodeid}
    if not items:
        return lines, False
    items = by_worker(items)
    isolation = Isolation(config, session.apart(FOLDER), items, progress, only_traced=True)
    try:
        for item in items:
            reports: list[pytest.TestReport] = []
            isolation.run(item, reports.append)
            lines |= lines_of([cell for cell, of in cells.items() if of == item.nodeid], reports)
    except KeyboardInterrupt:
        return lines, True
    finally:
        isolation.close()
    return lines, False


def lines_of(cells: list[str], reports: list[pytest.TestReport]) -> dict[str, str]:
    """Return one line for each of a test's cells, from the reports of its traced run."""
    problems = ["the traced run measured another cell"]
    records: dict[str, RunRecord] = {}
    for report in reports:
        if report.failed:
            problems.append(f"the traced run failed: {report.longreprtext.splitlines()[-1]}")
        records |= {record.cell_id: record for _, record in records_of(report, problems)}
    lines = {}
    for cell in cells:
        found = records.get(cell)
        if found is not None and found.causes is not None:
            lines[cell] = causes_line(found.causes)
        else:
            known = found and (found.reason or found.metrics.refused.get("causes"))
            lines[cell] = _UNKNOWN + (known or problems[-1])
    return lines
