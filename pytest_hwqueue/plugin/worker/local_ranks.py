"""Several worker processes on this host that run each test together, followed as one worker."""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from pytest_hwqueue.plugin.worker.child import (
    STARTING_S,
    WorkerDied,
    kill_group,
    start_message,
)
from pytest_hwqueue.processes.channel import Channel, ChannelClosed, Message
from pytest_hwqueue.processes.post_mortem import last_lines, stacks
from pytest_hwqueue.processes.starting import worker_environment

# How long the others may take once a rank is done, or has failed. The ranks settle by themselves
# what a failure means (`group.RankGroup`), in less than this.
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


class LocalRanks:
    """Ranks that torch's elastic launcher starts; rank 0's messages are the worker's.

    Its arguments are those of `harness.child.Child`, and the number of ranks.
    """

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
        size: int,
    ) -> None:
        self._size = size
        self._log = records / f"worker-{number}.log"
        self._endings = records / f"worker-{number}-endings.txt"
        self._logs = [records / f"worker-{number}-rank-{rank}.log" for rank in range(size)]
        self._pids: dict[int, int] = {}
        self._channels: dict[int, Channel] = {}
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
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _LAUNCH, paths, str(size), str(self._endings), rank],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**worker_environment(os.environ), **environment},
            )
        self._start = start_message(
            config, files, records, command, number, run, notes, only_traced
        )

    @property
    def pid(self) -> int:
        """The launcher's process id."""
        return self._process.pid

    def start(self) -> list[str]:
        """Wait for all ranks, have them collect; return what could not be collected.

        Raises:
            WorkerDied: if one ended, or did not get there in time.

        """
        deadline = time.monotonic() + STARTING_S
        self._accept(deadline)
        self.send("start", **self._start)
        problems: list[str] = []
        waiting = set(range(self._size))
        while waiting:
            message = self._next(deadline)
            if message is None:
                self.kill()
                raise WorkerDied(f"was not ready within {STARTING_S:.0f} s: {_list(waiting)}")
            rank, content = message
            if content["kind"] == "ready":
                waiting.discard(rank)
            elif content["kind"] == "not_collected" and rank == 0:
                problems.append(content["text"])
        return problems

    def send(self, kind: str, **content: object) -> None:
        """Send a command to all ranks; WorkerDied if one has ended."""
        if kind == "run":
            self._finished, self._failed, self._hurry = {}, {}, None
        for channel in self._channels.values():
            try:
                channel.send(kind, **content)
            except ChannelClosed:
                raise WorkerDied(self._how_it_ended()) from None

    def receive(self, deadline: float | None) -> Message | None:
        """Wait for rank 0's next message until ``deadline`` (time.monotonic()); None after it.

        A test is finished when all ranks are, or when others are not soon after one has failed.

        Raises:
            WorkerDied: if a rank ended.

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
                self._channels[rank].send("confirmed", problem="")
            elif message["kind"] == "report" and message["data"]["outcome"] == "failed":
                self._failed[rank] = str(message["data"]["longrepr"])
                self._hurry = self._hurry or time.monotonic() + _OTHERS_S

    def finish(self) -> None:
        """Ask the ranks to exit; end them if they do not."""
        try:
            self.send("exit")
            self._process.wait(STARTING_S)
        except (WorkerDied, subprocess.TimeoutExpired):
            self.kill()
        self._close()

    def kill(self) -> None:
        """End all ranks and everything they have started."""
        for pid in self._pids.values():
            kill_group(pid)
        if not self._pids and self._process.poll() is None:
            # The launcher knows its ranks; it is asked to end them.
            self._process.terminate()
            try:
                self._process.wait(_OTHERS_S)
            except subprocess.TimeoutExpired:
                kill_group(self._process.pid)
        kill_group(self._process.pid)
        self._process.wait()

    def dump_stacks(self) -> str:
        """Have every rank write its threads' stacks to its log; return them."""
        return "\n".join(
            f"rank {rank}:\n{stacks(pid, self._logs[rank])}"
            for rank, pid in sorted(self._pids.items())
        )

    def last_lines(self) -> str:
        """Return what each rank, and the launcher, wrote last."""
        texts = [(f"rank {rank}", log) for rank, log in enumerate(self._logs)]
        said = [(name, last_lines(log, 25)) for name, log in [*texts, ("launcher", self._log)]]
        failed = [f"rank {rank} failed:\n{text}" for rank, text in sorted(self._failed.items())]
        return "\n".join([*failed, *(f"{name}:\n{text}" for name, text in said if text)])

    def _accept(self, deadline: float) -> None:
        self._listener.settimeout(_POLL_S)
        while len(self._channels) < self._size:
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                if self._process.poll() is not None:
                    raise WorkerDied(self._how_it_ended()) from None
                if time.monotonic() > deadline:
                    self.kill()
                    absent = set(range(self._size)) - set(self._channels)
                    text = f"was not started within {STARTING_S:.0f} s: {_list(absent)}"
                    raise WorkerDied(text) from None
                continue
            descriptor = connection.detach()
            os.set_blocking(descriptor, True)
            channel = Channel(descriptor, os.dup(descriptor))
            hello = channel.receive(deadline)
            if hello is None:
                raise WorkerDied("connected and said nothing")
            self._channels[hello["rank"]] = channel
            self._pids[hello["rank"]] = hello["pid"]
            threading.Thread(
                target=self._listen, args=(hello["rank"], channel), name="hwq-rank", daemon=True
            ).start()

    def _listen(self, rank: int, channel: Channel) -> None:
        while True:
            try:
                message = channel.receive()
            except (ChannelClosed, OSError):
                self._inbox.put((rank, None))
                return
            self._inbox.put((rank, message))

    def _next(self, deadline: float | None) -> tuple[int, Message] | None:
        """Wait for any rank's next message; None after ``deadline``; WorkerDied if one ended."""
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            rank, message = self._inbox.get(timeout=left)
        except queue.Empty:
            return None
        if message is None:
            raise WorkerDied(self._how_it_ended(rank))
        return rank, message

    def _cut_short(self) -> Message:
        """End ranks that wait for others; rank 0's outcome stands if it has one."""
        absent = set(range(self._size)) - set(self._finished)
        if 0 in absent:
            failed = "; ".join(f"rank {r}: {t.splitlines()[-1]}" for r, t in self._failed.items())
            raise WorkerDied(f"could not go on: {failed}")
        self.kill()
        return {**self._finished[0], "retire": True}

    def _how_it_ended(self, rank: int | None = None) -> str:
        try:
            self._process.wait(_OTHERS_S)
        except subprocess.TimeoutExpired:
            self.kill()
        if self._endings.exists():
            return f"ended: {self._endings.read_text()}"
        which = "its launcher" if rank is None else f"rank {rank}"
        return f"ended: {which} has gone"

    def _close(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self._channels = {}
        self._listener.close()
        self._folder.cleanup()


def _list(ranks: set[int]) -> str:
    return ", ".join(f"rank {rank}" for rank in sorted(ranks))
