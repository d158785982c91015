"""Several worker processes on this host that run each test together, followed as one worker."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_hwqueue.plugin.session import provenance
from pytest_hwqueue.plugin.state import PLANNED
from pytest_hwqueue.processes.channel import Channel, Message, last_lines
from pytest_hwqueue.processes.measured_process import MeasuredProcess, ProcessEnded, kill_group
from pytest_hwqueue.processes.starting import Process, start_reaped

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


# How long the others may take once a rank is done, or has failed. The ranks settle by themselves
# what a failure means (`cell.RankGroup`), in less than this.
_OTHERS_S = 15.0
_POLL_S = 0.1

_LAUNCH = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from pytest_hwqueue.plugin.worker.rank_launcher import main; main()"
)
_RANK = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from pytest_hwqueue.plugin.worker.process import main_of_rank; main_of_rank(sys.argv[2])"
)


class _Rank(MeasuredProcess):
    """A rank. It is the launcher's child, so the launcher and not this process sees its end."""

    def __init__(
        self, pid: int, channel: Channel, log: Path, launcher: Process, ended: Callable[[], str]
    ) -> None:
        super().__init__(launcher, channel, log)
        self._pid = pid
        self._ended = ended

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._pid

    def how_it_ended(self) -> str:
        """Wait for the launcher to end, and return what it saw."""
        return self._ended()


