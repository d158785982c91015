"""The other ranks' pytest sessions, if a launcher such as torchrun has started several."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pytest_hwqueue.ranks.launched import LaunchedRank
from pytest_hwqueue.ranks.store import connect

_FINISHED = "finished"
# How long rank 0 may take to end after another one, in seconds: its last test may have waited.
_FINISHING_S = 120


def leave_files_to_first(config: pytest.Config) -> None:
    """Keep a session other than rank 0's from writing the files that all would write."""
    for name in ("xmlpath", "hwq_json", "hwq_markdown", "hwq_report", "hwq_save"):
        if hasattr(config.option, name):
            setattr(config.option, name, None)


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
