"""Whether a worker is fit for another test, and the services of its scheduler.

What a test changes for good in its process, the next one would be measured with: limits, clocks,
cores, torch's settings. A worker that is no longer as it was is replaced. What a fixture of a wider
scope changes is meant for all its tests, so the state after set-up is expected as well; of torch's
settings, which figures depend on, only that after such a fixture.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import time
from collections.abc import Hashable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pytest_hwqueue.data.errors import NotProven, on_one_line
from pytest_hwqueue.data.metrics.numbers import grouped
from pytest_hwqueue.parts.devices.conditions import python_tracers
from pytest_hwqueue.parts.devices.torch_settings import Setting, changed_settings, torch_settings
from pytest_hwqueue.parts.processes.channel import standard_streams
from pytest_hwqueue.parts.schedulers.syntax import (
    CELL,
    SchedulerPaths,
    needs_environment,
    open_scheduler,
)
from pytest_hwqueue.plugin.keys import parameters_of
from pytest_hwqueue.plugin.ranks import ranks_needed

_CLOCKS = ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time", "time_ns",
           "sleep")  # fmt: skip
_LIMITS = sorted(getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_"))


class Fitness:
    """Knows the states in which a worker's process is fit to run the next test."""

    def __init__(self) -> None:
        self._expected = {_state()}
        # By the fixture that has set them, as long as it is there; None for the process's own.
        self._of_torch: dict[object, Mapping[str, Setting]] = {None: torch_settings()}
        self._lost = False

    def ran(self, call: pytest.CallInfo[None]) -> None:
        """Look at how a part of a test has ended.

        pytest stops in the middle of a teardown that raises SystemExit, and hands the fixtures of
        that test to all that follow.
        """
        if call.when == "setup":
            self._expected.add(_state())
        if call.when == "teardown" and call.excinfo is not None:
            whole = call.excinfo.errisinstance((Exception, pytest.fail.Exception))
            self._lost |= not whole

    def fixture_is_set_up(self, fixture: pytest.FixtureDef[Any]) -> None:
        """Look at what a fixture has changed for all the tests that share it."""
        now = torch_settings()
        if fixture.scope != "function" and not self._knows(now):
            self._of_torch[fixture] = now

    def fixture_is_torn_down(self, fixture: pytest.FixtureDef[Any]) -> None:
        """Expect no longer what it had set."""
        self._of_torch.pop(fixture, None)

    def _knows(self, settings: Mapping[str, Setting]) -> bool:
        return any(not changed_settings(each, settings) for each in self._of_torch.values())

    def look_at_output(self) -> None:
        """Look at the captured output, which exists only while a part of a test runs.

        pytest goes on with it, closed or not, and every later test would fail.
        """
        self._lost |= any(getattr(each, "closed", False) for each in (sys.stdout, sys.stderr))

    def is_left(self) -> bool:
        """Return whether a test has left the process, and pytest in it, fit for the next one."""
        return not self._lost and _state() in self._expected and self._knows(torch_settings())


def _state() -> Hashable:
    return (
        tuple(standard_streams()),
        _has_descriptors(),
        _folder(),
        _umask(),
        tuple(resource.getrlimit(limit) for limit in _LIMITS),
        frozenset(os.sched_getaffinity(0)) if sys.platform == "linux" else None,
        os.getpriority(os.PRIO_PROCESS, 0),
        tuple(id(getattr(time, name)) for name in _CLOCKS),
        tuple(id(signal.getsignal(number)) for number in signal.valid_signals()),
        (gc.isenabled(), *gc.get_threshold()),
        tuple(python_tracers()),
        (sys.getrecursionlimit(), sys.getswitchinterval()),
    )


def _has_descriptors() -> bool:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return False
    return True


def _folder() -> str | None:
    """Return the current folder; None if it is gone."""
    try:
        return os.getcwd()
    except OSError:
        return None


def _umask() -> int:
    # There is no other way to read it that needs no /proc.
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


class SchedulerServices:
    """A mode's running services, and the environment that its workers need.

    Attributes:
        text: the mode's text; None for modes that work in any process and need nothing.
        environment: variables to add to a worker's.
        notes: notes for the records.

    """

    def __init__(self, text: str | None, paths: SchedulerPaths, folder: Path) -> None:
        """Start the services, with their logs in ``folder``.

        Raises:
            NotProven: if one cannot be started.
            BadInput: if there is no such mode.

        """
        self.text = text
        self.environment: dict[str, str] = {}
        self.notes: list[str] = []
        self._mode = None if text is None else open_scheduler(text, paths)
        with ExitStack() as started:
            if self._mode is not None:
                started.enter_context(self._mode.services(folder))
                self.environment = self._mode.environment(CELL)
            if text is not None and folder.exists():
                self.notes.append(f"logs of {text}: in {folder.name}/, next to this record")
            self._started = started.pop_all()

    def check(self) -> None:
        """Raise NotProven if a service that the mode needs has ended; asks none of them."""
        if self._mode is not None:
            self._mode.check()

    def problem(self, pid: int) -> str:
        """Ask the services; return which has ended, or does not answer. Empty if all do.

        Args:
            pid: the worker's, which measures nothing now.

        """
        try:
            self.check()
            if self._mode is not None:
                self._mode.observe({CELL.name: pid})
        except NotProven as error:
            return on_one_line(error)
        return ""

    def close(self) -> None:
        """Stop the services; the worker must have ended."""
        self._started.close()


def mode_of_worker(item: pytest.Item) -> str | None:
    """Return the scheduler mode whose worker a test needs, or None if any worker will do."""
    text = parameters_of(item).get("hwq_scheduler")
    return text if isinstance(text, str) and needs_environment(text) else None


def worker_of(item: pytest.Item) -> tuple[str | None, int]:
    """Return the scheduler mode and the number of ranks of the worker that a test needs."""
    return mode_of_worker(item), ranks_needed(item)


def by_worker(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return tests in order, except that those needing the same worker are adjacent."""
    groups = grouped((worker_of(item), item) for item in items)
    return [item for group in groups.values() for item in group]
