"""Sessions of several ranks, and how many a test needs."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pytest_hwqueue.devices.kinds import capabilities_of, visible_accelerators
from pytest_hwqueue.plugin.state import SETTINGS, parameters_of, wrong_usage
from pytest_hwqueue.ranks.launched import LaunchedRank, connect, launched_rank
from pytest_hwqueue.workloads.registry import Declaration, declaration

_FINISHED = "finished"
# How long rank 0 may take to end after another one, in seconds: its last test may have waited.
_FINISHING_S = 120


def leave_files_to_first(config: pytest.Config) -> None:
    """Keep a session other than rank 0's from writing the files that all would write."""
    for name in ("xmlpath", "hwq_json", "hwq_markdown", "hwq_report", "hwq_save"):
        if hasattr(config.option, name):
            # Empty, not None: else the environment or the ini file counts.
            setattr(config.option, name, "")


class RankedSession:
    """Ends the sessions of all ranks together, with rank 0's exit status.

    A launcher that sees one rank fail ends the others, which may be about to report; a launcher
    whose ranks have all succeeded waits for those of other nodes.
    """

    def __init__(self, launched: LaunchedRank) -> None:
        self._launched = launched

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Connect; if the launcher hosts no store, all ranks' workers meet in rank 0's."""
        self._store = connect(self._launched, "session", keep=True)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Any:
        """Send rank 0's exit status to the others, or wait for it."""
        result = yield
        status = session.exitstatus
        if self._launched.rank == 0:
            self._store.set(_FINISHED, str(int(status)))
        elif status in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            self._store.wait([_FINISHED], timedelta(seconds=_FINISHING_S))
            session.exitstatus = int(self._store.get(_FINISHED))
        return result


def be_quiet(config: pytest.Config, file: Path) -> None:
    """Redirect the output of a session other than rank 0's to a file."""
    manager = config.pluginmanager
    reporter = manager.get_plugin("terminalreporter")
    if reporter is None:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    output = file.open("w", encoding="utf-8")
    config.add_cleanup(output.close)
    manager.unregister(reporter)
    manager.register(pytest.TerminalReporter(config, output), "terminalreporter")


_ON_THE_HOST = 2


def ranks_needed(item: pytest.Item) -> int:
    """Return how many ranks to start for a test: more than 1 only if it has collectives.

    Under torchrun it is 1: every rank that torchrun started runs the test in its own worker.
    """
    if launched_rank(os.environ) is not None:
        return 1
    device = str(parameters_of(item).get("hwq_device", ""))
    return ranks_together(workload_of(item), device, item.config.stash[SETTINGS].ranks)


def ranks_together(workload: Declaration | None, device: str, asked: int | None) -> int:
    """Return how many ranks run a workload, whoever starts them; by default one per accelerator.

    Args:
        workload: what they run; None for a user's own code.
        device: its label.
        asked: the value of ``--hwq-ranks``.

    """
    launched = launched_rank(os.environ)
    if launched is not None:
        return launched.size
    if workload is None or not workload.collective:
        return 1
    if asked is not None:
        return asked
    can = capabilities_of(device)
    if can.host:
        return _ON_THE_HOST
    return max(1, visible_accelerators()[1]) if can.several_ranks else 1


def local_device(label: str) -> str:
    """Return the device that a rank opens for the requested one: that of its local rank."""
    launched = launched_rank(os.environ)
    if launched is None or label not in ("cuda", "hip") or visible_accelerators()[1] == 1:
        return label
    return f"{label}:{launched.local_rank}"


def workload_of(item: pytest.Item) -> Declaration | None:
    """Return the suite's workload that a test's mark names, or None.

    Raises:
        pytest.UsageError: if there is no such workload.

    """
    mark = item.get_closest_marker("hwq_workload")
    if mark is None:
        return None
    with wrong_usage(f"{item.nodeid}: mark hwq_workload", TypeError):
        return declaration(*mark.args)
