"""Several worker processes on this host that run each test together, followed as one worker."""

from __future__ import annotations

import queue
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_hwqueue.parts.processes.channel import ProcessEnded
from pytest_hwqueue.parts.processes.launched import place_on_this_host
from pytest_hwqueue.parts.processes.measured_process import MeasuredProcess

if TYPE_CHECKING:
    from pytest_hwqueue.parts.processes.channel import Message
    from pytest_hwqueue.parts.processes.starting import ForkServer, Main
    from pytest_hwqueue.plugin.worker.calls import WorkerStart

MAIN: Main = "pytest_hwqueue.plugin.worker.process"
STARTING_S = 180.0


def worker_input(config: pytest.Config) -> dict[str, Any]:
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


def have_collect(worker: MeasuredProcess, start: WorkerStart) -> None:
    """Have a worker collect its tests, and wait for it.

    Raises:
        ProcessEnded: if it ended, or did not finish in time.

    """
    _start(worker, start)
    deadline = time.monotonic() + STARTING_S
    while (message := worker.receive(deadline)) is None or message["kind"] != "ready":
        if message is None:
            worker.kill("not ready")
            raise ProcessEnded(f"was not ready within {STARTING_S:.0f} s")


def _start(worker: MeasuredProcess, start: WorkerStart) -> None:
    from pydantic_core import to_jsonable_python

    worker.send("start", start=to_jsonable_python(start))


# How long the others may take once a rank is done, or has failed. The ranks settle by themselves
# what a failure means (`engine.cell.ranks.RankGroup`), in less than this.
_OTHERS_S = 15.0
# Starts a process, as `MeasuredProcess.start` does.
Start = Callable[["ForkServer | None", "Main", Mapping[str, str], Path], MeasuredProcess]


class LocalRanks:
    """A worker process for each rank; rank 0's messages count as the worker's.

    Has the interface of `MeasuredProcess`.
    """

    def __init__(
        self,
        server: ForkServer | None,
        environment: Mapping[str, str],
        log: Path,
        size: int,
        start: Start = MeasuredProcess.start,
        others_s: float = _OTHERS_S,
    ) -> None:
        """Start the ranks.

        Args:
            server: forks them, as in `MeasuredProcess.start`.
            environment: the whole environment of each.
            log: the ranks' logs are named after it.
            size: how many ranks.
            start: starts each.
            others_s: longest time that the others may take once one has ended or failed.

        """
        self._inbox: queue.SimpleQueue[tuple[int, Message | None]] = queue.SimpleQueue()
        self._finished: dict[int, Message] = {}
        self._failed: dict[int, str] = {}
        self._hurry: float | None = None
        self._ranks: list[MeasuredProcess] = []
        self._environment = environment
        self._others_s = others_s
        try:
            for rank in range(size):
                own = log.with_name(f"{log.stem}-rank-{rank}.log")
                self._ranks.append(start(server, MAIN, environment, own))
                self._ranks[rank].deliver_to(self._inbox, rank)
        except BaseException:
            self.kill("not started")
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The process id of rank 0."""
        return self._ranks[0].pid

    @property
    def pids(self) -> list[int]:
        """The process id of each rank."""
        return [rank.pid for rank in self._ranks]

    def have_collect(self, start: WorkerStart) -> None:
        """Have rank 0 host the store in which all meet, and all collect their tests.

        Raises:
            ProcessEnded: if one ended, or did not finish in time.

        """
        deadline = time.monotonic() + STARTING_S
        self._ranks[0].send("host store")
        size = len(self._ranks)
        waiting = set(range(size))
        while waiting:
            message = self._next(deadline)
            if message is None:
                self.kill("not ready")
                late = ", ".join(f"rank {rank}" for rank in sorted(waiting))
                raise ProcessEnded(f"was not ready within {STARTING_S:.0f} s: {late}")
            number, content = message
            if content["kind"] == "store":
                for rank, process in enumerate(self._ranks):
                    place = place_on_this_host(rank, size, content["port"], self._environment)
                    _start(process, replace(start, environment=place))
            elif content["kind"] == "ready":
                waiting.discard(number)

    def send(self, kind: str, **content: object) -> None:
        """Send a command to all ranks, an answer to rank 0; ProcessEnded if one has ended."""
        if kind == "answer":
            # Calls of the others were answered as they came.
            self._ranks[0].send(kind, **content)
            return
        if kind == "run":
            self._finished, self._failed, self._hurry = {}, {}, None
        for rank in self._ranks:
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
                if len(self._finished) == len(self._ranks):
                    retire = any(each["retire"] for each in self._finished.values())
                    return {**self._finished[0], "retire": retire or bool(self._failed)}
                self._hurry = self._hurry or time.monotonic() + self._others_s
            elif rank == 0:
                return message
            elif message["kind"] != "call":
                continue
            elif message["waits"]:
                self._ranks[rank].send("answer", value=None, error="")
            elif message["method"] == "report":
                data = message["arguments"]["data"]
                if data["outcome"] == "failed":
                    self._failed[rank] = str(data["longrepr"])
                    self._hurry = self._hurry or time.monotonic() + self._others_s

    def finish(self, within_s: float) -> None:
        """Ask the ranks to exit; end them if they do not."""
        # All before any is waited for: fixtures of the whole session may wait for each other.
        for rank in self._ranks:
            with suppress(ProcessEnded):
                rank.send("exit")
        for rank in self._ranks:
            rank.finish(within_s)

    def kill(self, why: str) -> None:
        """End all ranks and everything they have started."""
        for rank in self._ranks:
            rank.kill(why)

    def close(self) -> None:
        """Close the channels; all ranks must have ended."""
        for rank in self._ranks:
            rank.close()

    def dump_stacks(self) -> str:
        """Have every rank write its threads' stacks to its log; return them."""
        stacks = (f"rank {rank}:\n{p.dump_stacks()}" for rank, p in enumerate(self._ranks))
        return "\n".join(stacks)

    def last_lines(self) -> str:
        """Return the last output of each rank."""
        said = [(rank, process.last_lines(25)) for rank, process in enumerate(self._ranks)]
        failed = [f"rank {rank} failed:\n{text}" for rank, text in sorted(self._failed.items())]
        return "\n".join([*failed, *(f"rank {rank}:\n{text}" for rank, text in said if text)])

    def _next(self, deadline: float | None) -> tuple[int, Message] | None:
        """Wait for any rank's next message; None after ``deadline``; ProcessEnded if one ended."""
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            rank, message = self._inbox.get(timeout=left)
        except queue.Empty:
            return None
        if message is None:
            raise ProcessEnded(f"ended: rank {rank} {self._ranks[rank].how_it_ended()}")
        return rank, message

    def _cut_short(self) -> Message:
        """End ranks that wait for others; keep rank 0's outcome if it has one."""
        if 0 not in self._finished:
            failed = "; ".join(f"rank {r}: {t.splitlines()[-1]}" for r, t in self._failed.items())
            raise ProcessEnded(f"could not go on: {failed}")
        self.kill("others waited for it")
        return {**self._finished[0], "retire": True}
