"""Starts the worker process, follows it, and ends it: on time-out, on Ctrl-C, on every way out."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import pytest

from pytest_hwqueue.plugin.state import FORK_SERVER, PLANNED
from pytest_hwqueue.processes.channel import Channel, ChannelClosed, Message
from pytest_hwqueue.processes.post_mortem import ending, last_lines, stacks
from pytest_hwqueue.processes.starting import start_process, worker_environment

STARTING_S = 180.0
_DYING_S = 5.0

# The worker is this package before it is a pytest session, so its asserts are never rewritten;
# where warnings are errors, pytest's word about it would end every worker.
_ALREADY_IMPORTED = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"


class WorkerDied(RuntimeError):
    """The worker ended by itself; the text says how."""


class Worker(Protocol):
    """What runs single tests on command: one process, or several that run each together."""

    @property
    def pid(self) -> int:
        """Process id of what was started."""

    def start(self) -> list[str]:
        """Have the worker collect, and wait for it; return what it could not collect.

        Raises:
            WorkerDied: if it ended, or did not get there in time.

        """

    def send(self, kind: str, **content: object) -> None:
        """Send a command; WorkerDied if the worker has ended."""

    def receive(self, deadline: float | None) -> Message | None:
        """Wait for a message until ``deadline`` (time.monotonic()); None when it passes."""

    def finish(self) -> None:
        """Ask the worker to exit, so that fixtures are torn down; end it if it does not."""

    def kill(self) -> None:
        """End the worker and everything it has started."""

    def dump_stacks(self) -> str:
        """Have the worker write all its threads' stacks to its log; return them."""

    def last_lines(self) -> str:
        """The last lines the worker wrote outside of tests."""


class Child:
    """One worker process; start it, send it commands, receive its messages, end it."""

    def __init__(
        self,
        config: pytest.Config,
        files: Sequence[str],
        records: Path,
        command: str,
        number: int,
        run: int,
        environment: Mapping[str, str],
        notes: Sequence[str],
        only_traced: bool,
    ) -> None:
        self.log = records / f"worker-{number}.log"
        read_here, write_there = os.pipe()
        read_there, write_here = os.pipe()
        self._process = start_process(
            config.stash.get(FORK_SERVER, None),
            "pytest_hwqueue.plugin.worker.process",
            {**worker_environment(os.environ), **environment},
            self.log,
            (read_there, write_there),
        )
        os.close(read_there)
        os.close(write_there)
        self._channel = Channel(read_here, write_here)
        self._start = start_message(
            config, files, records, command, number, run, notes, only_traced
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def start(self) -> list[str]:
        """Have the worker collect, and wait for it; return what it could not collect.

        Raises:
            WorkerDied: if it ended, or did not get there in time.

        """
        self.send("start", **self._start)
        problems: list[str] = []
        deadline = time.monotonic() + STARTING_S
        while True:
            message = self.receive(deadline)
            if message is None:
                self.kill()
                raise WorkerDied(f"was not ready within {STARTING_S:.0f} s")
            if message["kind"] == "ready":
                return problems
            if message["kind"] == "not_collected":
                problems.append(message["text"])

    def send(self, kind: str, **content: object) -> None:
        """Send a command; WorkerDied if the worker has ended."""
        try:
            self._channel.send(kind, **content)
        except ChannelClosed:
            raise WorkerDied(self._how_it_ended()) from None

    def receive(self, deadline: float | None) -> Message | None:
        """Wait for a message until ``deadline`` (time.monotonic()); None when it passes."""
        try:
            return self._channel.receive(deadline)
        except ChannelClosed:
            raise WorkerDied(self._how_it_ended()) from None

    def finish(self) -> None:
        """Ask the worker to exit, so that fixtures are torn down; end it if it does not."""
        try:
            self._channel.send("exit")
            self._process.wait(STARTING_S)
        except (ChannelClosed, subprocess.TimeoutExpired):
            self.kill()
        self._channel.close()

    def kill(self) -> None:
        """End the worker and everything it has started."""
        kill_group(self._process.pid)
        self._process.wait()

    def dump_stacks(self) -> str:
        """Have the worker write all its threads' stacks to its log; return them."""
        return stacks(self.pid, self.log)

    def last_lines(self) -> str:
        """The last lines the worker wrote outside of tests."""
        return last_lines(self.log)

    def _how_it_ended(self) -> str:
        try:
            status = self._process.wait(_DYING_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return "closed its channel without exiting"
        return ending(status)


def kill_group(pid: int) -> None:
    """Kill a process and its group; nothing if it has gone."""
    for target in (os.killpg, os.kill):
        try:
            # Until a worker has made its own group, the group does not exist.
            target(pid, signal.SIGKILL)
            return
        except ProcessLookupError:
            continue


def start_message(
    config: pytest.Config,
    files: Sequence[str],
    records: Path,
    command: str,
    number: int,
    run: int,
    notes: Sequence[str],
    only_traced: bool,
) -> dict[str, object]:
    """Say what a worker is to collect, and what its records say of this session."""
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
