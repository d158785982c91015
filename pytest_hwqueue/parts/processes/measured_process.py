"""A measuring process as its parent sees it: started, followed, and ended in every case."""

from __future__ import annotations

import os
import queue
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from pytest_hwqueue.data.errors import HwqError
from pytest_hwqueue.parts.processes.channel import (
    Channel,
    Message,
    ProcessEnded,
    ending,
    stacks,
)
from pytest_hwqueue.parts.processes.reaper import kill, last_lines
from pytest_hwqueue.parts.processes.starting import ForkedProcess, ForkServer, Main, start_process

Key = TypeVar("Key")

_DYING_S = 5.0


class MeasuredProcess:
    """A process that measures: its channel, its log, its end.

    Attributes:
        log: file for its output.

    """

    def __init__(self, process: ForkedProcess, channel: Channel, log: Path) -> None:
        self.log = log
        self._process = process
        self._channel = channel
        self._reader: threading.Thread | None = None
        # Why it was ended from here.
        self._stopped = ""

    @classmethod
    def start(
        cls, server: ForkServer | None, main: Main, environment: Mapping[str, str], log: Path
    ) -> MeasuredProcess:
        """Start a process that runs ``main()`` of a module.

        Args:
            server: forks it if its environment is the server's; None starts it anew.
            main: the module.
            environment: its whole environment.
            log: file for its output.

        """
        read_here, write_there = os.pipe()
        read_there, write_here = os.pipe()
        channel = Channel.to_process(read_here, write_here)
        with closing(Channel(read_there, write_there)):
            try:
                process = start_process(server, main, environment, log, (read_there, write_there))
            except BaseException:
                channel.close()
                raise
        return cls(process, channel, log)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def pids(self) -> list[int]:
        """The processes that measure: this one."""
        return [self.pid]

    def send(self, kind: str, **content: object) -> None:
        """Send a command; ProcessEnded if the process has gone."""
        try:
            self._channel.send(kind, **content)
        except ProcessEnded:
            raise ProcessEnded(self.how_it_ended()) from None

    def receive(self, deadline: float | None) -> Message | None:
        """Wait for a message until ``deadline`` (time.monotonic()); None when it passes.

        Raises:
            ProcessEnded: if the process has ended.

        """
        try:
            return self._channel.receive(deadline)
        except ProcessEnded:
            raise ProcessEnded(self.how_it_ended()) from None
        except HwqError as damaged:
            self.kill(str(damaged))
            raise ProcessEnded(self.how_it_ended()) from None

    def deliver_to(self, inbox: queue.SimpleQueue[tuple[Key, Message | None]], key: Key) -> None:
        """Put all further messages into an inbox, to wait for several processes at once.

        Args:
            inbox: receives each message with ``key``, and None once the process has gone.
            key: identifies the process there.

        """

        def read() -> None:
            message: Message | None = {}
            while message is not None:
                try:
                    message = self._channel.receive()
                except (ProcessEnded, OSError):
                    message = None
                except HwqError as damaged:
                    self.kill(str(damaged))
                    message = None
                inbox.put((key, message))

        self._reader = threading.Thread(target=read, name="hwq-messages", daemon=True)
        self._reader.start()

    def finish(self, within_s: float) -> None:
        """Ask the process to exit; end it if it does not."""
        self.finish_all([self], within_s)

    @classmethod
    def finish_all(cls, processes: Sequence[MeasuredProcess], within_s: float) -> None:
        """Ask processes to exit, all at once; end those that do not, and those that had gone."""
        deadlines = []
        for process in processes:
            try:
                process._channel.send("exit")
            except ProcessEnded:
                deadlines.append(time.monotonic() + min(within_s, _DYING_S))
            else:
                deadlines.append(time.monotonic() + within_s)
        for process, deadline in zip(processes, deadlines, strict=True):
            process._exited_by(deadline, within_s)

    def _exited_by(self, deadline: float, within_s: float) -> None:
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill(f"did not exit within {within_s:g} s of being asked to")

    def kill(self, why: str) -> None:
        """End the process and everything it has started, unless it has ended."""
        running = self._process.poll() is None
        if running:
            self._stopped = why
        kill(self.pid, alone=running)
        self._process.wait()

    def close(self) -> None:
        """Close the channel; the process must have ended."""
        if self._reader is not None:
            self._reader.join(_DYING_S)
            if self._reader.is_alive():
                return
        self._channel.close()

    def how_it_ended(self) -> str:
        """Wait for its imminent end, and describe how it ended."""
        try:
            self._process.wait(_DYING_S)
        except subprocess.TimeoutExpired:
            self.kill("closed its channel without exiting")
        return f"stopped: {self._stopped}" if self._stopped else ending(self._process.wait())

    @property
    def ended_well(self) -> bool:
        """Whether it has exited by itself with status 0."""
        return self._process.poll() == 0 and not self._stopped

    def dump_stacks(self) -> str:
        """Have the process write all its threads' stacks to its log; return them."""
        return stacks(self.pid, self.log)

    def last_lines(self, count: int = 50) -> str:
        """The last lines of the process's output."""
        return last_lines(self.log, count)