class LocalRanks:
    """Ranks that torch's elastic launcher starts; rank 0's messages count as the worker's.

    Has the interface of `MeasuredProcess`.
    """

    def __init__(self, environment: Mapping[str, str], log: Path, size: int) -> None:
        """Start the launcher.

        Args:
            environment: the whole environment of the launcher and the ranks.
            log: file for its output; the ranks' logs are named after it.
            size: how many ranks.

        """
        self._size = size
        self._log = log
        self._endings = log.with_name(f"{log.stem}-endings.txt")
        self._logs = [log.with_name(f"{log.stem}-rank-{rank}.log") for rank in range(size)]
        self._ranks: dict[int, _Rank] = {}
        self._inbox: queue.SimpleQueue[tuple[int, Message | None]] = queue.SimpleQueue()
        self._finished: dict[int, Message] = {}
        self._failed: dict[int, str] = {}
        self._hurry: float | None = None
        # A path of its own: one in the records' folder may be longer than a socket's may be.
        self._folder = tempfile.TemporaryDirectory(prefix="hwq-ranks-")
        path = f"{self._folder.name}/ranks"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(size)
        paths = json.dumps(sys.path)
        rank = json.dumps(["-c", _RANK, paths, json.dumps([path, *map(str, self._logs)])])
        command = [sys.executable, "-c", _LAUNCH, paths, str(size), str(self._endings), rank]
        self._launcher = start_reaped(command, environment, log)

    @property
    def pid(self) -> int:
        """The launcher's process id."""
        return self._launcher.pid

    def have_collect(self, start: Message) -> None:
        """Wait for all ranks, and have them collect their tests.

        Raises:
            ProcessEnded: if one ended, or did not finish in time.

        """
        deadline = time.monotonic() + STARTING_S
        self._accept(deadline)
        self.send("start", **start)
        waiting = set(range(self._size))
        while waiting:
            message = self._next(deadline)
            if message is None:
                self.kill("not ready")
                raise ProcessEnded(f"was not ready within {STARTING_S:.0f} s: {_list(waiting)}")
            rank, content = message
            if content["kind"] == "ready":
                waiting.discard(rank)

    def send(self, kind: str, **content: object) -> None:
        """Send a command to all ranks; ProcessEnded if one has ended."""
        if kind == "run":
            self._finished, self._failed, self._hurry = {}, {}, None
        for rank in self._ranks.values():
            rank.send(kind, **content)

    def receive(self, deadline: float | None) -> Message | None:
        """Wait for rank 0's next message until ``deadline`` (time.monotonic()); None after it.

        A test ends when all ranks have finished it, or shortly after one has failed.

        Raises:
            ProcessEnded: if a rank ended.

        """
        while True:
            until = min((t for t in (deadline, self._hurry) if t is not None), default=None)
            got = self._next(until)
            if got is None:
                if self._hurry is None or time.monotonic() < self._hurry:
                    return None
                return self._cut_short()
            rank, message = got
            if message["kind"] == "finished":
                self._finished[rank] = message
                if len(self._finished) == self._size:
                    retire = any(each["retire"] for each in self._finished.values())
                    return {**self._finished[0], "retire": retire or bool(self._failed)}
                self._hurry = self._hurry or time.monotonic() + _OTHERS_S
            elif rank == 0:
                return message
            elif message["kind"] == "confirm":
                self._ranks[rank].send("confirmed", problem="")
            elif message["kind"] == "report" and message["data"]["outcome"] == "failed":
                self._failed[rank] = str(message["data"]["longrepr"])
                self._hurry = self._hurry or time.monotonic() + _OTHERS_S

    def finish(self, within_s: float) -> None:
        """Ask the ranks to exit; end them if they do not."""
        try:
            self.send("exit")
            self._launcher.wait(within_s)
        except (ProcessEnded, subprocess.TimeoutExpired):
            self.kill("did not exit")

    def kill(self, why: str) -> None:
        """End all ranks and everything they have started."""
        for rank in self._ranks.values():
            kill_group(rank.pid)
        if not self._ranks and self._launcher.poll() is None:
            # The launcher knows its ranks; it is asked to end them.
            os.kill(self._launcher.pid, signal.SIGTERM)
            try:
                self._launcher.wait(_OTHERS_S)
            except subprocess.TimeoutExpired:
                kill_group(self._launcher.pid)
        kill_group(self._launcher.pid)
        self._launcher.wait()

    def close(self) -> None:
        """Close the channels; all ranks must have ended."""
        for rank in self._ranks.values():
            rank.close()
        self._listener.close()
        self._folder.cleanup()

    def dump_stacks(self) -> str:
        """Have every rank write its threads' stacks to its log; return them."""
        return "\n".join(
            f"rank {rank}:\n{process.dump_stacks()}"
            for rank, process in sorted(self._ranks.items())
        )

    def last_lines(self) -> str:
        """Return the last output of each rank and of the launcher."""
        texts = [(f"rank {rank}", log) for rank, log in enumerate(self._logs)]
        said = [(name, last_lines(log, 25)) for name, log in [*texts, ("launcher", self._log)]]
        failed = [f"rank {rank} failed:\n{text}" for rank, text in sorted(self._failed.items())]
        return "\n".join([*failed, *(f"{name}:\n{text}" for name, text in said if text)])

    def _accept(self, deadline: float) -> None:
        self._listener.settimeout(_POLL_S)
        while len(self._ranks) < self._size:
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                if self._launcher.poll() is not None:
                    raise ProcessEnded(self._how_it_ended("its launcher")) from None
                if time.monotonic() > deadline:
                    self.kill("not started")
                    absent = set(range(self._size)) - set(self._ranks)
                    text = f"was not started within {STARTING_S:.0f} s: {_list(absent)}"
                    raise ProcessEnded(text) from None
                continue
            descriptor = connection.detach()
            os.set_blocking(descriptor, True)
            channel = Channel.to_process(descriptor, os.dup(descriptor))
            hello = channel.receive(deadline)
            if hello is None:
                raise ProcessEnded("connected and said nothing")
            number = hello["rank"]
            rank = self._ranks[number] = _Rank(
                hello["pid"], channel, self._logs[number], self._launcher,
                partial(self._how_it_ended, f"rank {number}"),
            )  # fmt: skip
            rank.deliver_to(self._inbox, number)

    def _next(self, deadline: float | None) -> tuple[int, Message] | None:
        """Wait for any rank's next message; None after ``deadline``; ProcessEnded if one ended."""
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            rank, message = self._inbox.get(timeout=left)
        except queue.Empty:
            return None
        if message is None:
            raise ProcessEnded(self._ranks[rank].how_it_ended())
        return rank, message

    def _cut_short(self) -> Message:
        """End ranks that wait for others; keep rank 0's outcome if it has one."""
        absent = set(range(self._size)) - set(self._finished)
        if 0 in absent:
            failed = "; ".join(f"rank {r}: {t.splitlines()[-1]}" for r, t in self._failed.items())
            raise ProcessEnded(f"could not go on: {failed}")
        self.kill("others waited for it")
        return {**self._finished[0], "retire": True}

    def _how_it_ended(self, which: str) -> str:
        try:
            self._launcher.wait(_OTHERS_S)
        except subprocess.TimeoutExpired:
            self.kill("closed its channel without exiting")
        if self._endings.exists():
            return f"ended: {self._endings.read_text()}"
        return f"ended: {which} has gone"


def _list(ranks: set[int]) -> str:
    return ", ".join(f"rank {rank}" for rank in sorted(ranks))
