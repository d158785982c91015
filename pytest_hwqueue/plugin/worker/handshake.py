"""The first message to a worker: what to collect, and its records' facts on the session."""

from __future__ import annotations

import os
import sys
import time
import uuid
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_hwqueue.plugin.session import provenance
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
        "provenance": provenance(config).to_json(),
        "planned": config.stash.get(PLANNED, {}),
        "workerinput": _worker_input(config),
        "basetemp": f"{basetemp}-hwq-{os.getpid()}-{number}" if basetemp else None,
    }


def _worker_input(config: pytest.Config) -> dict[str, Any]:
    """Return what other plugins hand to a worker of xdist, which this worker looks like to them.

    Plugins know a worker from the session by its ``workerinput``, and leave to the session what
    only one process may do, such as writing a report. In turn they expect there what they give
    xdist's workers when it asks them. Where xdist is not installed, nobody asks; what they would
    give is mostly an option that they have settled, such as a seed.
    """
    own = dict(getattr(config, "workerinput", {}))
    options = {name: value for name, value in vars(config.option).items() if _is_plain(value)}
    node = SimpleNamespace(
        config=config, gateway=SimpleNamespace(id="hwq"), workerinput={
            **options, "workerid": "hwq", "workercount": 1, "mainargv": sys.argv,
            "testrunuid": uuid.uuid4().hex, **own,
        },
    )  # fmt: skip
    caller = getattr(config.hook, "pytest_configure_node", None)
    for plugin in [] if own or caller is None else caller.get_hookimpls():
        # Coverage is not measured in workers, and its session knows no other way to ask for it.
        if plugin.plugin_name == "_cov":
            continue
        try:
            plugin.function(node)
        except Exception as error:  # Of a plugin that needs more of xdist than a worker's input.
            told = f"plugin {plugin.plugin_name} has nothing for the worker process: {error!r}"
            warnings.warn(told, stacklevel=1)
    return {name: value for name, value in node.workerinput.items() if _is_plain(value)}


def _is_plain(value: object) -> bool:
    """Whether JSON carries a value as it is."""
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (str, int, float))


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
