"""Commands of `hwq` that are killed: what they run ends with them, and what that has started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.parts.schedulers.processes import has_ended, wait_for

# A program, or a module that is imported. A program's child is its own to end: pytest does.
_STAYS = """
import os, subprocess, sys, time
from pathlib import Path
child = None
if __name__ != "__main__":
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
Path("part").write_text(f"{os.getpid()} {child.pid if child else ''}")
Path("part").rename("pids")
time.sleep(600)
def make_step(**_): ...
"""
_OWNERS = {
    # A side of `hwq ab`, `hwq bisect` and `--hwq-against`.
    "side": """
        from pytest_hwqueue.parts.processes.reaper import run
        run([sys.executable, "stays.py"], here, os.environ, here / "log")
    """,
    "fleet check": """
        from pytest_hwqueue.answers.fleet import check
        check.pytest_command = lambda *_: [sys.executable, "stays.py"]
        place = check.Place("node", "d", "cpu")
        with check._session(place, here / "check", []) as session: session.process.wait()
    """,
    # Of a scenario's tenant, before anything runs.
    "own function": """
        from pytest_hwqueue.engine.scenarios.own_functions import _problem
        _problem("stays:make_step", here, "{}")
    """,
}


@pytest.mark.parametrize("owner", _OWNERS)
def test_what_a_killed_command_runs_ends_with_it(tmp_path: Path, owner: str) -> None:
    (tmp_path / "stays.py").write_text(_STAYS, encoding="utf-8")
    lines = [line.strip() for line in _OWNERS[owner].strip().splitlines()]
    script = ["import os, sys", "from pathlib import Path", "here = Path.cwd()", *lines]
    with subprocess.Popen([sys.executable, "-c", "\n".join(script)], cwd=tmp_path) as process:
        try:
            wait_for((tmp_path / "pids").exists, "the command to start")
        finally:
            process.kill()
    left = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    try:
        wait_for(lambda: all(map(has_ended, left)), "what it runs to end with it")
    finally:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
