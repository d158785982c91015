"""The first message to a worker: what to collect, and its records' facts on the session."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_hwqueue.plugin.state import PLANNED
from pytest_hwqueue.processes.channel import Message
from pytest_hwqueue.processes.measured_process import MeasuredProcess, ProcessEnded

STARTING_S = 180.0

# The worker is this package before it is a pytest session, so its asserts are never rewritten;
# where warnings are errors, pytest's word about it would end every worker.
_ALREADY_IMPORTED = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"


def start_message(
    config: pytest.Config,
    files: Sequence[str],
    records: Path,
    command: str,
    number: int,
    run: int,
    notes: Sequence[str],
    only_traced: bool,
) -> Message:
    """Return what a worker must collect, and what its records say about this session."""
    # Captured at Python's level only: what a dying process writes below it stays in the log.
    more = ["--capture=sys", "-W", _ALREADY_IMPORTED]
    if config.pluginmanager.hasplugin("pytest_cov"):
        more.append("--no-cov")
    basetemp = config.getoption("basetemp", None)
    return {
        "arguments": [str(argument) for argument in config.invocation_params.args],
        "more_arguments": more,
        "folder": str(config.invocation_params.dir),
        "files": list(files),
        "records": str(records),
        "command": command,
        "run": run,
        "notes": list(notes),
        "only_traced": only_traced,
        "planned": config.stash.get(PLANNED, {}),
        "basetemp": f"{basetemp}-hwq-{os.getpid()}-{number}" if basetemp else None,
    }


def have_collect(worker: MeasuredProcess, start: Message) -> None:
    """Have a worker collect its tests, and wait for it.

    Raises:
        ProcessEnded: if it ended, or did not finish in time.

    """
    worker.send("start", **start)
    deadline = time.monotonic() + STARTING_S
    while (message := worker.receive(deadline)) is None or message["kind"] != "ready":
        if message is None:
            worker.kill("not ready")
            raise ProcessEnded(f"was not ready within {STARTING_S:.0f} s")
