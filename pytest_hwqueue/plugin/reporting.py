"""Reports at a session's end: ours, the project's, and those of other packages."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

import pytest

from pytest_hwqueue.errors import BadExtension, ReportFailed
from pytest_hwqueue.extensions import load, origin

if TYPE_CHECKING:
    from pytest_hwqueue.plugin.session import MeasuringSession
    from pytest_hwqueue.verdicts.judging import Judgement

_GROUP = "pytest_hwqueue.reports"
_HOOK = "pytest_hwqueue_report"


def add_reports(config: pytest.Config) -> None:
    """Register the reports of other packages, once each.

    Raises:
        BadExtension: naming the package whose report cannot be used, and why.

    """
    manager = config.pluginmanager
    for point in entry_points(group=_GROUP):
        name = f"hwqueue-report-{point.name}"
        if manager.has_plugin(name):
            continue
        report = load(point)
        if not hasattr(report, _HOOK):
            raise BadExtension(f"{origin(point)} names {report!r}, which has no {_HOOK}")
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
            records=list(session.records),
            judgements=list(judgements),
        )
    except (BadExtension, ReportFailed) as error:
        session.problems.append(str(error))
    # Whatever another's report raises, the session has its records and says so.
    except Exception as error:
        session.problems.append(f"a report failed: {type(error).__name__}: {error}")
