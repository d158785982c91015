"""What listens while a session measures: nothing, unless docs/security.md names it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Sessions

CONFTEST = """
import os
from pathlib import Path

def pytest_configure():
    if not Path("session").exists():
        Path("session").write_text(str(os.getpid()))
"""
TEST = """
import json
from pathlib import Path
import psutil

def test_it(hwq):
    hwq.measure(lambda: None)
    # The session, the worker, and the server that forked it.
    session = psutil.Process(int(Path("session").read_text()))
    worker = psutil.Process()
    processes = {session, *session.children(recursive=True), worker, worker.parent()}
    sockets = [str(each) for process in processes for each in process.net_connections("inet")]
    Path("sockets.json").write_text(json.dumps([len(processes), sockets]))
"""


def test_a_session_listens_nowhere(pytester: pytest.Pytester, sessions: Sessions) -> None:
    pytester.makepyfile(TEST, conftest=CONFTEST)
    options = ("--hwq-device=sim:h200", "--hwq-streams=1", "--hwq-iterations=20")
    sessions.result(pytester.path, *options).assert_outcomes(passed=1)
    looked_at, found = json.loads((pytester.path / "sockets.json").read_text())
    assert looked_at >= 3
    assert found == []
