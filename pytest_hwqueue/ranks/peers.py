"""The other ranks' pytest sessions, where a launcher such as torchrun has started several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_hwqueue.ranks.place import Place
from pytest_hwqueue.ranks.store import connect, tell_failure


class Peers:
    """Lets the other ranks know what became of a test whose worker cannot say it itself."""

    def __init__(self, place: Place) -> None:
        self._place = place
        # Kept for as long as the session lasts: workers of all ranks meet there.
        self._store = connect(place, "session", keep=True)

    def failed(self, test: str, reason: str, detail: str) -> None:
        """Let the other ranks' workers know that this rank's has failed."""
        tell_failure(connect(self._place, test), self._place.rank, reason, detail)


def leave_files_to_first(config: pytest.Config) -> None:
    """Let a session that is not rank 0's write none of the files that all would write."""
    for name in ("xmlpath", "hwq_json", "hwq_markdown", "hwq_save"):
        if hasattr(config.option, name):
            setattr(config.option, name, None)


class QuietRank:
    """Makes a session that is not rank 0's say nothing: rank 0 reports for all.

    What it would have printed goes into a file; it ends well where its tests failed, because rank
    0's did too, and a launcher that sees one rank fail ends the others before they have reported.
    """

    def __init__(self, config: pytest.Config, file: Path) -> None:
        manager = config.pluginmanager
        reporter = manager.get_plugin("terminalreporter")
        if reporter is None:
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        output = file.open("w", encoding="utf-8")
        config.add_cleanup(output.close)
        manager.unregister(reporter)
        manager.register(pytest.TerminalReporter(config, output), "terminalreporter")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Any:
        """End well where tests failed."""
        result = yield
        if session.exitstatus == pytest.ExitCode.TESTS_FAILED:
            session.exitstatus = pytest.ExitCode.OK
        return result
